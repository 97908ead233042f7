"""Secrets are taken out of everything that is written or sent: better a harmless word too many than a key."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "[redacted]"
SECRET_NAME = re.compile(
    r"(^|_)(api_?keys?|access_?keys?|private_?keys?|signing_?keys?|encryption_?keys?|secrets?|password|passwd|passphrase"
    r"|authorization|credentials?|bearer|signature|jwt)(_|\d|$)"
    r"|(^|_)[a-z]*token(_?\d+|_(read|write|value|admin))?$|(^|_)[a-z]*password$|(^|_)[a-z]*apikey$",
    re.IGNORECASE,
)
ENVIRONMENT_NAME = re.compile(r"[A-Z0-9_]+_(KEY|PAT|PASS|PWD|AUTH|CREDS|COOKIE|DSN|CONNECTION_STRING)")
"""Variables that are secret by custom (`OPENAI_KEY`); a config key of such a name in small letters may be anything."""
HARMLESS_NAME = re.compile(
    r"_(env|path|file|dir|name)$|(^|_)(eos|bos|pad|unk|sep|cls|mask|stop|first|last|per|max|min|num|new|next|input|output|prompt|cached)_token",
    re.IGNORECASE,
)
SECRET_LENGTH_MIN = 6
"""A shorter value of a secret variable is a placeholder, and would be found inside every other word."""
LINE_CHARACTERS_MAX = 1 << 20
"""An engine's log may have a line without end."""

VALUE = r"\"[^\"]*\"|'[^']*'|[^\s\"'&]+"
USERINFO = re.compile(r"(?<=://)[^/?#\s\"']+@")
AUTHORIZATION = re.compile(
    r"(?i)(authorization[\"']?\s*[:=,]\s*[\"']?)(?:(?:basic|bearer|token|digest)\s+)?(?!\[)[^\s\"',}\])]+"
)
BEARER = re.compile(r"(?i)\b(bearer\s+)(?!\[)[^\s\"',;)\]}]{6,}")
QUERY = re.compile(r"([?&;])([\w.-]{1,60})(=)([^\s\"'&;#:,]+)")
QUERY_NAMES = {"key", "sig", "code", "auth", "pass", "pwd"}
FLAG = re.compile(rf"(?<![\w-])(--?)([A-Za-z][\w.-]*)(\s+|=)({VALUE})")
# a name is tried from its first character only (and never given back), or a long line would take hours
ASSIGNED = re.compile(rf"(?<![\w.@/+~-])([\w.@/+~-]++)([\"']?\s*=\s*)({VALUE})")
MAPPED = re.compile(rf"(?<![\w.-])([\w.-]++)([\"']?\s*:\s*)({VALUE})")
WELL_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|xox[abprs]-[\w-]{10,}|nvapi-[A-Za-z0-9_-]{16,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)"
)
WORD = re.compile(r"[+~]*([\w.@/-]+)=(.+)", re.DOTALL)


def secret_name(name: str) -> bool:
    """Whether a key, flag or variable of this name holds a secret (`OPENAI_API_KEY`, `hf_token`; not `max_tokens`)."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", name)
    spaced = re.sub(r"[^A-Za-z0-9]+", "_", spaced).strip("_")
    if HARMLESS_NAME.search(spaced):
        return False
    return bool(SECRET_NAME.search(spaced) or ENVIRONMENT_NAME.fullmatch(spaced))


def _last(name: str) -> str:
    """Return the key itself of a dotted config key (`engine.env.HF_TOKEN`)."""
    return re.split(r"[./@]", name)[-1]


_REMEMBERED: set[str] = set()


def remember(*values: str) -> None:
    """Take these for secrets from now on, wherever they appear: a server or a log may repeat what it was given."""
    _REMEMBERED.update(value for value in values if len(value) >= SECRET_LENGTH_MIN and MARK not in value)


def remember_config(config: Any) -> None:
    """Take for secrets what a config holds under secret names, passwords in its URLs, and the value of each variable that
    it names under `..._env`."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            last = _last(str(name))
            if secret_name(last):
                remember(*_strings(value))
            elif last.endswith("_env") and isinstance(value, str):
                remember(os.environ.get(value, ""))
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
    values = {value for name, value in os.environ.items() if secret_name(name) and len(value) >= SECRET_LENGTH_MIN}
    return sorted(values | _REMEMBERED, key=len, reverse=True)


