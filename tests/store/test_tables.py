"""Requests and points as tables: typed, in the public order, whole after any crash."""

import csv
import math
import os
import random
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt, Point
from servebench.store import tables
from servebench.store.layout import RunFolder
from servebench.store.tables import RecordWriter, add_points, read_frame, read_records, read_requests, write_points
from servebench.util.errors import StoreError

REQUESTS_TEXT = """
run_id point request_id session_id scheduled_ns sent_ns first_event_ns last_event_ns ended_ns event_ns event_tokens
prompt_tokens cached_tokens output_tokens counted_by outcome http_status error
"""
POINTS_TEXT = """
run_id engine engine_version launch model gpu gpu_count workload concurrency rate repeat requests_planned requests_ok
requests_failed window_s output_throughput_tok_s output_throughput_whole_run_tok_s request_throughput_req_s goodput_req_s
LATENCIES lateness_ms_p99 prefix_cache_hit_rate json_compliance energy_j_per_token cost_usd_per_mtok emulated verdict doubts
"""
LATENCIES = " ".join(
    f"{name}_ms_{statistic}"
    for name in ("ttft", "itl", "tpot", "e2e")
    for statistic in ("mean", "p50", "p90", "p95", "p99", "min", "max")
)
PUBLIC_REQUESTS = REQUESTS_TEXT.split()
PUBLIC_POINTS = POINTS_TEXT.replace("LATENCIES", LATENCIES).split()


def folder_in(path):
    folder = RunFolder(path / "run")
    folder.path.mkdir()
    return folder


def ids(folder):
    return list(read_requests(folder)["request_id"])


def test_request_columns_are_typed_and_in_the_public_order(tmp_path, make):
    """The public columns first and in their order; stamps are 64-bit integers, lists are lists, and null is null."""
    folder = folder_in(tmp_path)
    writer = RecordWriter(folder)
    writer.append(
        [
            make(event_ns=[10**18 + 2, 10**18 + 3]),
            make(request_id="b", sent_ns=None, event_ns=[], output_tokens=None, http_status=None),
        ]
    )
    writer.close()
    schema = pq.read_schema(folder.requests)
    assert schema.names[: len(PUBLIC_REQUESTS)] == PUBLIC_REQUESTS
    assert all(schema.field(n).type == pa.int64() for n in schema.names if n.endswith("_ns") and n != "event_ns")
    assert schema.field("event_ns").type.value_type == pa.int64()
    assert schema.field("error").type == pa.string()
    rows = pq.read_table(folder.requests).to_pylist()
    assert rows[0]["event_ns"] == [10**18 + 2, 10**18 + 3]
    assert (rows[0]["event_tokens"], rows[1]["sent_ns"], rows[1]["output_tokens"]) == (None, None, None)
    assert schema.metadata[b"schema_version"] == b"2"
    assert "text" not in schema.names


def test_answers_are_kept_beside(tmp_path, make):
    """The texts of the answers are in a table of their own, row by row with the requests."""
    folder = folder_in(tmp_path)
    writer = RecordWriter(folder)
    writer.append([make(text="héllo\0", reasoning="so"), make(request_id="b", text="")])
    writer.close()
    assert pq.read_table(folder.answers).to_pylist()[0] == {
        "run_id": "s/00", "point": "c1-r0", "request_id": "a", "text": "héllo\0", "reasoning": "so",
    }  # fmt: skip


def test_records_come_back_as_they_were(tmp_path, make):
    """From batches and from the merged table; only the texts are left out."""
    folder = folder_in(tmp_path)
    records = [make(text=""), make(request_id="b", event_tokens=[1, 2], text="", error="x", outcome="reset")]
    writer = RecordWriter(folder)
    writer.append(records)
    assert read_records(folder) == records
    writer.close()
    assert read_records(folder) == records


