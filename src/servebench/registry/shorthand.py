"""Short words for what most commands say: `endpoint=URL`, `duration=60s`, `starts=3`."""

import re
from collections.abc import Sequence

ENDPOINT = "endpoint"
BASE_URL = "launch.base_url"
HYDRA_READS = re.compile(r"[\w./:%+\[\]'\"-]*")
SHORT_WORDS = {
    "duration": "load.duration_s",
    "budget": "study.budget",
    "starts": "study.starts",
    "seed": "workload.seed",
    "dataset": "workload.dataset",
}
"""The key that each short word sets."""
RENAMED = {
    "load": {
        "baseline": "sweep",
        "fine": "sweep",
        "overload": "sweep",
        "extreme": "sweep",
        "search_slo": "slo",
        "search_saturation": "saturation",
        "trace": "replay",
    }
}
"""Options of earlier versions, by group, and what they are called now."""
RENAMED_KEYS = {"load.trace": "load.replay", "load.trace_headers": "load.span_headers"}
"""Keys of earlier versions, and what they are called now."""
CHOOSES = {ENDPOINT: {"launch": "attach", "engine": "openai"}, "dataset": {"workload": "dataset"}}
"""What short words choose where the command does not."""


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return the overrides that these words mean: short ones are replaced, the others stay as they are.

    `endpoint=URL` is an attached server, of `engine=openai` unless another engine is chosen; a URL may lack `http://`.
    `dataset=FILE` is `workload=dataset`, unless another workload or an experiment is chosen.
    """
    found = [_spelled_out(word) for word in words]
    given = _names(words)
    chosen = {*given, *(["workload"] if "experiment" in given else [])}
    options = {group: one for name, choice in CHOOSES.items() if name in given for group, one in choice.items()}
    return [*(f"{group}={option}" for group, option in options.items() if group not in chosen), *found]


def as_typed(text: str, words: Sequence[str]) -> str:
    """Return a message with the short words of a command in place of the keys that they set."""
    given = _names(words)
    for name, key in {ENDPOINT: BASE_URL, **SHORT_WORDS}.items():
        if name in given and key not in given:
            text = re.sub(rf"(?<![\w.]){re.escape(key)}(?![\w.])", name, text)
    return text


def _names(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if "=" in word}


def _spelled_out(word: str) -> str:
    name, equals, value = word.partition("=")
    if name == ENDPOINT and equals:
        # Hydra cannot read a ~ or the = of a query; why a URL must have no query is said later
        urls = [one if HYDRA_READS.fullmatch(one) else f'"{one}"' for one in map(with_scheme, value.split(","))]
        return f"{BASE_URL}={','.join(urls)}"
    return f"{SHORT_WORDS[name]}={value}" if equals and name in SHORT_WORDS else word


def with_scheme(url: str) -> str:
    """Return a URL, with `http://` if it has no scheme."""
    return url if "://" in url or not url else f"http://{url}"
