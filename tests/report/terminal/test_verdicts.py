"""The verb `compare`: what it writes for people and for pipelines, and its exit codes."""

import json
from xml.etree import ElementTree

import pytest

from servebench.cli.main import dispatch
from servebench.contracts.results import Doubt
from servebench.util.errors import ConfigError
from support.studies import SimulatedEngine, SimulatedLoad


@pytest.fixture
def outputs(make_study):
    def runs(name, **engine):
        shape = SimulatedLoad(requests=60, starts=5, levels=(8,), seed=len(name))
        return make_study((SimulatedEngine(name="alpha", tokens=80, **engine), shape), name=name)

    runs("base")
    runs("again")
    runs("slower", slow=1.2)
    make_study(
        (SimulatedEngine(slow=1.2), SimulatedLoad(requests=40, starts=2, config={"engine.dtype": "fp8"})), name="unfair"
    )
    return make_study((SimulatedEngine(), SimulatedLoad(requests=8, levels=(2,))), name="short").parent


def words(outputs, *more):
    return ["--outputs", str(outputs), "--with-doubtful", *more]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "limit", "code", "text"),
    [
        ("again", "20%", 0, ""),
        ("again", "0.5%", 7, "worse is possible"),
        ("slower", "5%", 1, "slower alpha: "),
        ("unfair", "5%", 7, "engine.dtype"),
        ("short", "5%", 7, "short alpha"),
    ],
)
def test_as_a_gate_it_ends_a_pipeline(outputs, capsys, candidate, limit, code, text):
    found = dispatch(["compare", *words(outputs, candidate, "--baseline", "base", "--max-regression", limit)])
    assert (found, text in capsys.readouterr().err) == (code, True)


@pytest.mark.slow
def test_junit_has_a_case_a_row_and_a_failure_a_regression(outputs, tmp_path, capsys):
    dispatch(
        ["compare", *words(outputs, "base", "slower", "--max-regression=0.05", "--junit", str(tmp_path / "j.xml"))]
    )
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) > 0
    assert int(suite.get("tests")) == len(suite.findall("testcase")) == 5
    assert "5%" in suite.find("testcase/failure").get("message")


@pytest.mark.slow
def test_markdown_tells_verdict_rows_and_what_is_unequal(outputs, tmp_path, capsys):
    dispatch(
        ["compare", *words(outputs, "base", "slower", "--max-regression", "5%", "--markdown", str(tmp_path / "c.md"))]
    )
    text = (tmp_path / "c.md").read_text()
    assert "Gate: **failed**" in text
    assert "| 8 | E2E p50, ms |" in text
    dispatch(["compare", *words(outputs, "base", "unfair", "--markdown", str(tmp_path / "d.md"))])
    assert "different setting: engine.dtype: fp8 vs auto" in (tmp_path / "d.md").read_text()


@pytest.mark.slow
def test_the_terminal_and_json_tell_the_same(outputs, capsys):
    assert dispatch(["compare", *words(outputs, "base", "slower")]) == 0
    assert "slower alpha is slower" in capsys.readouterr().out
    assert dispatch(["compare", *words(outputs, "base", "slower", "--json")]) == 0
    found = json.loads(capsys.readouterr().out)["comparisons"][0]
    assert (found["verdict"], found["rows"][0]["metric"]) == ("slower", "output_throughput_tok_s")
    assert {tuple(row["starts"]) for row in found["rows"] if row["starts"]} == {(5, 5)}


@pytest.mark.slow
def test_doubtful_points_do_not_compete_unless_asked(outputs, capsys, make_study):
    doubt = Doubt(code="too_short", message="", remedy="")
    for name, slow in (("d1", 1.0), ("d2", 1.5)):
        make_study(
            (SimulatedEngine(slow=slow), SimulatedLoad(levels=(8,), requests=60, starts=3)), name=name, doubts=[doubt]
        )
    assert dispatch(["compare", "--outputs", str(outputs), "d1", "d2", "--max-regression", "5%"]) == 7
    assert "(slower)" in capsys.readouterr().out
    assert dispatch(["compare", *words(outputs, "d1", "d2", "--max-regression", "5%")]) == 1


@pytest.mark.slow
def test_studies_of_several_runs_are_compared_run_by_run(outputs, capsys, make_study):
    for name, slow in (("s1", 1.0), ("s2", 1.3)):
        make_study(
            (SimulatedEngine(name="alpha", slow=slow), SimulatedLoad(levels=(8,), requests=60)),
            (SimulatedEngine(name="beta", slow=slow), SimulatedLoad(levels=(8,), requests=60)),
            name=name,
        )
    dispatch(["compare", *words(outputs, "s1", "s2", "--json")])
    found = json.loads(capsys.readouterr().out)["comparisons"]
    assert [(one["baseline"], one["candidate"]) for one in found] == [
        ("s1/00_alpha_unique", "s2/00_alpha_unique"),
        ("s1/01_beta_unique", "s2/01_beta_unique"),
    ]
    dispatch(["compare", *words(outputs, "s1", "--json")])
    assert [one["candidate"] for one in json.loads(capsys.readouterr().out)["comparisons"]] == ["s1/01_beta_unique"]


@pytest.mark.slow
def test_one_run_alone_is_compared_with_nothing(outputs):
    with pytest.raises(ConfigError, match="two runs or more"):
        dispatch(["compare", *words(outputs, "base")])


@pytest.mark.slow
def test_what_the_intervals_rest_on_is_explained(outputs, tmp_path, capsys, make_study):
    dispatch(["compare", *words(outputs, "base", "slower", "--markdown", str(tmp_path / "c.md"))])
    assert "the model of starts, from 5 and 5 starts" in " ".join(capsys.readouterr().out.split())
    assert "the model of starts, from 5 and 5 starts" in (tmp_path / "c.md").read_text()
    for name in ("once", "more"):
        make_study((SimulatedEngine(name="alpha"), SimulatedLoad(levels=(2,), requests=60)), name=name)
    dispatch(["compare", *words(outputs, "once", "more")])
    assert "two starts" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_gate_does_not_pass_where_the_candidate_lost_a_level(outputs, capsys, make_study):
    for name, levels in (("two_levels", (2, 8)), ("one_level", (8,))):
        load = SimulatedLoad(levels=levels, requests=60, starts=5, seed=len(name))
        make_study((SimulatedEngine(name="alpha"), load), name=name)
    gate = ["--max-regression", "30%"]
    assert dispatch(["compare", *words(outputs, "one_level", "two_levels", *gate)]) == 0
    assert dispatch(["compare", *words(outputs, "two_levels", "one_level", *gate)]) == 7
    assert "the candidate has no such level" in capsys.readouterr().err
