"""The command line: a verb and its words, or Hydra words that describe a study.

Everything heavy is imported by the verb that needs it, so that `--help` and mistakes answer at once.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from servebench.util.errors import ConfigError, ServebenchError

VERBS = {
    "run": "run a study (the word may be left out); run --lock manifest.json repeats a stored run",
    "plugins": "list plugins, what each offers and what is wrong with the broken ones (--json); plugins new NAME writes one",
    "resume": "do what a study planned and did not do: resume [STUDY] (--failed tries failed runs again, "
    "--here does a cluster's runs on this machine; --outputs DIR)",
    "work": "one run of a stored plan, on this machine: what a scheduler's job may call: work STUDY RUN",
    "sync": "send studies to MLflow that a dead tracking server, or kill -9, kept back: sync [STUDY ...] (--outputs DIR)",
    "recover": "turn what a killed study left into its tables: recover [STUDY ...] (--outputs DIR)",
    "ls": "list runs, all or those that are what the words say: ls [engine=vllm ...] (--json)",
    "show": "what a run or study was and what came of it: show RUN|STUDY (--json)",
    "compare": "which of two runs is faster, and how sure that is: compare A B [--max-regression 5%] (a gate for pipelines)",
    "recommend": "which run for which use, how sure that is, and what would change it: recommend STUDY (--rules FILE)",
    "report": "one self-contained page on a run or a study: report RUN|STUDY (--out FILE); "
    "--as vllm|sglang|aiperf|guidellm|genai-bench tells it by that tool's definitions",
    "demo": "three emulated engines on three workloads, in three minutes and without a GPU: demo [words of a run ...]",
    "published": "the articles' numbers beside those of emulated engines, and what of them stands: published [FILE]",
    "selfcheck": "measure how exact this machine's client is, in three seconds (--json)",
    "fleet": "what it takes to drive so many tokens a second, on paper: fleet [TOKENS_S ...]",
    "export": "runs for other programs: export RUN|STUDY --format csv|json|llm-d (--out PATH)",
    "import": "result files of vllm bench, sglang, guidellm, aiperf and genai-bench as foreign runs: import FILE ...",
    "dashboard": "pages over all runs in a browser, on this machine: dashboard (--port 8501)",
    "help": "show this text",
}


PREVIEW_WORD = "--preview"
YOUNG_OBJECTS = 50_000
"""So many new objects are made before Python looks for garbage among them."""
HELP_WORDS = ("--help", "-h")


def _run(words: Sequence[str]) -> int:
    from servebench import config
    from servebench.registry.registry import registry

    place = next((index for index, word in enumerate(words) if word in ("--cfg", "-c")), None)
    if place is not None and words[place + 1 : place + 2] == ["command"]:
        from servebench.study.show_commands import show_commands

        return show_commands([*words[:place], *words[place + 2 :]], registry())
    if PREVIEW_WORD in words:
        from servebench.cli.preview import preview

        return preview([word for word in words if word != PREVIEW_WORD], registry())
    if config.hydra_words(words):
        return config.hydra_information(words, registry())
    from servebench.study.study import run_study

    return run_study(words, registry())


def _plugins(words: Sequence[str]) -> int:
    from servebench.registry.registry import registry
    from servebench.report.terminal.plugins import show_plugins

    if words[:1] == ["new"]:
        return _new_plugin(words[1:], registry().kinds)
    rest = [word for word in words if word != "--json"]
    if rest:
        raise ConfigError(f"plugins: unknown word '{rest[0]}'; it takes --json, or 'new NAME' to write one, or nothing")
    show_plugins(registry(), as_json="--json" in words)
    return 0


def _new_plugin(words: Sequence[str], taken: Mapping[str, Iterable[str]]) -> int:
    from servebench.cli.words import no_options, take_option
    from servebench.skeleton import KINDS, write_plugin

    kind, rest = take_option(words, "--kind")
    directory, rest = take_option(rest, "--dir")
    no_options("plugins new", rest, ("--kind", "--dir"))
    if len(rest) != 1 or (kind or "engine") not in KINDS:
        raise ConfigError(f"plugins new takes NAME, --kind {'|'.join(KINDS)} and --dir FOLDER")
    sys.stdout.write(write_plugin(rest[0], kind=kind or "engine", directory=Path(directory or "."), taken=taken))
    return 0


def _sync(words: Sequence[str]) -> int:
    from servebench.cli.words import no_options, take_option, take_outputs
    from servebench.store.studies import named_studies
    from servebench.study.sync import sync_studies

    outputs, rest = take_outputs(words)
    uri, rest = take_option(rest, "--uri")
    no_options("sync", rest, ("--uri URI", "--outputs DIR"))
    return sync_studies(named_studies(rest, outputs), uri=uri)


def _resume(words: Sequence[str]) -> int:
    from servebench.cli.resume import resume

    return resume(words)


def _recover(words: Sequence[str]) -> int:
    from servebench.cli.words import no_options, take_outputs
    from servebench.store.studies import named_studies
    from servebench.study.recover import recover_studies

    outputs, rest = take_outputs(words)
    no_options("recover", rest, ("--outputs DIR",))
    return recover_studies(named_studies(rest, outputs), report_running=bool(rest))


def _work(words: Sequence[str]) -> int:
    from servebench.cli.work import work

    return work(words)


def _fleet(words: Sequence[str]) -> int:
    from servebench.published.fleet import table

    rates = []
    for word in words or ("100000", "10000000"):
        try:
            rate = float(word.replace("_", ""))
        except ValueError as error:
            raise ConfigError(f"fleet: '{word}' is not a number of tokens per second, such as 100000") from error
        if not 0 < rate < math.inf:
            raise ConfigError(f"fleet: the number of tokens per second must be above 0 (got {word})")
        rates.append(rate)
    sys.stdout.write(table(rates) + "\n")
    return 0


def _decide(verb: str) -> Callable[[Sequence[str]], int]:
    def do(words: Sequence[str]) -> int:
        from servebench.cli import decide

        code: int = getattr(decide, verb)(words)
        return code

    return do


def _selfcheck(words: Sequence[str]) -> int:
    import json
    from dataclasses import asdict

    from servebench.cli.words import no_options, take_flag
    from servebench.load.selfcheck.floor import format_floor, measure_floor
    from servebench.util.cache import cache_folder

    as_json, rest = take_flag(words, "--json")
    no_options("selfcheck", rest, ("--json",))
    if rest:
        raise ConfigError(f"selfcheck: unknown word '{rest[0]}'; it takes --json or nothing")
    floor = measure_floor(cache_folder())
    sys.stdout.write((json.dumps(asdict(floor), indent=2) if as_json else "\n".join(format_floor(floor))) + "\n")
    return 0


def _demo(words: Sequence[str]) -> int:
    import time

    named = next((word.partition("=")[2] for word in words if word.startswith("study.name=")), None)
    study = named or f"demo_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    code = _run(["-m", "experiment=demo", *words, *([] if named else [f"study.name={study}"])])
    if code == 0 and not any(word.startswith("study.dir=") for word in words):
        code = dispatch(["recommend", study]) or dispatch(["report", study])
    return code


def _published(words: Sequence[str]) -> int:
    from servebench.published.command import write_published
    from servebench.registry.registry import registry

    if len(words) > 1 or any(word.startswith("-") for word in words):
        raise ConfigError(f"published takes the path of the page to write or nothing, not: {' '.join(words)}")
    path = Path(words[0] if words else "docs/published.md")
    sys.stdout.write(f"{path}: {write_published(path, registry())}\n")
    return 0


def _help(_: Sequence[str]) -> int:
    from servebench import config
    from servebench.registry.registry import registry

    sys.stdout.write(config.help_text(registry(), verbs=VERBS))
    return 0


def _version(_: Sequence[str]) -> int:
    from servebench import __version__

    sys.stdout.write(f"servebench {__version__}\n")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "plugins": _plugins,
    "resume": _resume,
    "sync": _sync,
    "recover": _recover,
    "work": _work,
    "fleet": _fleet,
    **{verb: _decide(verb) for verb in ("ls", "show", "compare", "recommend", "report", "export", "dashboard")},
    "import": _decide("import_files"),
    "demo": _demo,
    "published": _published,
    "selfcheck": _selfcheck,
    "help": _help,
    "--help": _help,
    "-h": _help,
    "--version": _version,
}


def dispatch(words: Sequence[str]) -> int:
    """Do what the words ask for; returns the exit code. Raises ServebenchError."""
    asked = any(word in HELP_WORDS for word in words)
    if asked and words[0] in VERBS and words[0] not in ("run", "help"):
        sys.stdout.write(f"servebench {words[0]}: {VERBS[words[0]]}\n")
        return 0
    if asked:
        return _help(words)
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]](words[1:])
    if words and words[0].isalpha():
        raise ConfigError(_no_verb(words[0]))
    return _run(words)


def _no_verb(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word.lower(), VERBS, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"'{word}' is no verb and no override (group=option, group.key=value); {hint}'servebench help' lists what there is"


def _tell_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A traceback as Python writes it, without secrets."""
    import traceback

    from servebench.util.redaction import redact_text

    sys.stderr.write(redact_text("".join(traceback.format_exception(kind, error, trace))))


def main() -> int:
    """The entry point of `servebench`."""
    from servebench.util.process_title import hide_secrets
    from servebench.util.signals import interrupts
    from servebench.util.stdio import prepare_streams

    # modules, configs and records all stay: looking through them for garbage every 700 objects finds none
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)
    prepare_streams()
    sys.excepthook = _tell_defect
    hide_secrets()
    try:
        with interrupts():
            code = dispatch(sys.argv[1:])
            sys.stdout.flush()
    except ServebenchError as error:
        from servebench.util.redaction import redact_text

        for line in redact_text(str(error)).splitlines():
            sys.stderr.write(f"servebench: {line}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("servebench: interrupted\n")
        return 130
    except BrokenPipeError:
        # whoever read our output has enough; Python would complain once more while it shuts down
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


if __name__ == "__main__":
    raise SystemExit(main())
