"""Commands of the how-tos that need neither a GPU nor an engine, run as they are typed."""

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from support.studies import SimulatedEngine, SimulatedLoad

from .test_commands import FILE

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = re.compile(r"^ {4}servebench (.*)$", re.MULTILINE)


def commands(page: str, sign: str) -> list[list[str]]:
    """The words of the commands of a page that have a sign in them."""
    found = [text for text in COMMAND.findall((DOCS / page).read_text(encoding="utf-8")) if sign in text]
    assert found, f"{page} has no command with {sign}"
    return [shlex.split(text) for text in found]


@pytest.fixture
def files(tmp_path):
    """The files that the pages tell to write."""
    for page in DOCS.glob("*.md"):
        for name, text in FILE.findall(page.read_text(encoding="utf-8")):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["slo_cost.md", "mlflow.md", "tune.md"])
def test_a_study_of_simulated_engines(page, files, run_main, tmp_path):
    for words in commands(page, "launch=simulated"):
        run_main(*words, "tracking=none", code=0)
    assert list(tmp_path.glob("outputs/*/study.json"))


@pytest.mark.slow
def test_a_server_that_refuses_is_named(run_main, tmp_path):
    (words,) = commands("gateway.md", "launch=emulated")
    run_main(*words, "tracking=none", "load.self_check=never")
    (points,) = tmp_path.glob("outputs/*/*/points.csv")
    (point,) = pd.read_csv(points).to_dict("records")
    assert (point["verdict"], point["requests_refused"] > 0, "rate_limited" in point["doubts"]) == ("void", True, True)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["two_engines.md", "not_started.md", "engines.md"])
def test_an_engine_s_command(page, files, run_main):
    """One for each engine that the words name."""
    for words in commands(page, "--cfg command"):
        engines = next(word for word in words if word.startswith("engine=")).count(",") + 1
        assert run_main(*words, code=0).stdout.count("--port") >= engines


@pytest.mark.slow
def test_a_study_is_shared(make_study, run_main, tmp_path):
    load = SimulatedLoad(levels=(4,), requests=40)
    make_study((SimulatedEngine(name="a"), load), (SimulatedEngine(name="b"), load))
    for words in [
        *commands("sharing.md", "last"),
        *commands("decide.md", "show last"),
        *commands("slo_cost.md", "recommend"),
    ]:
        run_main(*words, code=0)
    for name in ("study.html", "points.csv", "study.tar.gz", "with_requests.tar.gz"):
        assert (tmp_path / name).stat().st_size > 0
