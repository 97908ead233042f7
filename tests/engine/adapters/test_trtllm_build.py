"""Conversion and build of a TensorRT engine, with small scripts in place of TensorRT-LLM's programs."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from servebench.contracts.engine import LaunchContext
from servebench.contracts.settings import GpuSettings, LaunchSettings, ModelSettings
from servebench.engine.adapters import trtllm_build
from servebench.engine.adapters.trtllm import TrtllmEngine
from servebench.engine.adapters.trtllm_plan import TrtllmSettings, build_plan
from servebench.engine.launchers.process import ProcessLauncher
from servebench.engine.supervisor.ports import free_port
from servebench.testing import ServerBehavior, write_stand_in
from servebench.util.errors import EngineError
from support.waiting import wait_until

ENGINE = TrtllmEngine()

CONVERT = """#!/bin/sh
echo "convert $*" >> {calls}
while [ $# -gt 0 ]; do [ "$1" = --output_dir ] && out="$2"; shift; done
mkdir -p "$out" && touch "$out/rank0.safetensors"
"""

BUILD = """#!/bin/sh
echo "build $*" >> {calls}
while [ $# -gt 0 ]; do
  [ "$1" = --output_dir ] && out="$2"
  [ "$1" = --checkpoint_dir ] && from="$2"
  shift
done
[ -f "$from/rank0.safetensors" ] || {{ echo "no checkpoint in $from"; exit 2; }}
{more}
mkdir -p "$out" && echo built > "$out/rank0.engine"
"""


class Bench:
    """A folder with a model, scripts in place of TensorRT-LLM's programs, and their calls."""

    def __init__(self, folder):
        self.folder = folder
        self.calls = folder / "calls"
        self.model = folder / "models" / "llama"
        self.model.mkdir(parents=True)
        (self.model / "model.safetensors").write_text("weights")
        self.script("convert_checkpoint", CONVERT)
        self.build_with("")
        self.version("1.2.1")

    def script(self, name, text, **more):
        path = self.folder / "venv" / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(calls=self.calls, **more))
        path.chmod(0o755)

    def build_with(self, more):
        self.script("trtllm-build", BUILD, more=more)

    def version(self, version):
        packages = self.folder / "venv" / "lib" / "python3.11" / "site-packages"
        for old in packages.glob("*"):
            old.rmdir()
        (packages / f"tensorrt_llm-{version}.dist-info").mkdir(parents=True)

    def context(self, model=None, **settings):
        programs = self.folder / "venv" / "bin"
        given = {
            "backend": "tensorrt",
            "convert_script": str(programs / "convert_checkpoint"),
            "builder": str(programs / "trtllm-build"),
            **settings,
        }
        return LaunchContext(
            engine=TrtllmSettings(name="trtllm", **given),
            model=model or ModelSettings(name="org/llama", path=str(self.model)),
            gpu=GpuSettings(name="h100", count=1),
            port=8123,
            cache_dir=self.folder / "cache",
        )

    def prepare(self, context):
        said = []
        ENGINE.prepare(context, said.append)
        return said

    @property
    def steps(self):
        return [line.split()[0] for line in self.calls.read_text().splitlines()] if self.calls.exists() else []


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def served(context):
    """Return the folder that is passed to the server."""
    argv = ENGINE.command(context).argv
    return Path(argv[argv.index("--backend") - 1])


def test_the_commands_are_composed_from_settings_alone(bench):
    """Each shared setting goes to its step; nothing is written or started."""
    context = bench.context(
        tensor_parallel_size=2, max_model_len=4096, max_num_seqs=16, dtype="bfloat16", gpu_memory_fraction=0.5,
        convert_args={"use_weight_only": True}, build_args={"max_num_tokens": 8192}, prefix_caching=False,
        env={"A": "1"},
    )  # fmt: skip
    convert, build = ENGINE.prepare_commands(context)
    programs = bench.folder / "venv" / "bin"
    assert convert.argv == (
        str(programs / "convert_checkpoint"), "--model_dir", str(bench.model), "--output_dir", "./checkpoint",
        "--tp_size", "2", "--dtype", "bfloat16", "--use_weight_only",
    )  # fmt: skip
    assert build.argv == (
        str(programs / "trtllm-build"), "--checkpoint_dir", "./checkpoint", "--output_dir", "./engine",
        "--kv_cache_type", "paged", "--use_paged_context_fmha", "enable", "--gemm_plugin", "auto",
        "--workers", "2", "--max_seq_len", "4096", "--max_batch_size", "16", "--max_num_tokens", "8192",
    )  # fmt: skip
    assert convert.env == build.env == {"A": "1"}
    command = ENGINE.command(context)
    assert command == ENGINE.command(context)
    words = command.argv[command.argv.index("trtllm-serve") :]
    assert words[2:6] == ("--backend", "tensorrt", "--tokenizer", str(bench.model))
    assert Path(words[1]).name == ENGINE.served_model(context.model) == "llama"
    assert words[words.index("--kv_cache_free_gpu_memory_fraction") + 1] == "0.5"
    options = json.loads(command.argv[5])
    assert options["kv_cache_config"] == {"enable_block_reuse": False}
    assert "dtype" not in options, "the built engine contains it"
    assert not context.cache_dir.exists()
    assert bench.steps == []


def test_a_python_script_is_run_by_python(bench):
    convert, _ = ENGINE.prepare_commands(bench.context(convert_script="/x/llama/convert_checkpoint.py"))
    assert convert.argv[:2] == ("python3", "/x/llama/convert_checkpoint.py")


def test_an_engine_is_built_once_and_reused(bench):
    """The second start reports the reuse and the duration of the first build."""
    context = bench.context()
    assert ENGINE.preparations(context) == ()
    said = bench.prepare(context)
    assert bench.steps == ["convert", "build"]
    assert len(said) == 3
    assert ("convert" in said[0], "build" in said[1]) == (True, True)
    assert (served(context) / "rank0.engine").read_text() == "built\n"
    (first,) = ENGINE.preparations(context)
    assert (first.name, first.reused) == ("engine_build", False)
    assert first.seconds > 0
    said = bench.prepare(replace(context, port=9))
    assert bench.steps == ["convert", "build"]
    assert len(said) == 1
    assert f"{first.seconds:.1f} s" in said[0]
    assert ENGINE.preparations(context) == (replace(first, reused=True),)
    built = json.loads((served(context).resolve().parent / "build.json").read_text())
    assert built["versions"] == {"tensorrt_llm": "1.2.1"}
    assert built["seconds"] == pytest.approx(built["convert_s"] + built["build_s"])
    assert [command.split()[0].rpartition("/")[2] for command in built["commands"]] == [
        "convert_checkpoint",
        "trtllm-build",
    ]
    assert not list(served(context).resolve().parent.glob("checkpoint")), "only the engine is kept"


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"max_model_len": 2048}, False),
        ({"build_args": {"gather_generation_logits": True}}, False),
        ({"tensor_parallel_size": 2}, False),
        ({"env": {"TRTLLM_X": "1"}}, False),
        # settings of the server
        ({"gpu_memory_fraction": 0.5}, True),
        ({"prefix_caching": True}, True),
        ({"port": 7}, True),
    ],
)
def test_build_settings_are_the_key(changed, same, bench):
    one, other = build_plan(bench.context()), build_plan(bench.context(**changed))
    assert (one.home == other.home) == same


