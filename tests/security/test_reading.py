"""Hostile files neither fill the memory nor hang a command: one line says which file, what is too large, and the limit."""

import contextlib
import gzip
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servebench.load.plan.traces import read_arrivals
from servebench.store.prompts import read_prompts
from servebench.util import bounded_file, bounded_parquet
from servebench.util.errors import ConfigError, StoreError
from servebench.workload.sources.dataset import load_dataset_rows
from support.studies import SimulatedEngine, SimulatedLoad

MEMORY_MAX = 1_500 << 20
LIMIT_S = 600
"""Only catches a command that hangs."""


MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10))
sys.exit(code)
"""
"""Runs a command and writes how much memory it took: the test's own process has had other children."""


def run_bounded(cwd, *words, memory_max=MEMORY_MAX):
    """Run servebench and return its exit code, output and errors, which are without a traceback; it takes little memory."""
    memory = cwd / "memory.txt"
    command = [sys.executable, "-m", "servebench", *map(str, words)]
    process = subprocess.Popen(
        [sys.executable, "-c", MEASURED, memory, *command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert "Traceback" not in err, err
    assert int(memory.read_text()) < memory_max
    return process.returncode, out, err


def bomb_rows():
    return pa.table({"run_id": pa.DictionaryArray.from_arrays(pa.array(np.zeros(50_000_000, "int8")), ["r"])})


def repeated(value):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(300_000, "int32")), [value])


