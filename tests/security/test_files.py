"""Studies are for their user alone, unless a setting says otherwise; what is handed on is not."""

import json
import os
import stat
import subprocess
import sys

import pytest


def run(cwd, *words, **env):
    argv = [sys.executable, "-m", "servebench", *words]
    return subprocess.run(argv, cwd=cwd, env={**os.environ, **env}, umask=0o022, check=True, capture_output=True)


def others(path):
    return stat.S_IMODE(path.stat().st_mode) & 0o077


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "private"), [("", True), ("1", False)])
def test_a_study_is_private_unless_outputs_are_shared(tmp_path, setting, private):
    (tmp_path / "r.json").write_text(
        json.dumps({"model_id": "m", "backend": "vllm", "completed": 2, "mean_ttft_ms": 1.5})
    )
    run(tmp_path, "import", "r.json", SERVEBENCH_SHARED=setting)
    study = next((tmp_path / "outputs").iterdir())
    files = [study, *study.rglob("*")]
    assert {bool(others(path)) for path in files} == {not private}
    run(tmp_path, "report", study.name, SERVEBENCH_SHARED=setting)
    assert bool(others(study / "report.html")) is not private
    run(tmp_path, "report", study.name, "--out", "page.html", SERVEBENCH_SHARED=setting)
    assert others(tmp_path / "page.html")


def test_an_engine_keeps_the_umask_of_its_user(monkeypatch, tmp_path):
    from servebench.contracts.engine import Command
    from servebench.engine.supervisor.started import GuardedProcess
    from servebench.util import process_privacy
    from support.waiting import wait_until

    monkeypatch.setattr(process_privacy, "_before", [process_privacy.UNCHANGED])
    before = os.umask(0o022)
    try:
        process_privacy.make_private()
        process = GuardedProcess(Command(argv=("sh", "-c", "umask")), tmp_path / "engine.log", 5.0)
        wait_until(lambda: (tmp_path / "engine.log").read_text().strip())
        process.stop()
    finally:
        os.umask(before)
    assert (tmp_path / "engine.log").read_text().strip() == "0022"
    assert not others(tmp_path / "engine.log")