def test_another_gpu_has_another_engine(bench):
    context = bench.context()
    other = replace(context, gpu=GpuSettings(name="b200", count=1))
    assert build_plan(context).home != build_plan(other).home


@pytest.mark.parametrize("what", ["version", "model", "driver"])
def test_facts_of_the_machine_are_part_of_the_key(what, bench, monkeypatch):
    """The command stays the same; another engine is built, and the old one is kept for reuse."""
    context = bench.context()
    bench.prepare(context)
    before = served(context).resolve()
    if what == "version":
        bench.version("1.2.0")
    elif what == "model":
        (bench.model / "model.safetensors").write_text("other weights")
    else:
        monkeypatch.setattr(trtllm_build, "gpus", lambda: ["NVIDIA H100 80GB HBM3, 9.0"])
    bench.prepare(context)
    assert bench.steps == ["convert", "build"] * 2
    assert served(context).resolve() != before
    assert before.exists()
    if what == "version":
        bench.version("1.2.1")
        bench.prepare(context)
        assert bench.steps == ["convert", "build"] * 2
        assert served(context).resolve() == before


def test_a_converted_checkpoint_is_only_built(bench):
    """It is recognized by its weights by rank, and needs no conversion script."""
    (bench.model / "rank0.safetensors").touch()
    context = bench.context(convert_script=None)
    assert not [line for line in ENGINE.check(context) if "convert" in line]
    bench.prepare(context)
    assert bench.steps == ["build"]


def test_a_built_engine_is_served_as_it_is(bench):
    (bench.model / "rank0.engine").touch()
    context = bench.context(convert_script=None)
    assert bench.prepare(context) == []
    assert served(context) == bench.model
    assert ENGINE.preparations(context) == ()
    assert ENGINE.prepare_commands(context) == ()
    assert bench.steps == []


def test_two_processes_build_once(bench):
    bench.build_with("sleep 0.5")
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda _: bench.prepare(bench.context()), range(2)))
    assert bench.steps == ["convert", "build"]
    assert [line for lines in said for line in lines if line.startswith("waiting for another process")]


