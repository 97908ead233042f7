"""`servebench tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from servebench.cli.command import FILE, define, trust_option, verbose_option, words_argument

if TYPE_CHECKING:
    from servebench.contracts.events import Listen

CONTINUE = "--continue"
OUTPUTS = "--outputs"
TRUST = "--trust"
VERBOSE = ("-v", "--verbose")
JSON = "--json"


@define(
    "tune",
    free_words=True,
    examples=[
        ("servebench tune load.concurrency=[8] tune.budget=8m", "the embedded engine on this machine"),
        (
            "servebench tune engine=vllm gpu=h100 workload=rag_prefix slo=interactive tune.objective=goodput \\\n"
            "      load.concurrency=[64] tune.budget=90m",
            "the most requests that meet the SLO",
        ),
        ("servebench tune engine=vllm,sglang gpu=h100 load.concurrency=[64]", "engine and settings together"),
        ("servebench tune engine=vllm launch=simulated gpu=h100", "try it without an engine, in virtual time"),
        (
            "servebench tune hydra/launcher=submitit_local hydra.launcher.runs_per_machine=4 engine=vllm gpu=h100",
            "four candidates at once, each on a GPU of its own",
        ),
        ("servebench tune --continue last tune.budget=30m", "spend more on the latest tune"),
    ],
)
@words_argument
@click.option(
    CONTINUE,
    "study",
    metavar="STUDY",
    help="Continue this tune with as much more as tune.budget= or tune.trials= says.",
)
@click.option(OUTPUTS, metavar="DIR", help="With --continue: folder of stored studies (default: outputs).")
@trust_option
@verbose_option
@click.option(JSON, "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("-cd", "--config-dir", metavar="DIR", type=FILE, help="Add a folder of your own config files.")
def command(words: tuple[str, ...], **_: object) -> int:
    """Find the best settings of an engine for a model, a GPU, a workload and a load, within a budget of engine time.

    Candidates (stock settings, rules of thumb, your own, random draws) race on the same prompts, and leave when they are
    clearly worse. The best few start again on new prompts: the gain over stock is from these starts alone. The words are
    those of a run, and: tune.objective, tune.levels, tune.budget or tune.trials, tune.margin, tune.error, tune.count,
    tune.finalists, tune.final_starts, tune.only, tune.space=FILE, tune.candidates=FILE, tune.seed and tune.out=DIR
    (docs/tune.md).
    """
    from servebench.registry.registry import registry
    from servebench.report.listeners import listeners
    from servebench.report.terminal.display import Detail
    from servebench.study.tune import run_tune

    rest, options = _options(words)
    detail = Detail(verbose=bool(options.get("verbose")), as_json=bool(options.get("json")))
    listen = listeners(registry(), detail)
    if "study" in options:
        return _continue(rest, options, listen)
    return run_tune(rest, registry(), listen=listen)


def _options(words: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Return the words for Hydra, and the options of the command."""
    from servebench.util.errors import ConfigError

    options: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, has_value, value = word.partition("=")
        if name in (CONTINUE, OUTPUTS):
            if not has_value:
                # the latest study is meant where none is named
                value = left.pop(0) if left and "=" not in left[0] and not left[0].startswith("-") else "last"
            options["study" if name == CONTINUE else "outputs"] = value
        elif word == TRUST:
            options["trust"] = "yes"
        elif word in VERBOSE:
            options["verbose"] = "yes"
        elif word == JSON:
            options["json"] = "yes"
        else:
            rest.append(word)
    if "study" not in options and ("outputs" in options or "trust" in options):
        raise ConfigError(
            f"tune: {OUTPUTS} and {TRUST} are for {CONTINUE} STUDY; leave them out (study.dir=DIR sets the folder)"
        )
    return rest, options


def _continue(words: list[str], options: dict[str, str], listen: Listen) -> int:
    """Continue a stored tune with more budget. Raises ConfigError."""
    from servebench.config.tuning import parse_question, split_words
    from servebench.registry.registry import registry
    from servebench.store.layout import outputs_folder
    from servebench.store.studies import named_studies
    from servebench.store.tune import is_tune, read_tune
    from servebench.study.tune import continue_tune
    from servebench.util.errors import ConfigError

    own, rest = split_words(words)
    names = {word.lstrip("+").partition("=")[0] for word in own}
    if rest or names - {"tune.budget", "tune.trials"}:
        strange = rest or sorted(names - {"tune.budget", "tune.trials"})
        raise ConfigError(
            f"tune: {CONTINUE} takes tune.budget= or tune.trials= and nothing else (got {' '.join(strange)})"
        )
    folder = named_studies([options["study"]], outputs_folder(options.get("outputs", "outputs")))[0]
    if not is_tune(folder):
        raise ConfigError(f"{folder.name} is not a tune; 'servebench resume {folder.name}' continues a study")
    question, stored = parse_question(own), read_tune(folder).question
    if (stored.trials is None) == ("tune.trials" in names) and names:
        key = "tune.budget" if stored.trials is None else "tune.trials"
        raise ConfigError(f"tune: {folder.name} has {key}; continue it with {key}=")
    more = 0.0 if not names else float(question.trials or 0) if stored.trials is not None else question.budget_s
    return continue_tune(
        folder,
        registry(),
        more=more,
        trusted="trust" in options,
        listen=listen,
    )
