"""Remove secrets from everything that is written or sent: a false alarm is better than a leaked key."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from servebench.util.secret_patterns import MARK, USERINFO, WELL_KNOWN, find_secrets, last_part, secret_name

SECRET_LENGTH_MIN = 6
"""A shorter value of a secret variable is a placeholder, and would occur in harmless text."""
LINE_LENGTH_MIN = 16
"""A shorter line of a secret of several lines may be in any text."""
WORD = re.compile(r"[+~]*+([\w.@/-]++)=(.+)", re.DOTALL)


_REMEMBERED: set[str] = set()


def remember(*values: str) -> None:
    """Treat these values as secrets from now on, wherever they appear: a server or a log may repeat what it was given."""
    _REMEMBERED.update(value for value in values if len(value) >= SECRET_LENGTH_MIN and MARK not in value)


def remember_config(config: Any) -> None:
    """Treat as secrets what a config holds under secret names, passwords in its URLs, and the values of the variables that it
    names under `..._env`."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            last = last_part(str(name))
            if secret_name(last):
                remember(*_strings(value))
            elif last.endswith("_env"):
                remember(*(os.environ.get(name, "") for name in _strings(value)))
            else:
                remember_config(value)
    elif isinstance(config, (list, tuple)):
        for item in config:
            remember_config(item)
    elif isinstance(config, str):
        for found in USERINFO.findall(config):
            remember(found[:-1], found[:-1].partition(":")[2])
        remember(*WELL_KNOWN.findall(config))


def _strings(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _strings(item)]
    return [] if value is None or isinstance(value, bool) else [str(value)]


def known_secrets() -> list[str]:
    """Return the values that are secret: of secret variables of the environment, and what was remembered. The longest first."""
    values = {value for name, value in os.environ.items() if secret_name(name)} | _REMEMBERED
    forms = {form for value in values for form in _forms(value) if len(form) >= SECRET_LENGTH_MIN}
    return sorted(forms, key=len, reverse=True)


def _forms(value: str) -> Iterator[str]:
    """Return a secret as it may stand in a text: as it is, its long lines, in JSON, in a URL."""
    yield value
    yield from (line for line in value.splitlines() if len(line) >= LINE_LENGTH_MIN)
    yield from (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe=""))


def without_known(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return the text without the values of `known_secrets` (or of `secrets`) and otherwise unchanged: for answers of models."""
    for secret in known_secrets() if secrets is None else secrets:
        text = text.replace(secret, MARK)
    return text


def redact_text(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return the text with `[redacted]` in place of `find_secrets`; `secrets` are those of `known_secrets` unless given."""
    found = find_secrets(text, known_secrets() if secrets is None else secrets)
    if not found:
        return text
    parts: list[str] = []
    done, last = 0, -1
    for start, end, _ in found:
        if start > last:
            parts += (text[done:start], MARK)
        if end > last:
            done = last = end
    return "".join([*parts, text[done:]])


def _redact_word(word: str, secrets: Sequence[str]) -> str:
    """Redact an argument of a command line: after `NAME=` of a secret everything is secret, commas and spaces too."""
    found = WORD.fullmatch(word)
    if found is not None and secret_name(last_part(found[1].lstrip("-"))):
        return word[: found.start(2)] + MARK
    return redact_text(word, secrets)


def _redact_items(items: Sequence[Any], secrets: Sequence[str]) -> list[Any]:
    """Redact a list, which may be a command (the argument after a secret flag is secret unless it is a flag) or a name and its
    value."""
    pair = len(items) == 2 and isinstance(items[0], str) and secret_name(items[0])
    hidden = False
    result = []
    for index, item in enumerate(items):
        if isinstance(item, str):
            secret = (hidden and not item.startswith("--")) or (pair and index == 1)
            result.append(MARK if secret else _redact_word(item, secrets))
        else:
            result.append(_redact(item, secrets))
        hidden = isinstance(item, str) and item.startswith("-") and "=" not in item and secret_name(item)
    return result


def _hide(value: Any) -> Any:
    """Hide everything below the key of a secret, numbers too; booleans, null and empty text stay."""
    if isinstance(value, Mapping):
        return {name: _hide(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hide(item) for item in value]
    return value if value is None or value == "" or isinstance(value, bool) else MARK


def redact(value: Any) -> Any:
    """Return a copy of plain data without secrets: by the names of keys, and by what strings look like."""
    return _redact(value, known_secrets())


def _redact(value: Any, secrets: Sequence[str], below: str = "") -> Any:
    if isinstance(value, Mapping):
        return {
            name: _hide(item) if secret_name(last_part(f"{below}{name}")) else _redact(item, secrets, f"{name}.")
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _redact_items(value, secrets)
    return redact_text(value, secrets) if isinstance(value, str) else value