def without_known(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return the text without the values of `known_secrets` (or of these), and otherwise as it is: for what a model said."""
    for secret in known_secrets() if secrets is None else secrets:
        text = text.replace(secret, MARK)
    return text


def redact_file(path: Path) -> None:
    """Take the secrets out of a text file in its place, line by line; a file without any is left as it is. Raises OSError."""
    if not path.is_file():
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    found = False
    secrets = known_secrets()
    try:
        with (
            path.open(encoding="utf-8", errors="surrogateescape", newline="") as lines,
            beside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as copy,
        ):
            while line := lines.readline(LINE_CHARACTERS_MAX):
                clean = redact_text(line, secrets)
                found = found or clean != line
                copy.write(clean)
        if found:
            beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _hide_value(found: re.Match[str]) -> str:
    """For (name, sign, value): the same with the value hidden where the name is a secret's."""
    name, sign, value = found.groups()
    if not secret_name(_last(name)) or value.strip("\"'") in ("", "null", "None") or value.startswith(MARK):
        return found.group()
    if sign.strip() == ":" and name.lower() == "token":
        return found.group()  # "unexpected token: x" is a parser's complaint
    return f"{name}{sign}{MARK}"


def _hide_query(found: re.Match[str]) -> str:
    before, name, sign, value = found.groups()
    hidden = secret_name(name) or name.lower() in QUERY_NAMES
    return f"{before}{name}{sign}{MARK}" if hidden and value not in ("null", "None") else found.group()


def _hide_flag(found: re.Match[str]) -> str:
    dashes, name, sign, value = found.groups()
    hidden = secret_name(name) and not (sign.isspace() and value.startswith("-"))
    return f"{dashes}{name}{sign}{MARK}" if hidden else found.group()


def redact_text(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return the text without user names and keys in URLs, bearer tokens, values given to secret names, and values of secret
    environment variables."""
    text = without_known(text, secrets)
    text = USERINFO.sub(f"{MARK}@", text)
    text = AUTHORIZATION.sub(rf"\1{MARK}", text)
    text = BEARER.sub(rf"\1{MARK}", text)
    text = QUERY.sub(_hide_query, text)
    text = FLAG.sub(_hide_flag, text)
    text = ASSIGNED.sub(_hide_value, text)
    text = MAPPED.sub(_hide_value, text)
    return WELL_KNOWN.sub(MARK, text)


def _redact_word(word: str, secrets: Sequence[str]) -> str:
    """A word of a command line: after `NAME=` of a secret all of it is secret, commas and blanks too."""
    found = WORD.fullmatch(word)
    if found is not None and secret_name(_last(found[1].lstrip("-"))):
        return word[: found.start(2)] + MARK
    return redact_text(word, secrets)


def _redact_items(items: Sequence[Any], secrets: Sequence[str]) -> list[Any]:
    """A list may be a command, where the word after a secret flag is a secret too unless it is a flag, or a pair of name and
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
    """Everything that a secret's key holds; a number is hidden too, a yes or no and nothing are not."""
    if isinstance(value, Mapping):
        return {name: _hide(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hide(item) for item in value]
    return value if value is None or value == "" or isinstance(value, bool) else MARK


def redact(value: Any) -> Any:
    """Return a copy of plain data without secrets: by the names of keys, and by what strings look like."""
    return _redact(value, known_secrets())


def _redact(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _hide(item) if secret_name(_last(str(name))) else _redact(item, secrets)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _redact_items(value, secrets)
    return redact_text(value, secrets) if isinstance(value, str) else value
