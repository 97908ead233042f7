"""A hostile text in every field of a stored study, and in what an engine and a server say, acts nowhere that it is shown."""

import csv
import io
import json
import os
import re
import stat
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servebench.report.blocks import Heading, Line, Table, TableColumn, row
from servebench.report.terminal.console import console, print_blocks
from servebench.store.graded import add_quality
from servebench.store.layout import RunFolder
from servebench.util.safe_text import _HARMFUL as HARMFUL
from support.commands import EMULATED, run_servebench
from support.records import quality_records
from support.servers import reply
from support.studies import SimulatedEngine, SimulatedLoad

ACTS = "\x1b]0;t\x07\x1b]52;c;aGk=\x07\x1b[2J\x9b2J\u202egpj\u200b\u2066x\r\x08\ud800\x00"
MARKUP = "<img src=x onerror=alert(1)><script>x</script>[bold]x[/nope]![i](http://evil.example/x.png)`x`|y"
HOSTILE = f"{ACTS}{MARKUP}"
KEPT = (
    "status", "verdict", "doubts", "point", "run_id", "study_id", "outcome", "launch", "request_id", "benchmark", "means", "runs",
)  # fmt: skip
"""Names that others refer to, and words without which a run is not shown at all."""


def poisoned(value, key=""):
    """Return a document with the hostile text in every text and key that may be any."""
    if isinstance(value, dict):
        return {name: poisoned(item, name) for name, item in value.items()} | {f"own{HOSTILE}": f"={HOSTILE}"}
    if isinstance(value, list):
        return [poisoned(item, key) for item in value]
    return f"={value}{HOSTILE}" if isinstance(value, str) and key not in KEPT else value


def poison_table(path):
    """Put the text, as far as Parquet can hold it, into every column of texts, and add a column of that name."""
    table, text = pq.read_table(path), HOSTILE.replace("\ud800", "")
    for index, name in enumerate(table.column_names):
        if pa.types.is_string(table.schema.field(name).type) and name not in KEPT:
            column = pa.array([None if one is None else f"={one}{text}" for one in table[name].to_pylist()])
            table = table.set_column(index, name, column)
    pq.write_table(table.append_column(f"={text}", pa.array([f"@{text}"] * len(table))), path)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    from support.studies import write_simulated_study

    outputs = tmp_path_factory.mktemp("hostile") / "outputs"
    load = SimulatedLoad(levels=(1, 4), requests=20)
    study = write_simulated_study(
        outputs, (SimulatedEngine(name="vllm"), load), (SimulatedEngine(name="sglang", slow=2), load)
    )
    for run in (path for path in study.iterdir() if path.is_dir()):
        add_quality(RunFolder(run), quality_records("mmlu", [True, False, None], concurrency=1))
        (run / "engine.log").write_bytes(HOSTILE.encode("utf-8", "surrogatepass") * 3)
        for name in ("run.json", "manifest.json"):
            (run / name).write_text(json.dumps(poisoned(json.loads((run / name).read_text()))))
        for path in run.glob("*.parquet"):
            poison_table(path)
    failed = study / "02_failed"
    failed.mkdir()
    (failed / "run.json").write_text(
        json.dumps({"title": f"t{HOSTILE}", "status": "failed", "error": f"e{HOSTILE}", "started_s": 1e308})
    )
    (failed / "engine.log").write_bytes(HOSTILE.encode("utf-8", "surrogatepass") * 3)
    state = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps({**state, "words": [HOSTILE], "error": HOSTILE}))
    return outputs


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def check_clean(text):
    found = HARMFUL.search(text)
    assert found is None, ascii(text[max(0, found.start() - 60) : found.end() + 20])


COMMANDS = (
    ("ls",), ("show", "study"), ("show", "study/00_vllm_unique"),
    ("report", "study", "--out", "page.html"), ("report", "study", "--as", "vllm"),
    ("compare", "study", "--baseline", "study/00_vllm_unique", "--markdown", "c.md", "--junit", "c.xml"), ("recommend", "study"),
    ("export", "study", "--format", "csv"), ("export", "study", "--format", "json"),
    ("show", "study/02_failed"), ("ls", "--json"), ("show", HOSTILE[:30].replace("\x00", "")),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words).encode("ascii", "replace").decode()[:40])
