"""The text of `servebench --help`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from servebench.config.folders import EXPERIMENT, Composer, composer
from servebench.config.keys import section_types
from servebench.registry.registry import Registry

VERBS: Mapping[str, str] = {
    "run": "one run, or with -m a study of several; what is done when no verb is given",
    "plugins": "what is installed, and what did not load",
    "sync": "send results that a tracking server missed",
    "help": "this text",
}
"""The verbs and what each does."""

_WIDTH = 110
_USAGE = """\
servebench: which serving engine, with which settings, for my model, my GPU and my workload?

Usage:
  servebench [group=option ...] [group.key=value ...]
  servebench -m [group=option,option ...] [group.key=value,value ...]
  servebench VERB [...]"""
_EXAMPLES = """\
Examples:
  servebench
      one run on the embedded engine: a real model on this machine's CPU
  servebench -m engine=vllm,sglang,trtllm workload=unique
      three engines, launched one after another, compared
  servebench engine=openai launch=attach launch.base_url=http://host:8000/v1 model.name=my-model load=baseline
      an endpoint that runs already
  servebench load.concurrency=[1,4,16] load.requests=100 workload.output_tokens=128
      levels, requests a point and answer lengths of your own"""
_OPTIONS = """\
Options:
  -m, --multirun        several runs: a comma between values is a sweep
  --config-dir DIR      add a folder of your own config files
  --config-name NAME    start from another file than config.yaml
  --cfg job             print the composed config and run nothing (--resolve: with interpolations resolved)
  --cfg command         print the engine's exact command, to copy and paste, and run nothing
  --preview             show the workload's requests, lengths and ideal cache hits, and run nothing
  --info                what Hydra knows: search path, defaults, config"""


def help_text(registry: Registry, verbs: Mapping[str, str] = VERBS) -> str:
    """Usage, verbs, config groups with their options (the plugins' among them) and examples. Raises ConfigError."""
    with composer(registry) as source:
        groups = _groups(source)
    longest = max(len(name) for name in verbs)
    lines = "\n".join(f"  {name.ljust(longest)}  {does}" for name, does in verbs.items())
    return "\n\n".join((_USAGE, f"Verbs:\n{lines}", f"Config groups:\n{groups}", _OPTIONS, _EXAMPLES)) + "\n"


def _groups(source: Composer) -> str:
    """One paragraph a group, in the order of the settings, then those that only plugins have."""
    order = [*section_types(), EXPERIMENT]
    names = [name for name in order if name in source.groups] + [name for name in source.groups if name not in order]
    longest = max(len(name) for name in names)
    paragraphs = [
        textwrap.fill(
            ", ".join(source.options(name)),
            width=_WIDTH,
            initial_indent=f"  {name.ljust(longest)}  ",
            subsequent_indent=" " * (longest + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name in names
        if source.options(name)
    ]
    return "\n".join(paragraphs)
