"""What a killed study left becomes tables again, and studies are sent whatever is wrong with one of them."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from servebench.contracts.exchange import PhaseReport
from servebench.contracts.request import Request
from servebench.contracts.telemetry import Reading
from servebench.engine.tokenize import ApproximateTokenizer
from servebench.load.client.connection import TIMESPEC
from servebench.load.client.spool import end_frame, meta_frame, reads_frame, sent_frame
from servebench.load.coordinator.drive import worker_spools
from servebench.load.plan.levels import plan_levels
from servebench.registry.registry import registry
from servebench.run.phase import discard_spools, dump_facts, load_facts, records_of, references_of
from servebench.run.point import build_point
from servebench.run.preflight import jobs_of
from servebench.run.recovery import UNKNOWN_COLUMNS
from servebench.store.layout import StudyFolder
from servebench.store.plan import write_plan
from servebench.store.state import RunState, StudyState, read_run, read_study, write_run, write_study
from servebench.store.studies import named_studies
from servebench.store.tables import RecordWriter, add_telemetry, read_readings, read_requests, read_rows
from servebench.store.telemetry_log import TelemetryLog
from servebench.study.resume import recover_studies
from servebench.study.study import planned_runs
from servebench.study.tracking import sync_studies
from servebench.util.errors import ConfigError
from support.records import phase_facts, point_evidence
from support.servers import refusing_port

BASE_NS = 1_700_000_000 * 10**9
STEP_NS = 10_000_000
DEAD_PID = 999_999_999
WORDS = ("engine=openai", "launch=attach", "launch.base_url=http://127.0.0.1:9/v1", "model.name=m",
         "load.concurrency=[1,2]", "load.requests=3", "load.warmup_requests=1")  # fmt: skip
RUN = "00_openai_sharegpt"
READING = Reading(t_ns=BASE_NS, source="engine", name=None, raw_name="n", labels="", value=1.0)


def recover(names=()):
    return recover_studies(named_studies(names, Path("outputs")), report_running=bool(names))


def sync(names=(), uri=None):
    return sync_studies(named_studies(names, Path("outputs")), uri=uri)


def answer_frames(index, at_ns):
    """What a server sent: two content events, the usage and the end, one read."""
    chunks = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in ("one ", "two")]
    chunks += [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}},
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    data = (
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()  # fmt: skip
    cut = data.index(b"data: ", data.index(b"two") - 60)
    stamps = [TIMESPEC.pack(*divmod(stamp, 10**9)) for stamp in (at_ns, at_ns + STEP_NS)]
    return reads_frame(index, stamps, [data[:cut], data[cut:]])


def write_spool(folder, point, count, done, *, warmup=False, run_id="s/00", cut=b""):
    """A phase of `count` requests at concurrency 1 that was killed when `done` of them had ended and one more was sent."""
    path = folder.spool(point + ("-warmup" if warmup else ""))
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"{path.stem}-{number}" for number in range(count)]
    facts = phase_facts(run_id=run_id, point=point, warmup=warmup, planned=dict.fromkeys(names, (5, 2, False)))
    path.with_suffix(".json").write_bytes(dump_facts(facts))
    data = meta_frame([(name, None) for name in names])
    for index in range(min(count, done + 1)):
        sent_ns = BASE_NS + index * 4 * STEP_NS
        data += sent_frame(index, sent_ns, 0, 0, sent_ns)
        if index < done:
            data += answer_frames(index, sent_ns + STEP_NS)
            data += end_frame(index, sent_ns + 2 * STEP_NS, "complete")
    path.write_bytes(data + cut)
    return path


def write_killed(outputs, name="killed", words=WORDS, **changes):
    """A study as kill -9 leaves it."""
    study = StudyFolder(outputs / name)
    study.path.mkdir(parents=True)
    write_plan(study, [replace(run, name=RUN) for run in planned_runs(jobs_of(words, registry()))])
    state = StudyState(study_id=name, words=words, runs=(RUN, "01_never_begun"), pid=DEAD_PID, started_s=1_700_000_000.0,
                       tracking={"name": "mlflow", "experiment": "servebench"})  # fmt: skip
    write_study(study, replace(state, **changes))
    folder = study.create_run(RUN)
    write_run(folder, RunState(run_id=f"{name}/{RUN}", title="t", overrides=(), started_s=1_700_000_000.0))
    return study, folder


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


@pytest.fixture
def folder(outputs):
    """The folder of a run of a killed study."""
    return write_killed(outputs)[1]


def rows(folder):
    return pq.read_table(folder.points).to_pylist()


def test_lost_spans_of_a_recovered_point_are_marked(outputs):
    """They were in the memory of the process that was killed: their columns are null, and the point says so."""
    words = (*WORDS, "engine.request_timings=spans", "engine.spans_address=127.0.0.1:4318")
    folder = write_killed(outputs, words=words)[1]
    write_spool(folder, "c1-r0", 3, 3)
    assert recover() == 0
    found = read_requests(folder)
    assert found[["timings_from", "server_queue_ms"]].isna().all(axis=None)
    (row,) = rows(folder)
    assert "timings_missing" in row["doubts"]


def test_a_killed_point_is_recovered(outputs, capsys):
    study, folder = write_killed(outputs)
    write_spool(folder, "c1-r0", 3, 2, cut=b"\x02half")
    assert recover() == 0
    assert capsys.readouterr().out == f"killed/{RUN}: 3 requests and 1 point recovered\n"
    frame = read_requests(folder)
    assert list(frame["outcome"]) == ["ok", "ok", "cancelled"]
    assert list(frame["output_tokens"])[:2] == [2, 2]
    (row,) = rows(folder)
    assert (row["point"], row["concurrency"], row["engine"], row["model"]) == ("c1-r0", 1, "openai", "m")
    assert (row["requests_planned"], row["requests_ok"], row["requests_failed"]) == (3, 2, 1)
    assert row["ttft_ms_mean"] == pytest.approx(10.0)
    assert (row["verdict"], "interrupted" in row["doubts"]) == ("void", True)
    assert (row["client_cpu_share"], row["loop_lag_ms_p99"], row["clock_step_ms"]) == (None, None, None)
    assert folder.points_csv.read_text().count("\n") == 2
    assert not folder.spools()
    assert not list(folder.raw.iterdir())
    assert not folder.parts.exists()
    run = read_run(folder)
    assert (run.status, run.error, run.failure) == ("interrupted", "servebench was killed", "killed")
    assert read_study(study).status == "interrupted"
    before = {path: path.read_bytes() for path in outputs.rglob("*") if path.is_file()}
    assert recover() == 0
    assert capsys.readouterr().out == "nothing to recover\n", "a second time there is nothing"
    assert {path: path.read_bytes() for path in outputs.rglob("*") if path.is_file()} == before


def test_an_engine_that_went_with_servebench(folder):
    """All requests have ended, the last by a broken connection: the point is none to be kept."""
    spool = write_spool(folder, "c1-r0", 3, 2)
    spool.write_bytes(spool.read_bytes() + end_frame(2, BASE_NS + 20 * STEP_NS, "reset", "connection reset by peer"))
    assert recover() == 0
    (row,) = rows(folder)
    assert (row["requests_ok"], row["requests_failed"], row["verdict"]) == (2, 1, "void")
    assert "engine_died" in row["doubts"]
    assert "interrupted" not in row["doubts"]


def test_an_earlier_attempt_does_not_come_back(folder):
    """Its row, which told why it did not count, was replaced by that of a later one."""
    write_spool(folder, "c1-r0", 3, 3)
    write_spool(folder, "c1-r0-a10", 3, 3)
    write_spool(folder, "c1-r0-a9", 3, 1)
    assert recover() == 0
    assert [row["point"] for row in rows(folder)] == ["c1-r0-a10"]
    assert len(read_requests(folder)) == 8


def test_what_was_being_written_is_removed(outputs):
    study, folder = write_killed(outputs)
    write_spool(folder, "c1-r0", 3, 2)
    for path in (
        study.path / ".study.json.7.tmp",
        folder.path / ".points.parquet.7.tmp",
        folder.raw / ".c1-r0.json.7.tmp",
    ):
        path.write_text("half")
    (study.path / ".mine").write_text("kept")
    assert recover() == 0
    assert [path.name for path in study.path.rglob(".*")] == [".mine"]


def test_the_spools_of_all_workers_make_one_point(outputs):
    """A phase of three processes, one of which had written nothing yet."""
    _, folder = write_killed(outputs, words=(*WORDS[:-2], "load.requests=9"))
    first = write_spool(folder, "c1-r0", 3, 3)
    for number, path in enumerate(worker_spools(first, 3)[1:], 1):
        text = first.read_bytes() if number == 1 else b""
        path.write_bytes(text.replace(b'"c1-r0-', b'"c1-r9-'))
        path.with_suffix(".json").write_bytes(first.with_suffix(".json").read_bytes())
    assert recover(["killed"]) == 0
    assert sorted(read_requests(folder)["request_id"]) == [f"c1-r{r}-{i}" for r in (0, 9) for i in range(3)]
    (row,) = rows(folder)
    assert (row["point"], row["requests_ok"]) == ("c1-r0", 6)
    assert not list(folder.raw.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "point", "concurrency", "rate"),
    [
        (("load=slo", "slo=interactive"), "c6-r1", 6, None),
        (("load=slo", "slo=interactive", "load.search.of=rate"), "q2.5-r0", None, 2.5),
        (("load=replay",), "replay-r0", None, 25.0),
    ],
)
def test_points_of_searches_and_traces_are_known_by_their_names(outputs, words, point, concurrency, rate):
    _, folder = write_killed(outputs, words=(*WORDS[:4], *words))
    write_spool(folder, point, 5, 3)
    assert recover(["killed"]) == 0
    (row,) = rows(folder)
    assert (row["point"], row["concurrency"], row["rate"], row["requests_ok"]) == (point, concurrency, rate, 3)
    assert row["verdict"] == "void"


def test_the_telemetry_of_a_killed_point_is_recovered(folder):
    write_spool(folder, "c1-r0", 3, 3)
    readings = [replace(READING, t_ns=BASE_NS + step, value=float(step)) for step in range(3)]
    TelemetryLog(folder, "c1-r0").add(readings)
    assert recover() == 0
    assert read_readings(folder) == {"c1-r0": readings}
    assert {row["run_id"] for row in pq.read_table(folder.telemetry).to_pylist()} == {"s/00"}
    assert not list(folder.raw.iterdir())


@pytest.fixture
def batch(folder):
    """A whole point as a batch of records, of which the spool is still there."""
    spool = write_spool(folder, "c1-r0", 3, 3)
    RecordWriter(folder).append(records_of([spool], load_facts(spool)))
    return spool


def test_telemetry_that_was_stored_already_is_not_there_twice(folder, batch):
    """Killed after the readings were stored and before their log was removed."""
    discard_spools([batch])
    TelemetryLog(folder, "c1-r0").add([READING])
    add_telemetry(folder, [READING, READING], run_id="s/00", point="c1-r0")
    assert recover() == 0
    assert read_readings(folder) == {"c1-r0": [READING, READING]}
    assert not list(folder.raw.iterdir())


def test_telemetry_of_a_point_without_requests_is_removed(folder, capsys):
    """Killed before the load began."""
    TelemetryLog(folder, "c1-r0").add([READING])
    assert recover() == 0
    assert capsys.readouterr().out == "nothing to recover\n"
    assert not folder.telemetry.exists()
    assert not list(folder.raw.iterdir())


def test_a_warm_up_makes_no_point(folder):
    write_spool(folder, "c1-r0", 1, 1, warmup=True)
    recover()
    assert list(read_requests(folder)["warmup"]) == [True]
    assert not folder.points.exists()


@pytest.mark.parametrize("spool_is_left", [True, False])
def test_what_was_stored_already_is_not_there_twice_and_makes_a_whole_point(folder, batch, spool_is_left):
    """Killed after its last request and before its row was written; perhaps before its spool was removed."""
    if not spool_is_left:
        discard_spools([batch])
    recover()
    (row,) = rows(folder)
    assert len(read_requests(folder)) == row["requests_ok"] == 3
    assert "interrupted" not in row["doubts"]
    assert not folder.spools()


def test_points_that_were_written_stay(folder):
    write_spool(folder, "c1-r0", 3, 3)
    recover()
    before = rows(folder)
    write_spool(folder, "c2-r0", 3, 1)
    recover()
    after = rows(folder)
    assert after[:1] == before
    assert [row["point"] for row in after] == ["c1-r0", "c2-r0"]


def test_an_empty_spool(folder, capsys):
    """Killed before the first request was sent: the run is marked and nothing is recovered."""
    write_spool(folder, "c1-r0", 3, 0).write_bytes(b"")
    assert recover() == 0
    assert capsys.readouterr().out == "nothing to recover\n"
    assert read_run(folder).status == "interrupted"
    assert not folder.spools()


def test_a_study_at_work_is_left_alone(outputs, capsys):
    study, folder = write_killed(outputs, pid=os.getpid())
    spool = write_spool(folder, "c1-r0", 3, 1)
    assert recover(["killed"]) == 0
    assert "killed is still running" in capsys.readouterr().out
    assert spool.exists()
    assert read_run(folder).status == read_study(study).status == "running"


def test_a_config_that_cannot_be_composed_any_more(outputs, capsys):
    study, folder = write_killed(outputs)
    study.plan.write_text(study.plan.read_text().replace('"name": "openai"', '"name": "gone"'))
    write_spool(folder, "c1-r0", 3, 2)
    assert recover() == 0
    printed = capsys.readouterr()
    assert "3 requests and 0 points recovered" in printed.out
    assert "no such engine" in printed.err
    assert len(read_requests(folder)) == 3


@pytest.mark.slow
def test_what_cannot_be_read_keeps_nothing_else_back(outputs, capsys):
    write_killed(outputs, name="a-broken")[0].state.write_text("{")
    _, second = write_killed(outputs, name="b-facts")
    spool = write_spool(second, "c1-r0", 3, 2)
    spool.with_suffix(".json").write_text("[]")
    _, third = write_killed(outputs, name="c-good")
    write_spool(third, "c1-r0", 3, 2)
    assert recover() == 6
    printed = capsys.readouterr()
    assert sorted(line.split(":")[1].strip() for line in printed.err.splitlines()) == ["a-broken", "b-facts"]
    assert spool.with_name("c1-r0.spool.damaged").exists()
    assert not second.spools()
    assert len(rows(third)) == 1


def test_studies_are_named_or_all_are_meant(outputs, tmp_path):
    """By folder or by name in outputs/; one that is not there is a mistake in the words."""
    write_killed(outputs, name="one")
    write_killed(tmp_path / "elsewhere", name="two")
    assert [study.name for study in named_studies([], outputs)] == ["one"]
    assert [study.name for study in named_studies(["elsewhere/two", "one"], outputs)] == ["two", "one"]
    assert [study.name for study in named_studies([], Path("elsewhere"))] == ["two"]
    assert [study.name for study in named_studies(["two"], Path("elsewhere"))] == ["two"]
    with pytest.raises(ConfigError, match="'three'"):
        named_studies(["three"], outputs)


@pytest.mark.slow
def test_sync_sends_all_and_again_nothing(outputs, capsys):
    """Whatever is broken in one study, the others go; the exit code says that not all did."""
    write_killed(outputs, name="a-broken")[0].state.write_text("{")
    _, folder = write_killed(outputs, name="b-points", status="finished")
    folder.points.write_bytes(b"nonsense")
    write_killed(outputs, name="c-good", status="interrupted")
    write_killed(outputs, name="d-none", tracking={"name": "none"})
    assert sync() == 1
    printed = capsys.readouterr()
    assert sorted(line.split(":")[1].strip() for line in printed.err.splitlines()) == ["a-broken", "b-points"]
    assert printed.out.splitlines() == ["b-points: 0 sent, 0 unchanged", "c-good: 1 sent, 0 unchanged"]
    assert sync(["c-good"]) == 0
    assert capsys.readouterr().out == "c-good: 0 sent, 1 unchanged\n"


@pytest.mark.slow
def test_sync_asks_a_dead_server_once(outputs, capsys):
    """Ten studies do not wait for it ten times; all are told as not sent."""
    for name in ("a", "b", "c"):
        write_killed(outputs, name=name)
    with refusing_port() as port:
        assert sync(uri=f"http://127.0.0.1:{port}") == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "refused" in lines[0]
    assert lines[1:] == [f"servebench: {name}: not sent, because its tracking server is down" for name in "bc"]


def test_sync_goes_to_the_server_that_the_study_asked_for(outputs, capsys):
    """One whose password was taken out must be named."""
    for name, uri, why in (("a", "foo://x", "unsupported URI"), ("b", "http://me:hush-hush@127.0.0.1:9", "--uri URI")):
        write_killed(outputs, name=name, tracking={"name": "mlflow", "experiment": "servebench", "uri": uri})
        assert sync([name]) == 1
        printed = capsys.readouterr().err
        assert why in printed
        assert "hush" not in printed


def test_sync_without_studies(outputs, capsys):
    assert sync() == 0
    assert capsys.readouterr().out == "no studies to send\n"


READINGS = [
    Reading(t_ns=BASE_NS + step * STEP_NS, source="s", name=name, raw_name=name, labels="", value=value * step)
    for step in range(12)
    for name, value in (("requests_running", 0.1), ("generation_tokens", 2.0), ("gpu_energy_j", 3.0))
]
SCHEMA = {"type": "object"}


@pytest.mark.slow
def test_a_recovered_point_has_the_columns_and_warnings_of_the_measured_one(folder):
    """From the same spool, telemetry and stored facts, but for what only the client knew."""
    spool = write_spool(folder, "c1-r0", 3, 3)
    facts = load_facts(spool)
    first = next(iter(facts.planned))
    requests = [Request(request_id=first, prompt="p", schema=SCHEMA)]
    tokenizer = ApproximateTokenizer()
    facts = replace(facts, engine_version="1.2", cache_state="warm", tokenizer_name=tokenizer.name, tokenizer_exact=False,
                    references=references_of(requests))  # fmt: skip
    spool.with_suffix(".json").write_bytes(dump_facts(facts))
    add_telemetry(folder, READINGS, run_id="s/00", point="c1-r0")
    settings = jobs_of(WORDS, registry())[0].settings
    report = PhaseReport(
        started_ns=BASE_NS, ended_ns=BASE_NS + 10 * STEP_NS, planned=3, sent=3, elapsed_s=0.1, cpu_s=0.05,
        loop_lag_ms_p99=0.2, loop_lag_ms_max=0.3, clock_step_ns=0, stamp_source="kernel",
    )  # fmt: skip
    level = plan_levels(settings.load, 0)[0]
    measured = build_point(
        point_evidence(
            settings=settings, level=level, facts=facts, records=records_of([spool], facts), report=report,
            requests=requests, readings=READINGS, tokenizer=tokenizer,
        )
    ).judged_row  # fmt: skip
    assert recover() == 0
    (recovered,) = read_rows(folder)
    # the label is that of the study's plan
    assert recovered == replace(measured, label="openai", **dict.fromkeys(UNKNOWN_COLUMNS))
    assert (recovered.json_compliance, recovered.cache_state, recovered.telemetry_samples) == (0.0, "warm", 12)
    assert recovered.energy_j_per_token is not None
    assert "prompt_size_approximate" in recovered.doubts
