"""Leases between processes of one machine."""

import os
import signal
import subprocess
import sys

import pytest

from servebench.cluster.leases import PORTS, Leases, lease_folder
from servebench.util.errors import PreflightError

HOLDER = """
import sys, time
from pathlib import Path
from servebench.cluster.leases import Leases
leases = Leases(Path(sys.argv[1]))
print(leases.take("gpu-0"), flush=True)
time.sleep(60)
"""


def test_a_lease_has_one_holder(tmp_path):
    one, other = Leases(tmp_path), Leases(tmp_path)
    assert one.take("gpu-0")
    assert not other.take("gpu-0")
    assert not one.take("gpu-0")
    assert one.names == ("gpu-0",)
    one.release()
    assert other.take("gpu-0")


def test_several_leases_are_taken_together_or_not_at_all(tmp_path):
    one, other = Leases(tmp_path), Leases(tmp_path)
    gpus = ["gpu-0", "gpu-1", "gpu-2"]
    assert one.take_some(gpus, 2) == ["gpu-0", "gpu-1"]
    assert other.take_some(gpus, 2) == []
    assert other.names == ()
    assert one.take("gpu-2")


def test_a_killed_process_holds_no_lease(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    mine = Leases(tmp_path)
    assert not mine.take("gpu-0")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert mine.wait_for(["gpu-0"], 1, lambda: None) == ["gpu-0"]


def test_a_port_is_leased_once(tmp_path):
    one, other = Leases(tmp_path), Leases(tmp_path)
    ports = [lease.free_port(lambda port: port in (PORTS[7], PORTS[8])) for lease in (one, other)]
    assert sorted(ports) == [PORTS[7], PORTS[8]]
    with pytest.raises(PreflightError, match=r"engine\.port"):
        Leases(tmp_path).free_port(lambda port: port in (PORTS[7], PORTS[8]))


def test_more_leases_than_exist_is_an_error(tmp_path):
    with pytest.raises(PreflightError, match="2 of gpu-0"):
        Leases(tmp_path).wait_for(["gpu-0"], 2, lambda: None)


def test_a_variable_sets_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVEBENCH_LEASES", str(tmp_path / "here"))
    assert lease_folder() == tmp_path / "here"
    assert lease_folder().is_dir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SERVEBENCH_LEASES", str(tmp_path / "file" / "in"))
    with pytest.raises(PreflightError, match="SERVEBENCH_LEASES"):
        lease_folder()
