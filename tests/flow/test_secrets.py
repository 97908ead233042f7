"""Keys planted wherever one can be, and searched for in everything that is written, said and shown."""

import json
import sqlite3
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.commands import COMMAND_LIMIT_S, servebench_started
from support.waiting import wait_until

BASE = (
    *("workload=unique", "workload.output_tokens=4", "load.concurrency=[2]", "load.requests=8"),
    *("load.warmup_requests=0", "load.self_check=never", "study.name=s"),
)
EMULATED = ("engine=vllm", "launch=emulated", "launch.time_scale=0.02", "gpu=rtx5090", "model=qwen2.5-7b-instruct")

PLUGIN = """
import os
from servebench.plugin import TelemetrySource, hookimpl

class Leaky(TelemetrySource):
    name = "leaky"
    def open(self):
        raise RuntimeError("cannot log in with password=" + os.environ["PLUGIN_PASSWORD"])
    def sample(self): return None
    def readings(self, t_ns, sample): return []
    def close(self): pass

@hookimpl
def servebench_telemetry():
    return [Leaky]
"""


def secret(name):
    """Of no known form, so that it is found by where it stands alone."""
    return f"planted{name}{'0123456789'}zq"


def found_in(folder, needles):
    """Files below the folder with a needle in them: as bytes, and in the columns of tables, which are compressed."""
    import pandas as pd

    found: dict[str, list[str]] = {}
    for path in folder.rglob("*"):
        if not path.is_file() or path.suffix == ".py":
            continue
        data = path.read_bytes()
        if path.suffix == ".parquet":
            data += pd.read_parquet(path).to_json().encode()
        if path.suffix == ".db":
            data += "\n".join(sqlite3.connect(path).iterdump()).encode()
        hits = [needle for needle in needles if needle.encode() in data]
        if hits:
            found[str(path.relative_to(folder))] = hits
    return found


@pytest.fixture
def watched(tmp_path):
    """Runs the command and looks at the command lines of all processes below it while it runs."""

    def run(*words, env=None):
        environment = {"HOME": str(tmp_path), "SERVEBENCH_CACHE": str(tmp_path / "cache"), **(env or {})}
        with (tmp_path / "out.txt").open("w") as out, (tmp_path / "err.txt").open("w") as err:
            seen: dict[int, str] = {}
            with servebench_started(tmp_path, *words, env=environment, stdout=out, stderr=err) as process:

                def look():
                    mine = psutil.Process(process.pid).children(recursive=True)
                    for pid in (process.pid, *(child.pid for child in mine)):
                        with suppress(OSError):
                            seen[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                    return process.poll() is not None

                wait_until(look, limit_s=COMMAND_LIMIT_S)
        said = (tmp_path / "out.txt").read_text() + (tmp_path / "err.txt").read_text()
        return process.returncode, said, seen

    return run


@pytest.mark.slow
def test_what_the_user_gives_is_nowhere(watched, tmp_path):
    """Environment, engine.env, a tracking server's password, a token in a URL, a plugin's exception, another command."""
    package = tmp_path / "site" / "leaky"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PLUGIN)
    info = tmp_path / "site" / "leaky-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[servebench]\nleaky = leaky\n")
    planted = {name: secret(name) for name in ("HF", "ENGINE", "MLFLOW", "URL", "PLUGIN", "EXTRA", "AWS")}
    code, said, seen = watched(
        *EMULATED,
        *BASE,
        f"++engine.env.HF_TOKEN={planted['HF']}",
        f"++engine.env.DB_PASSWORD={planted['ENGINE']}",
        f"++engine.extra_args.api-key={planted['EXTRA']}",
        f"tracking.uri=http://user:{planted['MLFLOW']}@127.0.0.1:9/",
        f"++engine.env.MODEL_URL=https://me:{planted['URL']}@example.invalid/model",
        env={
            "PLUGIN_PASSWORD": planted["PLUGIN"],
            "AWS_SECRET_ACCESS_KEY": planted["AWS"],
            "PYTHONPATH": str(tmp_path / "site"),
        },
    )
    assert code == 0, said
    manifest = json.loads((tmp_path / "outputs/s/00_vllm_unique/manifest.json").read_text())
    assert "cannot log in" in manifest["telemetry"]["missing"]["leaky"]  # the plant was there to be found
    needles = list(planted.values())
    assert found_in(tmp_path, needles) == {}
    assert [needle for needle in needles if needle in said] == []
    # the first moments of a process show what was typed; the last look must not
    assert {pid: line for pid, line in seen.items() if any(needle in line for needle in needles)} == {}


@pytest.mark.slow
def test_what_a_server_repeats_is_nowhere(endpoint, watched, tmp_path):
    """A server that says the key it was given, in its errors and in its answers; the tracker is a database."""
    key = secret("KEY")
    url, behaviour = endpoint(key=key, fail_every=3, echo_key=True)
    code, said, _ = watched(
        *("engine=openai", "launch=attach", f"launch.base_url={url}", "model.name=tiny"),
        *(*BASE, "launch.api_key_env=MY_OWN"),
        env={"MY_OWN": key},
    )
    assert code == 0, said
    assert len(behaviour.seen) > 8
    assert found_in(tmp_path, [key]) == {}
    assert key not in said


@pytest.mark.slow
def test_what_an_engine_prints_is_nowhere(watched, tmp_path):
    """An engine that writes its settings, keys included, to its log: the log that is kept has none."""
    key = secret("LOG")
    engine = tmp_path / "vllm"
    engine.write_text(
        '#!/bin/sh\n[ "$1" = serve ] && echo "args: api_key=[$VLLM_API_KEY] twice $VLLM_API_KEY" && exit 1\n'
    )
    engine.chmod(0o755)
    code, said, seen = watched(
        *("engine=vllm", f"engine.executable={engine}", "model.name=tiny", *BASE, "tracking=none"),
        f"++engine.env.VLLM_API_KEY={key}",
    )
    assert code == 4, said
    log = (tmp_path / "outputs/s/00_vllm_unique/engine.log").read_text()
    assert "twice [redacted]" in log
    assert found_in(tmp_path, [key]) == {}
    assert key not in said
    assert not any(key in line for line in seen.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("launch=attach", "engine=openai", "model.name=m", "launch.base_url=http://h:1/v1?api_key={}"),
        ("launch=attach", "engine=openai", "model.name=m", "launch.base_url=http://u:{}@h:1/v1"),
        ("engine=llamacpp", "++engine.extra_args.api-key={}"),
        ("tracking.uri=ftp://u:{}@h/", "engine=openai", "launch=attach", "model.name=m"),
        ("sync", "--uri=http://u:{}@127.0.0.1:9/"),
        ("engine.api_key={}",),
    ],
    ids=["query", "userinfo", "flag", "tracker", "sync", "no such key"],
)
def test_a_mistake_is_told_without_the_key(watched, words):
    key = secret("TYPED")
    code, said, _ = watched(*(word.format(key) for word in words))
    assert key not in said
    assert "Traceback" not in said
    assert code != 0 or "no studies" in said
