"""A server that means harm, measured by the command: every request has its row, and neither memory nor time run out."""

import json
import sys

import pandas as pd
import pytest

from support.commands import run_program
from support.hostile import BEHAVIOURS, HostileServer, bomb

PEAK = (
    "import resource, subprocess, sys; code = subprocess.call([sys.executable, '-m', 'servebench', *sys.argv[1:]]); "
    "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
)
"""Runs the command and tells the largest resident size (KiB) of it and of all that it started."""

MEMORY_MIB = 600
"""servebench with pandas and pyarrow has some 250 MiB; one flood that was kept would add a thousand."""


@pytest.fixture
def server():
    made = []

    def start(choose):
        made.append(HostileServer(choose, only_load=True))
        return made[-1]

    yield start
    for one in made:
        one.close()


def measured(tmp_path, url, *words):
    done = run_program(
        sys.executable, "-c", PEAK, "engine=openai", "launch=attach", f"launch.base_url={url}", "model.name=tiny",
        "workload=unique", "workload.output_tokens=3", "load.concurrency=[1]", "load.warmup_requests=0",
        "load.self_check=never", "tracking=none", "study.name=s", *words, cwd=tmp_path,
    )  # fmt: skip
    peak = int(done.stderr.rsplit("peak ", 1)[1])
    return done, peak / 1024


@pytest.mark.slow
def test_every_behaviour_is_a_row_with_a_named_outcome(server, tmp_path):
    """All behaviours in one run, one request each, in order: each gives its own outcome and harms nothing else."""
    names = list(BEHAVIOURS)
    bomb()  # takes long to make, and is kept
    posts = iter(names)
    harm = server(lambda number, method, path: next(posts, None) if method == "POST" else None)
    done, peak_mib = measured(tmp_path, harm.base_url, f"load.requests={len(names)}", "load.timeout_s=8")
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    rows = pd.read_parquet(tmp_path / "outputs/s/00_openai_unique/requests.parquet").sort_values("sent_ns")
    got = dict(zip([name for method, _, name in harm.asked if method == "POST"], rows.outcome, strict=True))
    assert set(got) == set(names)
    assert {name: out for name, out in got.items() if out not in BEHAVIOURS[name][1]} == {}
    failed = rows[rows.outcome != "ok"]
    assert failed.error.str.len().between(1, 400).all()
    book = json.loads((tmp_path / "outputs/s/00_openai_unique/manifest.json").read_text())["ledger"]
    assert (book[0]["sent"], book[0]["stored"]) == (len(names), len(names))
    assert peak_mib < MEMORY_MIB