TABLES = {
    "constants": lambda: pa.table({"n": pa.array(np.zeros(40_000_000, "int64"))}),
    "nulls": lambda: pa.table({"n": pa.nulls(40_000_000)}),
    "one long text many times": lambda: pa.table({"s": repeated("x" * 100_000)}),
    "long lists": lambda: pa.table({"l": [["y" * 1000] * 4000] * 100}),
    "one long text": lambda: pa.table({"s": ["y" * 300_000_000]}),
    "bytes": lambda: pa.table({"b": repeated(b"x" * 100_000)}),
    "in structs": lambda: pa.table({"b": [{"deep": {"er": "x" * 5_000}}] * 60_000}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_small_table_that_describes_a_large_one_is_refused(tmp_path, name):
    path = tmp_path / "bomb.parquet"
    pq.write_table(TABLES[name](), path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    before = pa.total_allocated_bytes()
    with pytest.raises(OSError, match=r"rows take .* of memory or more, and the limit is 128 MiB"):
        bounded_parquet.read_parquet(path)
    assert pa.total_allocated_bytes() - before < bounded_parquet.TABLE_BYTES_MIN


def test_what_texts_share_by_prefix_is_counted_too(tmp_path):
    path = tmp_path / "bomb.parquet"
    table = pa.table({"s": ["y" * length for length in range(0, 30_000, 3)]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, column_encoding={"s": "DELTA_BYTE_ARRAY"})
    with pytest.raises(OSError, match="the limit is 128 MiB"):
        bounded_parquet.read_parquet(path)


def test_an_ordinary_table_is_read_whatever_repeats_in_it(tmp_path):
    path = tmp_path / "requests.parquet"
    table = pa.table({"model": ["m"] * 40_000, "id": [f"r{i}" for i in range(40_000)], "text": ["answer " * 100] * 40_000,
                      "l": [["a", None], []] * 20_000, "s": [{"a": "x"}, None] * 20_000, "none": pa.nulls(40_000)})  # fmt: skip
    pq.write_table(table, path, compression="zstd")
    assert bounded_parquet.read_parquet(path).equals(table)
    assert bounded_parquet.read_parquet(path, columns=["id"]).column_names == ["id"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "show", "export", "ls"])
def test_a_run_with_a_bomb_in_place_of_a_table(make_study, command):
    study = make_study((SimulatedEngine(), SimulatedLoad(levels=(1, 4), requests=20)))
    run = next(path for path in study.iterdir() if path.is_dir())
    for name in ("points", "requests", "telemetry", "quality"):
        pq.write_table(bomb_rows(), run / f"{name}.parquet", compression="zstd")
    # lists read it first
    (run / "points.csv").unlink()
    words = {"ls": ["ls"], "export": ["export", study.name, "--format", "csv"]}.get(command, [command, study.name])
    code, out, err = run_bounded(study.parent.parent, *words)
    assert code in (0, 6)
    if command in ("show", "ls"):
        assert "points.parquet" in out
        assert "the limit is 32 MiB" in " ".join((out + err).split())


def sparse(path):
    with path.open("wb") as file:
        file.truncate(40 << 30)


def deep(path, sign="[", depth=200_000):
    path.write_text(sign * depth)


RESULT = '{"model_id":"m","mean_ttft_ms":1,"completed":3,"max_concurrency":1,"x":'


def filled(head, unit, tail, size=126 << 20):
    """Return a text just below the limit of an imported file that repeats the unit."""
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


IMPORTS = {
    "fifo": os.mkfifo,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "sparse": sparse,
    "deep": deep,
    "deep and whole": lambda path: path.write_text('{"model_id":' * 5_000 + "1" + "}" * 5_000),
    "just too deep": lambda path: path.write_text('{"backend":' * 300 + "1" + "}" * 300),
    "huge number": lambda path: path.write_text(
        '{"model_id": "m", "mean_ttft_ms": 1, "completed": 1' + "0" * 400 + "}"
    ),
    "many objects": lambda path: path.write_text("{}\n" * 3_000_000),
    "folder": lambda path: path.mkdir(),
    "binary": lambda path: path.write_bytes(os.urandom(4096)),
    "one long line": lambda path: path.write_text("x" * 10_000_000),
    **{
        f"many {name}": lambda path, parts=parts: path.write_text(filled(*parts))
        for name, parts in {
            "short texts": (f"{RESULT}[", '"ab",', '"ab"]}'),
            "numbers": (f"{RESULT}[", "1.5,", "1]}"),
            "texts with a wide letter": (f"{RESULT}[", '"ab",', '"😀"]}'),
            "texts under one key": (f"{RESULT}{{", '"k":"v",', '"k":"v"}}'),
            "lines of texts": ("", '"ab"\n', "1\n"),
            "lines of numbers": ("", "12345678\n", "1\n"),
            "empty lines": ("{}\n{", "\n\n \n", "}"),
        }.items()
    },
    "many keys": lambda path: path.write_text(
        RESULT + "{" + "".join(f'"{n}":{n},' for n in range(6_000_000)) + '"x":1}}'
    ),
    "zip": lambda path: path.write_bytes(gzip.compress(bytes(50 << 20))),
}


@pytest.mark.slow
def test_a_large_result_file_with_the_time_of_each_token_is_read(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(RESULT + "[" + "0.0123456789012345," * 5_000_000 + "1]}")
    code, _, err = run_bounded(tmp_path, "import", path)
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPORTS)
def test_an_import_that_is_no_result_file_is_one_line(tmp_path, name):
    path = tmp_path / "result.json"
    IMPORTS[name](path)
    code, out, err = run_bounded(tmp_path, "import", path, memory_max=1_000 << 20)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "result.json" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", ["1e308", "1e15", '"1e400"', "-1e308", "1e999", "NaN", "true", '"x"', "[1]", "18446744073709551616"]
)
@pytest.mark.parametrize("key", ["completed", "mean_ttft_ms", "max_concurrency", "duration", "total_input_tokens"])
def test_numbers_that_no_measurement_gives(tmp_path, key, value, capsys):
    from servebench.cli.main import dispatch

    whole = {
        "model_id": "m\ud800\x1b[31m",
        "backend": "vllm",
        "completed": 2,
        "mean_ttft_ms": 1.0,
        "max_concurrency": 1,
        "duration": 1.0,
    }
    text = json.dumps({**whole, key: "VALUE"}).replace('"VALUE"', value)
    (tmp_path / "r.json").write_text(text)
    with contextlib.suppress(StoreError):
        assert dispatch(["import", str(tmp_path / "r.json"), "--outputs", str(tmp_path / "o")]) == 0
        assert dispatch(["report", "last", "--outputs", str(tmp_path / "o")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("make", [os.mkfifo, sparse, deep, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize(
    "file", ["manifest.json", "run.json", "study.json", "points.parquet", "points.csv", "requests.parquet"]
)
@pytest.mark.timeout(LIMIT_S)
def test_a_hostile_file_in_a_study_hides_nothing_else(make_study, make, file, capsys):
    from servebench.cli.main import dispatch
    from servebench.store.overview import listed_rows
    from servebench.store.studies import load_outputs

    study = make_study((SimulatedEngine(), SimulatedLoad(levels=(1, 4), requests=20)))
    run = next(path for path in study.iterdir() if path.is_dir())
    path = (study if file == "study.json" else run) / file
    path.unlink(missing_ok=True)
    make(path)
    for words in (["ls"], ["show", study.name], ["report", study.name]):
        with contextlib.suppress(StoreError):
            assert dispatch([*words, "--outputs", str(study.parent)]) == 0
    assert all(run.point_rows or run.faults for one in load_outputs(study.parent, listed_rows) for run in one.runs)


ALIASES = "a: &a [x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in itertools.pairwise("abcdefghijk")
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: " + "[" * 5_000, "maximum nesting depth"),
        (ALIASES, "aliases"),
        ("a: " * 3, "YAML"),
    ],
)  # fmt: skip
def test_rules_that_are_a_bomb(tmp_path, text, says):
    from servebench.analysis.recommendation.rules import load_rules

    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_rules(tmp_path / "rules.yaml")
    assert "\n" not in str(caught.value)


def test_aliases_that_repeat_little_are_read():
    assert bounded_file.load_yaml("a: &x [1, 2]\nb: *x\nc: *x") == {"a": [1, 2], "b": [1, 2], "c": [1, 2]}


def test_stored_prompts_that_unpack_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("servebench.store.prompts.PROMPTS_BYTES_MAX", 1 << 20)
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(StoreError, match=r"p\.json\.gz: .*unpacks to more than 1 MiB"):
        read_prompts(tmp_path / "p.json.gz")


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_data_sets_and_traces_of_any_size(tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    sparse(path)
    with pytest.raises(ConfigError, match=r"cannot be read|not a Parquet"):
        load_dataset_rows(str(path))
    if suffix != ".json":
        with pytest.raises(ConfigError, match=r"cannot be read|not a requests"):
            read_arrivals(str(path))


def test_a_result_file_of_ordinary_size_is_read(tmp_path, capsys):
    from servebench.cli.main import dispatch

    (tmp_path / "r.json").write_text(
        json.dumps({"model_id": "Modell-ü-模型", "backend": "vllm", "completed": 2, "mean_ttft_ms": 1.5})
    )
    assert dispatch(["import", str(tmp_path / "r.json"), "--outputs", str(tmp_path / "o")]) == 0
    assert dispatch(["ls", "--outputs", str(tmp_path / "o")]) == 0
    assert "Modell-ü-模型" in "".join(capsys.readouterr().out.split())
