"""The page of a run or study: whole, safe, and there for broken runs too."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from servebench.cli.main import dispatch
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt
from servebench.report.charts.model import Series
from servebench.report.charts.specs import weak_note
from servebench.report.html.page import BUNDLE, breakable
from support.studies import SimulatedEngine, SimulatedLoad

EVIL = f"</script><script>alert(1)</script><img src=x onerror=alert(2)>{BUNDLE}"


class Reader(HTMLParser):
    """Which tags and attributes a browser would see."""

    def __init__(self):
        super().__init__()
        self.tags, self.links, self.open, self.text, self.scripts = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href", "data", "action")]
        assert not any(k.startswith("on") for k, _ in attrs)
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))
        if tag not in ("meta", "br", "img", "input", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            kind, before = self.scripts[-1]
            self.scripts[-1] = (kind, before + data)
        else:
            self.text.append(data)


def read(path):
    text = path.read_text()
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return text, reader


@pytest.fixture
def study(make_study):
    shape = {"requests": 60, "levels": (2, 8)}
    doubt = Doubt(code="too_short", message="", remedy="")
    return make_study(
        (SimulatedEngine(name="vllm"), SimulatedLoad(**shape, model=f"org/{EVIL}")),
        (SimulatedEngine(name="sglang", slow=1.3, fail_share=0.1), SimulatedLoad(**shape, model=f"org/{EVIL}", version=EVIL)),
        doubts=[doubt],
    )  # fmt: skip


def report(study, *words):
    assert dispatch(["report", str(study), *words]) == 0
    return read(study / "report.html")


@pytest.mark.slow
def test_the_page_is_self_contained_and_runs_only_what_is_ours(study, capsys):
    """Each script is allowed by its hash; a placeholder that a model's name spells is not filled."""
    text, seen = report(study)
    assert "link" not in seen.tags
    assert all(link.startswith(("#", "data:image/svg+xml;base64,")) for link in seen.links)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; script-src 'sha256-".replace("'", "&#39;"))
    assert "unsafe-eval" not in policy
    allowed = re.findall(r"sha256-([^&]*)", policy)
    code = [source for kind, source in seen.scripts if kind is None]
    assert [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in code] == allowed
    assert "vegaEmbed" in code[0]
    assert text.count(code[0]) == 1
    assert "ast: true" in code[1]
    assert len(text) < 3_000_000
    assert capsys.readouterr().out.strip() == str(study / "report.html")


@pytest.mark.slow
def test_every_chart_is_there_for_a_script_in_print_and_in_words(study):
    text, _ = report(study, "--with-doubtful")
    charts = [json.loads(zlib.decompress(base64.b64decode(one))) for one in re.findall(r'data-spec="([^"]*)"', text)]
    assert len(charts) >= 11
    assert all(one["description"] for one in charts)
    stills = re.findall(r'<img [^>]*alt="([^"]*)"', text)
    assert all(stills)
    assert len(stills) >= 11
    names = set(re.findall(r'data-run="([^"]*)"', text))
    assert names == {"vllm", "sglang"}


def test_pictures_beyond_the_size_of_a_page_are_words(study, monkeypatch):
    monkeypatch.setattr("servebench.report.html.page.CHARTS_SIZE_MAX", 0)
    _, seen = report(study)
    assert "img" not in seen.tags
    assert "Output throughput (tok/s): vllm" in " ".join(seen.text)


@pytest.mark.slow
def test_what_servers_said_is_shown_as_text(study):
    text, seen = report(study)
    assert EVIL not in text
    assert any(EVIL in part for part in seen.text)


@pytest.mark.slow
def test_every_part_for_which_there_are_data_is_there(study):
    text, seen = report(study, "--with-doubtful")
    parts = "answer load distributions parts points comparison timeline cold fairness doubts commands"
    for part in parts.split():
        assert f'<section id="{part}"' in text, part
    words = " ".join(seen.text)
    assert "too_short" in words
    assert "servebench demo" in words
    assert "sglang serve" in words
    assert "run --lock" in words


def test_a_run_that_failed_and_one_that_is_gone_are_told(study):
    run = study / "01_sglang_unique"
    state = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(state | {"status": "failed", "error": f"the engine died: {EVIL}"}))
    (run / "points.parquet").unlink()
    (run / "requests.parquet").write_bytes(b"broken")
    (run / "engine.log").write_text(f"last words {EVIL}\n")
    for path in (study / "00_vllm_unique").iterdir():
        path.unlink()
    text, seen = report(study)
    assert EVIL not in text
    words = " ".join(seen.text)
    assert "the engine died" in words
    assert "last words" in words
    assert "not started" in words
    assert "No point was measured." in words


def test_one_run_alone_has_a_page_of_its_own(study, tmp_path):
    assert dispatch(["report", str(study / "00_vllm_unique"), "--out", str(tmp_path / "x" / "page.html")]) == 0
    text, _ = read(tmp_path / "x" / "page.html")
    assert '<section id="comparison">' not in text


def test_each_cell_of_a_table_has_its_name_for_narrow_screens(study):
    """There a row is a card, without the headings above."""
    text, _ = report(study)
    cells = re.findall(r'<td class="[^"]*"( data-name="[^"]+")?', text.partition("<script")[0])
    assert len(cells) > 20
    assert all(cells)


def test_a_long_name_breaks_behind_its_signs_and_stays_text():
    assert breakable("a=<b>_1") == "a=<wbr>&lt;b&gt;_<wbr>1"


@pytest.mark.parametrize(("values", "weak"), [(100, True), (736, False)])
def test_charts_say_that_a_p99_is_of_too_few_requests(values, weak):
    row = PointRow(concurrency=1, ttft_ms_p99=9.0, ttft_ms_n=values)
    series = Series(name="a", panel="unique", colour=0, rows=[row])
    assert bool(weak_note([series])) is weak


def test_a_long_name_wraps_in_the_legend():
    """With `nowrap` a page with long names scrolls sideways on a narrow screen."""
    style = files("servebench.report.html").joinpath("templates/style.css").read_text(encoding="utf-8")
    (rule,) = re.findall(r"(?<![\w.#-])label\{([^}]*)\}", style)
    assert "max-width:100%" in rule
    assert "nowrap" not in rule