def test_batches_are_readable_at_once_and_merged_in_order(tmp_path, make):
    """What `append` wrote is read before `close`; afterwards one file is left, in the order of writing."""
    folder = folder_in(tmp_path)
    writer = RecordWriter(folder)
    for number in range(12):
        writer.append([make(request_id=str(number))])
        assert ids(folder) == [str(n) for n in range(number + 1)]
    writer.append([])
    writer.close()
    writer.close()
    assert ids(folder) == [str(n) for n in range(12)]
    assert not folder.parts.exists()
    later = RecordWriter(folder)
    later.append([make(request_id="later")])
    later.close()
    assert ids(folder)[-2:] == ["11", "later"]
    assert pq.read_table(folder.answers).num_rows == 13


def test_no_records_no_files(tmp_path):
    """A run that sent nothing has no tables, and reading them gives empty ones with their columns."""
    folder = folder_in(tmp_path)
    RecordWriter(folder).close()
    assert list(folder.path.iterdir()) == []
    assert list(read_requests(folder).columns)[:4] == ["run_id", "point", "request_id", "session_id"]
    assert read_records(folder) == []
    assert read_frame(folder.points).empty


CHILD = """
import itertools, sys
from pathlib import Path
from servebench.contracts.results import Record
from servebench.store.layout import RunFolder
from servebench.store.tables import RecordWriter
folder = RunFolder(Path(sys.argv[1]))
empty = dict.fromkeys(Record.__slots__)
numbers = itertools.count()
while True:
    writer = RecordWriter(folder)
    for number in itertools.islice(numbers, 3):
        writer.append([Record(**{**empty, "run_id": "r", "point": "p", "request_id": str(number), "warmup": False,
            "scheduled_ns": 1, "ended_ns": 2, "event_ns": list(range(2000)), "reads_merged": 0, "outcome": "ok",
            "stamp_source": "kernel", "text": "t" * 1000, "reasoning": ""})])
        print(number, flush=True)
    writer.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kill_9_loses_and_doubles_nothing(tmp_path, seed):
    """Killed at any moment, in the middle of appending or merging: all that was appended is there once, also after the
    merge is done again."""
    folder = folder_in(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder.path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    read = random.Random(seed).randint(1, 12)
    for _ in range(read):
        child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    told = read + len(child.communicate()[0].split())
    found = ids(folder)
    # the last one may have been written and not told any more
    assert found in ([str(n) for n in range(told)], [str(n) for n in range(told + 1)])
    RecordWriter(folder).close()
    assert ids(folder) == found
    assert [row["request_id"] for row in pq.read_table(folder.answers, columns=["request_id"]).to_pylist()] == found
    assert not folder.parts.exists()


@pytest.mark.parametrize("target", ["answers", "requests", "rmtree"])
def test_a_merge_that_was_cut_off_is_done_again(tmp_path, make, monkeypatch, target):
    """Whether it ended before one table, between the two, or before the batches were removed."""
    folder = folder_in(tmp_path)
    writer = RecordWriter(folder)
    for name in "ab":
        writer.append([make(request_id=name)])
    real = RecordWriter._merge

    def merge(self, kind, *rest):
        if kind == target:
            raise StoreError("cut off")
        real(self, kind, *rest)

    def rmtree(path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(RecordWriter, "_merge", merge)
        if target == "rmtree":
            patched.setattr(tables.shutil, "rmtree", rmtree)
        with pytest.raises(StoreError, match=r"cut off$|input/output error$"):
            writer.close()
    assert ids(folder) == ["a", "b"]
    RecordWriter(folder).append([make(request_id="c")])
    assert ids(folder) == ["a", "b", "c"]
    RecordWriter(folder).close()
    assert ids(folder) == ["a", "b", "c"]
    assert pq.read_table(folder.answers).num_rows == 3


def test_an_answer_batch_alone_is_no_batch(tmp_path, make):
    """Killed between the two files of a batch: it was never there."""
    folder = folder_in(tmp_path)
    writer = RecordWriter(folder)
    writer.append([make()])
    (requests,) = folder.parts.glob("requests-*")
    requests.unlink()
    again = RecordWriter(folder)
    again.append([make(request_id="b")])
    again.close()
    assert ids(folder) == ["b"]
    assert pq.read_table(folder.answers).num_rows == 1


def test_a_full_disk_keeps_the_batches(tiny_disk, make):
    """`append` and `close` say that the disk is full; all that was appended stays readable and is merged later."""
    folder = folder_in(tiny_disk)
    writer = RecordWriter(folder)
    noise = random.Random(1)
    written = 0
    with pytest.raises(StoreError, match=r"the disk is full$"):  # noqa: PT012
        while True:
            stamps = [noise.getrandbits(60) for _ in range(1000)]
            writer.append([make(request_id=str(written), event_ns=stamps)])
            written += 1
    assert 1 < written < 30
    assert ids(folder) == [str(n) for n in range(written)]
    with pytest.raises(StoreError, match=r"the disk is full$"):
        writer.close()
    assert ids(folder) == [str(n) for n in range(written)]
    assert not list(folder.path.rglob("*.tmp"))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no table at all, but long enough to be one"])
def test_a_broken_table_is_one_line(tmp_path, data):
    """A file that is no table is named, with a reason."""
    folder = folder_in(tmp_path)
    folder.requests.write_bytes(data)
    folder.points.write_bytes(data)
    for read in (read_requests, read_records, lambda folder: read_frame(folder.points)):
        with pytest.raises(StoreError, match=r"^/.*\.parquet cannot be read: [^\n]+$"):
            read(folder)
    with pytest.raises(StoreError, match=r"points\.parquet cannot be read"):
        add_points(folder, [Point(row=PointRow(concurrency=1))])
    assert folder.points.read_bytes() == data


def test_secrets_in_errors_are_not_stored(tmp_path, make, monkeypatch):
    """A server that repeats the key it was given does not bring it into the table."""
    monkeypatch.setenv("SOME_API_KEY", "very-secret-1")
    folder = folder_in(tmp_path)
    writer = RecordWriter(folder)
    writer.append([make(error="wrong key very-secret-1"), make(error="plain")])
    writer.close()
    assert list(read_requests(folder)["error"]) == ["wrong key [redacted]", "plain"]


def full_row(**changes):
    row = {
        "run_id": "s/00",
        "engine": "x",
        "launch": "process",
        "model": "m",
        "gpu": "none",
        "gpu_count": 0,
        "workload": "w",
        "concurrency": 1,
        "repeat": 0,
        "requests_planned": 5,
        "requests_ok": 5,
        "requests_failed": 0,
        "emulated": False,
        "point": "c1-r0",
    }
    return PointRow.from_dict(row | changes)


def test_point_columns_are_in_the_public_order(tmp_path):
    """The public columns in their order (further ones between and behind); verdict and doubts stand where they belong."""
    folder = folder_in(tmp_path)
    write_points(folder, [Point(row=full_row())])
    names = pq.read_schema(folder.points).names
    assert [name for name in names if name in PUBLIC_POINTS] == PUBLIC_POINTS
    assert folder.points_csv.read_text().splitlines()[0].split(",") == [*names, "schema_version"]
    assert names[names.index("emulated") + 1 :][:2] == ["verdict", "doubts"]


def test_missing_is_null_and_never_zero(tmp_path):
    """Null in Parquet, empty in CSV; a column that is null everywhere has the type it has elsewhere."""
    folder = folder_in(tmp_path)
    doubts = (
        Doubt(code="errors", message="m", remedy="r"),
        Doubt(code="too_short", message="m", remedy="r", void=True),
    )
    write_points(folder, [Point(row=full_row(goodput_req_s=None, window_s=0.0), doubts=doubts)])
    row = pq.read_table(folder.points).to_pylist()[0]
    assert (row["goodput_req_s"], row["window_s"], row["verdict"]) == (None, 0.0, "void")
    assert row["doubts"] == ["errors", "too_short"]
    schema = pq.read_schema(folder.points)
    assert schema.field("engine_version").type == pa.string()
    assert schema.field("goodput_req_s").type == pa.float64()
    assert schema.field("level_reached").type == pa.bool_()
    with folder.points_csv.open(newline="") as file:
        (cells,) = csv.DictReader(file)
    assert (cells["goodput_req_s"], cells["window_s"], cells["emulated"]) == ("", "0.0", "false")
    assert (cells["verdict"], cells["doubts"], cells["engine_version"]) == ("void", "errors;too_short", "")


def test_points_of_different_shape_share_their_columns(tmp_path):
    """One file has one set of columns: a point that lacks one has null there; a number keeps its precision."""
    folder = folder_in(tmp_path)
    stamp = 1_763_000_000_123_456_789
    write_points(folder, [Point(row=full_row(window_start_ns=stamp)), Point(row=full_row(extra=1.5))])
    rows = pq.read_table(folder.points).to_pylist()
    assert list(rows[0]) == list(rows[1])
    assert (rows[0]["extra"], rows[1]["extra"]) == (None, 1.5)
    assert (rows[0]["window_start_ns"], rows[1]["window_start_ns"]) == (stamp, None)


def test_points_written_again_replace_and_added_ones_follow(tmp_path):
    """`write_points` replaces the file, `add_points` keeps what is there as it is, the verdict too."""
    folder = folder_in(tmp_path)
    void = Doubt(code="errors", message="m", remedy="r", void=True)
    write_points(folder, [])
    assert not folder.points.exists()
    write_points(folder, [Point(row=full_row(concurrency=9))])
    write_points(folder, [Point(row=full_row(), doubts=(void,))])
    add_points(folder, [Point(row=full_row(concurrency=2, engine_version="1.2", level_reached=True))])
    frame = read_frame(folder.points)
    assert list(frame["concurrency"]) == [1, 2]
    assert list(frame["verdict"]) == ["void", "valid"]
    assert list(frame["doubts"].map(list)) == [["errors"], []]
    assert len(folder.points_csv.read_text().splitlines()) == 3


def test_texts_with_commas_and_quotes_survive_csv(tmp_path):
    """What a model is called must not shift the columns."""
    folder = folder_in(tmp_path)
    write_points(folder, [Point(row=PointRow(model='a,"b"\nc', extra={"x": math.pi}))])
    with folder.points_csv.open(newline="") as file:
        (cells,) = csv.DictReader(file)
    assert (cells["model"], float(cells["x"])) == ('a,"b"\nc', math.pi)


def test_only_the_columns_and_the_request_that_are_needed_are_read(tmp_path, make):
    """From batches and from the merged table; a column that an older file lacks is null."""
    folder = folder_in(tmp_path)
    writer = RecordWriter(folder)
    for number in range(3):
        writer.append([make(request_id=str(number), cached_tokens=number)])
    for _ in range(2):
        found = read_requests(folder, ["request_id", "cached_tokens"], "1")
        assert found.to_dict("records") == [{"request_id": "1", "cached_tokens": 1}]
        assert read_requests(folder, ["request_id"], "nobody").empty
        writer.close()
    old = pq.read_table(folder.requests).drop_columns(["cached_tokens"])
    pq.write_table(old, folder.requests)
    assert read_requests(folder, ["request_id", "cached_tokens"])["cached_tokens"].isna().all()


WITHOUT_PANDAS = """
import sys
from pathlib import Path
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point, Record
from servebench.store.layout import RunFolder
from servebench.store.tables import RecordWriter, read_records, read_requests, stored_counts, write_points
folder = RunFolder(Path(sys.argv[1]))
writer = RecordWriter(folder)
facts = {"run_id": "s/r", "point": "c1", "request_id": "a", "outcome": "ok", "stamp_source": "kernel"}
writer.append([Record(**facts, event_ns=[1, 2], scheduled_ns=0, ended_ns=3)])
writer.close()
write_points(folder, [Point(row=PointRow(point="c1"))])
assert stored_counts(folder) == {("c1", False): 1}
assert read_records(folder)[0].event_ns == [1, 2]
assert "pandas" not in sys.modules
print(len(read_requests(folder)))
"""


def test_tables_are_written_and_counted_without_pandas(tmp_path):
    """Its import costs more CPU than the tables of a short run; a frame can be had afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "1\n", done.stderr
