"""`servebench run`, the default command."""

import click

from servebench.cli.command import FILE, define, trust_option, verbose_option, words_argument
from servebench.cli.commands.preview import print_previews

TRUST_WORD = "--trust"
VERBOSE_WORDS = ("-v", "--verbose")
JSON_WORD = "--json"


@define(
    "run",
    free_words=True,
    examples=[
        ("servebench engine=vllm gpu=h100 load.concurrency=[1,8]", "one run; the word 'run' may be left out"),
        ("servebench run -m engine=vllm,sglang workload=unique,rag_prefix", "a study of four runs"),
        ("servebench engine=vllm gpu=h100 --cfg command", "print the command that starts the engine"),
        ("servebench run --lock outputs/STUDY/RUN/manifest.json", "repeat a stored run"),
    ],
)
@words_argument
@click.option("-m", "--multirun", is_flag=True, help="Run a study: commas between values make several runs.")
@click.option("--lock", metavar="FILE", type=FILE, help="Repeat the stored run of this manifest.json.")
@trust_option
@verbose_option
@click.option("--json", is_flag=True, help="Print the answer as JSON instead of tables.")
@click.option(
    "--preview", is_flag=True, help="Show the workload's requests, lengths and ideal cache hits; run nothing."
)
@click.option("-c", "--cfg", metavar="job|command", help="Print the config, or the engine's command; run nothing.")
@click.option("--resolve", is_flag=True, help="With --cfg job: resolve interpolations.")
@click.option("-p", "--package", metavar="NAME", help="With --cfg job: print this part of the config only.")
@click.option("-cd", "--config-dir", metavar="DIR", help="Add a folder of your own config files.")
@click.option("-cn", "--config-name", metavar="NAME", help="Start from another file than config.yaml.")
@click.option("-i", "--info", metavar="[TOPIC]", help="Print Hydra's search path, defaults, plugins or config.")
@click.option("--hydra-help", is_flag=True, help="Print Hydra's own help.")
@click.option("-sc", "--shell-completion", is_flag=True, hidden=True)
def command(words: tuple[str, ...], **_: object) -> int:
    """Run one configuration, or with -m a study of several.

    A manifest of --lock that you did not make on this machine is shown first, and run if you trust it.

    GROUP=OPTION chooses a config file, such as engine=vllm; KEY=VALUE sets one value, such as load.requests=100. 'servebench
    help' lists the groups and their options.
    """
    return run_words(words)


def run_words(words: tuple[str, ...]) -> int:
    """Run, print or preview what the words describe. Returns the exit code. Raises ServebenchError."""
    from servebench.config.arguments import LOCK_WORD, asks_hydra
    from servebench.registry.registry import registry
    from servebench.util.errors import ConfigError

    # not kept with the study's words: they hold for this command only
    trusted = TRUST_WORD in words
    verbose, as_json = any(word in VERBOSE_WORDS for word in words), JSON_WORD in words
    words = tuple(word for word in words if word not in (TRUST_WORD, JSON_WORD, *VERBOSE_WORDS))
    asked = next((word for word in words if word.startswith("tune.")), None)
    if asked is not None:
        raise ConfigError(f"{asked}: words with tune. belong to 'servebench tune'")
    if trusted and LOCK_WORD not in words:
        raise ConfigError(f"run: {TRUST_WORD} is for a manifest of {LOCK_WORD} FILE; leave it out")
    place = next((index for index, word in enumerate(words) if word in ("--cfg", "-c")), None)
    if place is not None and words[place + 1 : place + 2] == ("command",):
        from servebench.study.show_commands import show_commands

        return show_commands([*words[:place], *words[place + 2 :]], registry())
    if "--preview" in words:
        return print_previews([word for word in words if word != "--preview"], registry())
    if asks_hydra(words):
        from servebench.config.information import print_hydra_information

        return print_hydra_information(words, registry())
    from servebench.report.listeners import listeners
    from servebench.report.terminal.display import Detail
    from servebench.study.study import run_study

    known = registry()
    return run_study(words, known, listen=listeners(known, Detail(verbose=verbose, as_json=as_json)), trusted=trusted)