def test_no_command_lets_it_act(outputs, tmp_path, words):
    done = run_servebench(tmp_path, *words, "--outputs", str(outputs))
    assert "Traceback" not in done.stderr, done.stderr
    for text in (done.stdout, done.stderr):
        check_clean(text)
    for path in tmp_path.iterdir():
        check_clean(path.read_text(encoding="utf-8"))
    if (page := tmp_path / "page.html").exists():
        tags = Tags()
        tags.feed(page.read_text())
        assert not [one for one in tags.seen if any(name.startswith("on") for name in one[1])]
        assert not [own for tag, own in tags.seen if tag == "img" and not own["src"].startswith("data:image/svg+xml;")]
        specs = [zlib.decompress(b64decode(own["data-spec"])) for _, own in tags.seen if "data-spec" in own]
        assert specs
        for spec in specs:
            check_clean(json.dumps(json.loads(spec), ensure_ascii=False))
        # ours: the two scripts that the policy allows by hash
        assert [own.get("type") for tag, own in tags.seen if tag == "script"] == [None, None]
        assert "onerror" in page.read_text()
    if words[0] == "compare":
        ElementTree.parse(tmp_path / "c.xml")
        assert not re.search(r"(?<!\\)<(img|script)|(?<!\\)!?\[i\]\(", (tmp_path / "c.md").read_text())
    if words[-1] == "csv":
        cells = [cell for row in csv.reader(io.StringIO(done.stdout)) for cell in row]
        assert not [cell for cell in cells if re.match(r"[\s]*[=+@]|\s*-(?![\d.])", cell)]
        assert [cell for cell in cells if cell.startswith("'=")]


@pytest.mark.slow
def test_the_summary_and_what_mlflow_shows(outputs):
    from servebench.store.layout import StudyFolder
    from servebench.store.state import StudyState
    from servebench.store.tracking import tracked_study
    from servebench.study.tracking import write_summary

    folder = write_summary(outputs / "study")
    for path in folder.iterdir():
        if path.suffix not in (".json", ".png"):
            check_clean(path.read_text(encoding="utf-8"))
    study = StudyFolder(outputs / "study")
    state = StudyState(study_id="study", words=(), runs=())
    note = tracked_study(study, state, at_work=False).tags["mlflow.note.content"]
    # commands are code, which nothing in them can end; elsewhere each sign of markup is escaped
    shown = [line for line in note.splitlines() if not line.startswith("`servebench ")]
    assert not re.search(r"(?<!\\)<(img|script)|(?<!\\)!?\[i\]\(", "\n".join(shown))


@pytest.mark.slow
@pytest.mark.parametrize("view", ["Runs", "Study", "Charts", "Quality", "Raw table", "Compare", "Timeline", "Fairness"])
def test_the_dashboard_renders_no_markup_of_a_study(outputs, monkeypatch, view):
    pytest.importorskip("streamlit")
    from streamlit.testing.v1 import AppTest

    from servebench.report.dashboard import local

    monkeypatch.setattr("sys.argv", ["app.py", str(outputs)])
    page = AppTest.from_file(str(Path(local.__file__).with_name("app.py")), default_timeout=600)
    page.session_state["view"] = view
    page.run()
    assert not page.exception
    for element in (*page.markdown, *page.caption, *page.info, *page.warning, *page.error, *page.success):
        assert "evil.example" not in element.value


@pytest.mark.parametrize("text", ["a[/b]", "[bold]", "[/]", "[link=http://x]y[/link]", ":smile:", "\\[x]", HOSTILE])
def test_a_console_shows_markup_as_it_is(text):
    file = io.StringIO()
    out = console(file)
    rows = [row(text, tone="bad"), row(text)]
    print_blocks(
        [Line.of(text), Heading(text), Table([TableColumn(text, left=True, wrap=True)], rows, ruled=True)], out
    )
    check_clean(file.getvalue())
    # a long text is cut in a cell
    assert "".join(file.getvalue().split()).count("".join(text[-4:].split())) >= (1 if text is HOSTILE else 4)


@pytest.mark.slow
def test_a_name_with_markup_ends_no_run(tmp_path):
    done = run_servebench(
        tmp_path, *EMULATED[:2], "engine=vllm", "model=qwen2.5-7b-instruct", "model.name='a[/b]'", "workload=unique",
        "tracking=none", "load.concurrency=[1]", "load.requests=4",
        code=0,
    )  # fmt: skip
    assert "a[/b]" in done.stdout + done.stderr
    state = next((tmp_path / "outputs").glob("*/*/run.json"))
    assert json.loads(state.read_text())["status"] == "finished"
    if os.name == "posix":
        for path in (state.parent.parent, *state.parent.parent.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.slow
@pytest.mark.parametrize("part", ["body", "header"])
def test_what_a_server_says_in_an_error(tmp_path, serve, part):
    text = ACTS.replace("\ud800", "").replace("\r", "").replace("\x00", "")
    if part == "body":
        answer = reply(500, orjson.dumps({"error": {"message": text + MARKUP}}))
    else:
        answer = reply(404, b"{}", Location=text)
    server = serve(lambda connection, _: connection.sendall(answer))
    done = run_servebench(
        tmp_path,
        "launch=attach",
        f"launch.base_url=http://127.0.0.1:{server.port}/v1",
        "model.name=m",
        "gpu=none",
        "tracking=none",
        code=4,
    )
    assert "Traceback" not in done.stderr
    check_clean(done.stdout + done.stderr)
