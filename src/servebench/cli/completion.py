"""Shell completion: what may follow on the command line, and how a shell asks for it."""

import os
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from servebench.util.errors import ConfigError, reason_of
from servebench.util.short_id import short_id

VARIABLE = "_SERVEBENCH_COMPLETE"
"""The environment variable with which a shell asks for completion, as click names it."""

SHELLS = ("bash", "zsh", "fish")
FACTS = ("engine", "model", "gpu", "workload", "launch", "status", "study", "run", "tool")


class OverrideBash(BashComplete):
    """Completion for bash, which takes `engine=v` for three words: the line is split here, and only the rest returned."""

    source_template = Path(__file__).with_suffix(".bash").read_text(encoding="utf-8")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words of the line, and the one under the cursor."""
        line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)]
        words = click.shell_completion.split_arg_string(line)[1:]
        self._incomplete = "" if line[-1:].isspace() or not words else words.pop()
        return words, self._incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return an item without the part of it that bash takes for words of their own."""
        done = max(self._incomplete.rfind("="), self._incomplete.rfind(":")) + 1
        value = item.value[done:] if item.value.startswith(self._incomplete[:done]) else item.value
        return f"{item.type},{value}"


add_completion_class(OverrideBash, "bash")


def complete_words(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the config overrides that begin so: `engine=`, and `engine=vllm,sg` up to the last option."""
    from servebench.registry.conf import config_groups, likely_config_folders
    from servebench.registry.shorthand import ENDPOINT, SHORT_WORDS

    groups = config_groups(likely_config_folders())
    groups = {**groups, ENDPOINT: (), **dict.fromkeys(SHORT_WORDS, ())}
    group, equals, chosen = incomplete.partition("=")
    if not equals:
        matching = [name for name in groups if name.startswith(incomplete)]
        if len(matching) != 1:
            return [CompletionItem(f"{name}=") for name in matching]
        group = matching[0]
    before, comma, last = chosen.rpartition(",")
    options = groups.get(group, ())
    return [CompletionItem(f"{group}={before}{comma}{name}") for name in options if name.startswith(last)]


def complete_conditions(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the conditions on runs that begin so."""
    if "=" in incomplete:
        return complete_words(_ctx, _param, incomplete)
    return [CompletionItem(f"{key}=") for key in FACTS if key.startswith(incomplete)]


def complete_studies(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the studies of the outputs folder whose names or short ids begin so."""
    return [CompletionItem(name) for name in _study_names(ctx) if name.startswith(incomplete)]


def _study_names(ctx: click.Context) -> list[str]:
    names = [path.name for path in _studies(ctx)]
    return [*dict.fromkeys([*map(short_id, names), *names]), "last"] if names else []


def complete_stored(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the studies, and behind `STUDY/` the runs, whose names begin so."""
    studies = _studies(ctx)
    if "/" not in incomplete:
        names: Iterable[str] = _study_names(ctx)
    else:
        names = (
            f"{name}/{run}" for study in studies for name in {study.name, short_id(study.name)} for run in _runs(study)
        )
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_runs_of_study(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the runs of the study that the command line names."""
    named = str(ctx.params.get("study"))
    runs = (run for study in _studies(ctx) if named in (study.name, short_id(study.name)) for run in _runs(study))
    return [CompletionItem(run) for run in runs if run.startswith(incomplete)]


def _studies(ctx: click.Context) -> list[Path]:
    # the files are looked at directly: importing the store would take longer than a user waits for a completion
    outputs = Path(ctx.params.get("outputs") or "outputs")
    return sorted(path.parent for path in outputs.glob("*/study.json"))


def _runs(study: Path) -> list[str]:
    return sorted(path.parent.name for path in study.glob("*/run.json"))


def completion_script(shell: str, cli: click.Command) -> str:
    """Return the script that makes `shell` complete servebench's words. Raises ConfigError for an unknown shell."""
    found = get_completion_class(shell)
    if shell not in SHELLS or found is None:
        raise ConfigError(
            f"--install-completion must be {', '.join(SHELLS[:-1])} or {SHELLS[-1]} (got {shell or 'nothing'})"
        )
    complete = found(cli, {}, "servebench", VARIABLE)
    return complete.source_template % complete.source_vars()


def install_completion(shell: str, cli: click.Command) -> str:
    """Write the script for `shell` where that shell looks for it; return what is left to do. Raises ConfigError."""
    script = completion_script(shell, cli)
    data = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    path, rest = {
        "bash": (
            data / "bash-completion/completions/servebench",
            "without the package bash-completion, add to ~/.bashrc",
        ),
        "zsh": (data / "servebench/completion.zsh", "add to ~/.zshrc, after compinit"),
        "fish": (config / "fish/completions/servebench.fish", ""),
    }[shell]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {reason_of(error)}") from error
    done = f"completion for {shell} is in {path}; start a new shell to use it\n"
    return done + (f"{rest}:\n  source '{path}'\n" if rest else "")