@pytest.mark.parametrize(
    ("more", "words", "kind"),
    [
        ("echo 'CUDA out of memory'; exit 1", "lower engine.gpu_memory_fraction", "out_of_memory"),
        ("echo 'Segmentation fault'; exit 139", "exit code 139; last log line: Segmentation fault", "other"),
        ("kill -9 $$", "killed by SIGKILL", "other"),
        ("exit 0", "engine.builder", "other"),
    ],
)
def test_a_failed_build_is_reported_and_leaves_nothing_behind(more, words, kind, bench):
    """With its last log line and the path of the log; the next attempt starts from scratch."""
    bench.build_with(more)
    context = bench.context()
    with pytest.raises(EngineError) as error:
        bench.prepare(context)
    assert words in str(error.value)
    assert "build.log" in str(error.value)
    assert error.value.kind == kind
    assert not served(context).exists()
    assert not list(build_plan(context).home.glob("work-*"))
    bench.build_with("")
    bench.prepare(context)
    assert served(context).exists()


def test_a_build_that_takes_too_long_is_killed(bench):
    bench.build_with("sleep 9977.25")
    with pytest.raises(EngineError, match=r"0\.5 s \(engine\.build_timeout_s\)"):
        bench.prepare(bench.context(build_timeout_s=0.5))
    assert not [one for one in psutil.process_iter(["cmdline"]) if "9977.25" in (one.info["cmdline"] or [])]


@pytest.mark.slow
def test_a_killed_build_is_cleaned_up_and_repeated(bench):
    """A kill -9 of servebench ends the build, frees the lock, and leaves a working folder that the next build removes."""
    bench.build_with("sleep 9978.25")
    context = bench.context()
    code = (
        "import pickle, sys; from servebench.engine.adapters.trtllm import TrtllmEngine;"
        "TrtllmEngine().prepare(pickle.load(sys.stdin.buffer), print)"
    )
    import pickle

    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    child.stdin.write(pickle.dumps(context))
    child.stdin.close()
    wait_until(lambda: bench.steps == ["convert", "build"])
    child.kill()
    child.wait()
    wait_until(
        lambda: not [one for one in psutil.process_iter(["cmdline"]) if "9978.25" in (one.info["cmdline"] or [])]
    )
    assert list(build_plan(context).home.glob("work-*"))
    bench.build_with("")
    bench.prepare(context)
    assert served(context).exists()
    assert not list(build_plan(context).home.glob("work-*"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"convert_script": None}, "engine.convert_script="),
        ({"convert_script": "/no/c.py"}, "engine.convert_script=/no/c.py"),
        ({"builder": "no-such-build"}, "'no-such-build' (engine.builder)"),
        ({"model": ModelSettings(name="org/llama")}, "model.path="),
    ],
)
def test_missing_parts_of_the_build_are_reported_first(settings, words, bench):
    assert words in "\n".join(ENGINE.check(bench.context(**settings)))


def test_emulation_needs_no_build(bench):
    """What is missing on this machine is not a problem of the settings."""
    context = bench.context(model=ModelSettings(name="org/llama"), convert_script=None, builder="no-such-build")
    assert len(ENGINE.check(context)) == 4
    assert ENGINE.unsupported_settings(context) == []


@pytest.mark.parametrize(
    ("version", "rejected"), [("1.2.1", False), ("0.21.0", False), ("1.3.0rc1", True), ("2.0", True)]
)
def test_versions_without_this_backend(version, rejected, bench):
    bench.version(version)
    lines = [line for line in ENGINE.check(bench.context()) if f"TensorRT-LLM {version}" in line]
    assert bool(lines) == rejected


def test_the_pytorch_backend_builds_nothing(bench):
    context = bench.context(backend="pytorch")
    assert TrtllmSettings(name="trtllm").backend == "pytorch"
    assert bench.prepare(context) == []
    assert ENGINE.prepare_commands(context) == ENGINE.preparations(context) == ()
    assert bench.steps == []


def test_the_built_engine_is_started(bench):
    """From build to first token: the server gets the engine's folder under the model's name."""
    port = free_port("127.0.0.1")
    server = write_stand_in(
        bench.folder / "trtllm-serve", ServerBehavior(models=("llama",)), host="127.0.0.1", port=port
    )
    text = server.read_text().replace("#!/bin/sh", '#!/bin/sh\n[ -f "$1/rank0.engine" ] || exit 9\necho "serves $1"')
    server.write_text(text)
    context = replace(bench.context(executable=str(server), stop_timeout_s=300.0, ready_timeout_s=300.0), port=port)
    bench.prepare(context)
    log = bench.folder / "engine.log"
    running = ProcessLauncher().launch(
        ENGINE, context, LaunchSettings(name="process"), log_path=log, say=lambda _: None
    )
    report = running.stop()
    assert f"serves {served(context)}" in log.read_text()
    assert (report.stopped, report.leftover) == (True, ())
