"""Short words for what most commands say: `endpoint=URL`, `duration=60s`, `starts=3`."""

from __future__ import annotations

from collections.abc import Sequence

ENDPOINT = "endpoint"
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
ATTACHED = {"launch": "attach", "engine": "openai"}
"""What `endpoint=` chooses where the command does not."""


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return the overrides that these words mean: short ones are replaced, the others stay as they are.

    `endpoint=URL` is an attached server, of `engine=openai` unless another engine is chosen; a URL may lack `http://`.
    """
    found = [_spelled_out(word) for word in words]
    if any(word.startswith(f"{ENDPOINT}=") for word in words):
        chosen = {word.partition("=")[0] for word in words}
        found = [*(f"{group}={option}" for group, option in ATTACHED.items() if group not in chosen), *found]
    return found


def _spelled_out(word: str) -> str:
    name, equals, value = word.partition("=")
    if name == ENDPOINT and equals:
        return f"launch.base_url={','.join(map(with_scheme, value.split(',')))}"
    return f"{SHORT_WORDS[name]}={value}" if equals and name in SHORT_WORDS else word


def with_scheme(url: str) -> str:
    """Return a URL, with `http://` if it has no scheme."""
    return url if "://" in url or not url else f"http://{url}"
