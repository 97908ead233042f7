"""Secrets are taken out of everything that is written or sent: better a harmless word too many than a key."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import quote

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
LINE_LENGTH_MIN = 16
"""A shorter line of a secret of several may be in any text."""
NAME_LENGTH_MAX = 200
"""Of a longer name the end says what it names."""

NAME_WORDS = (
    *("key", "token", "secret", "pass", "auth", "cred", "bearer", "sig", "jwt", "pat", "pwd", "cookie", "dsn"),
    *("connection", "code"),
)
"""Each name of a secret has one of these."""
QUERY_NAMES = {"key", "sig", "code", "auth", "pass", "pwd"}
"""Names that are secret in the query of a URL."""

# All patterns take linear time, whatever the text: a repeat never gives back what it took (`++`), and nothing that can be
# long is tried again from its second character. `tests/fuzz` tries each of them.
USERINFO = re.compile(r"(?<=://)[^/?#\s\"']+@")
_SCHEMES = r"(?:basic|bearer|token|digest|negotiate|ntlm|apikey)"
AUTHORIZATION = re.compile(
    r"(?i)authorization\\*+[\"']?+\]?+\s*+[:=,]\s*+\\*+[\"']?+"
    rf"((?:{_SCHEMES}\s++)?(?:\[redacted\]|[^\s\"',}}\])]++))"
)
BEARER = re.compile(r"(?i)\bbearer\s++[=:\\]*+(\[redacted\]|[^\s\"',;)\]}]{6,}+)")
WELL_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}+|hf_[A-Za-z0-9]{16,}+|gh[pousr]_[A-Za-z0-9]{20,}+|github_pat_\w{20,}+|glpat-[\w-]{16,}+"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}+|xox[abprs]-[\w-]{10,}+|nvapi-[A-Za-z0-9_-]{16,}+)"
    r"|(?<![\w-])[\w-]{11,}+\.eyJ[\w-]{8,}+\.[\w-]*+"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*+"
)
WELL_KNOWN_WORDS = ("sk-", "hf_", "gh", "glpat-", "AKIA", "AIza", "xox", "nvapi-", ".eyJ", "PRIVATE KEY")
_RUN = r"[\w.@/+~-]"
HEAD = re.compile(
    rf"(?<!{_RUN})({_RUN}++)"
    rf"(\\*+[\"']?+\]?+\s*+[=:]{{1,2}}+>?+\s*+\\*+|\s++|\\*+[\"'],\s*+\\*+)"
)
"""A name that may be a secret's, and what joins it with its value: `=`, `:`, and after a flag a space or a comma."""
VALUE = re.compile(
    r"(?:[bru]{1,2}+|[\w.]++\()?(?:\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"|'[^'\\]*+(?:\\.[^'\\]*+)*+'|[\"'][^\n]*+)"
    r"|[\[({][^\])}\n]*+[\])}]?+[^\s\"'&]*+"
    r"|[^\s\"'&]++(?:(?:(?<=[=:(\[{])|(?<=[=:(\[{]b))(?:\"[^\"\n]*+|'[^'\n]*+)[\"']?+)?+",
    re.DOTALL | re.IGNORECASE,
)
"""A quoted text, which may be cut off; a list; a word."""
ESCAPED_VALUE = re.compile(r"[\"'][^\"'\\]*+|[^\s\"'&\\]++")
"""A value in a text that is itself quoted: its quotes have a backslash before them."""
QUERY_VALUE = re.compile(r"[^\s\"'&;#:,]++")
_ENDS = r"(?=[,;:.)\]}]*+(?:[\s\"']|$))"
NO_VALUE = re.compile(
    rf"(?:\"(?:null|None)?\"(?![^\s,;)\]}}])|'(?:null|None)?'(?![^\s,;)\]}}])|(?:null|None|true|True|false|False){_ENDS})"
    r"|[\"']?\[redacted\]"
)
_PROSE = (
    "(?:a|an|and|be|by|cannot|does|empty|environment|exist|export|field|for|found|from|given|has|in|input|invalid|is|it|missing"
    "|must|no|not|of|or|required|set|should|that|the|this|unknown|unset|valid|value|variable|was)"
)
MESSAGE = re.compile(rf"{_PROSE}[ ]{_PROSE}\b|[A-Z][A-Z0-9]*+(?:_[A-Z0-9]++)++{_ENDS}")
"""What stands after a name without being its value: a sentence about it, or a variable's name."""
_MESSAGE_STARTS = frozenset("\"'[ABCDEFGHIJKLMNOPQRSTUVWXYZabcefgimnorstuvw")
_FLAG = re.compile(r"(?<![\w-])--?(?=[A-Za-z])")
Kind = Literal["key", "token", "flag", "query"]
VALUES = {"key": VALUE, "token": VALUE, "flag": VALUE, "query": QUERY_VALUE}
WORD = re.compile(r"[+~]*+([\w.@/-]++)=(.+)", re.DOTALL)


def secret_name(name: str) -> bool:
    """Whether a key, flag or variable of this name holds a secret (`OPENAI_API_KEY`, `hf_token`; not `max_tokens`)."""
    return _is_secret(name[-NAME_LENGTH_MAX:])


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", name)
    spaced = re.sub(r"[^A-Za-z0-9]+", "_", spaced).strip("_")
    if HARMLESS_NAME.search(spaced):
        return False
    return bool(SECRET_NAME.search(spaced) or ENVIRONMENT_NAME.fullmatch(spaced))


def _last(name: str) -> str:
    """Return the key itself of a dotted config key (`engine.env.HF_TOKEN`)."""
    return re.split(r"[./@+~]", name.rstrip("./@+~"))[-1]


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
    values = {value for name, value in os.environ.items() if secret_name(name)} | _REMEMBERED
    forms = {form for value in values for form in _forms(value) if len(form) >= SECRET_LENGTH_MIN}
    return sorted(forms, key=len, reverse=True)


def _forms(value: str) -> Iterator[str]:
    """Return a secret as it may stand in a text: as it is, its long lines, in JSON, in a URL."""
    yield value
    yield from (line for line in value.splitlines() if len(line) >= LINE_LENGTH_MIN)
    yield from (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe=""))


def without_known(text: str, secrets: Sequence[str] | None = None) -> str:
    """Return the text without the values of `known_secrets` (or of these), and otherwise as it is: for what a model said."""
    for secret in known_secrets() if secrets is None else secrets:
        text = text.replace(secret, MARK)
    return text


Hidden = tuple[int, int, int]
"""A secret in a text: where it starts and ends, and where the name begins that makes it one."""


def find_secrets(text: str, secrets: Sequence[str]) -> list[Hidden]:
    """Return where secrets are in a text, in order: these, user names and keys in URLs, bearer tokens, values given to secret
    names, and keys of well-known forms."""
    found = []
    for secret in secrets:
        start = text.find(secret)
        while start >= 0:
            found.append((start, start + len(secret), start))
            start = text.find(secret, start + len(secret))
    if "://" in text:
        found += [(one.start(), one.end() - 1, one.start()) for one in USERINFO.finditer(text)]
    if any(word in text for word in WELL_KNOWN_WORDS):
        found += [(*one.span(), one.start()) for one in WELL_KNOWN.finditer(text)]
    lower = text.lower()
    if any(word in lower for word in NAME_WORDS):
        schemes = (one for pattern in (AUTHORIZATION, BEARER) for one in pattern.finditer(text))
        found += [(*one.span(1), one.start()) for one in schemes if not _is_message(text, one.start(1))]
        found += _named_values(text)
    return sorted(found)


def _named_values(text: str) -> list[Hidden]:
    """Return the values that stand after secret names."""
    found, end = [], 0
    for head in HEAD.finditer(text):
        name, sign = head.groups()
        kind = _kind(name[-NAME_LENGTH_MAX:], sign.isspace() or "," in sign)
        # what is inside a value is hidden with it
        if kind is None or (position := head.end()) < end - 1:
            continue
        if _is_harmless(kind, text, head.start(), sign, position) or _is_message(text, position):
            continue
        pattern = ESCAPED_VALUE if sign.endswith("\\") and kind != "query" else VALUES[kind]
        if (value := pattern.match(text, position)) is not None:
            end = value.end()
            found.append((position, end, max(0, head.start() - 1)))
    return found


@lru_cache(maxsize=4096)
def _kind(name: str, after_space: bool) -> Kind | None:
    """Return what kind of secret has this name; null for none. After a space only that of a flag has one."""
    flag = _FLAG.search(name)
    if flag is not None and _is_secret(name[flag.end() :]):
        return "flag" if after_space else "key"
    if after_space:
        return None
    if _is_secret(last := _last(name)):
        return "token" if last.lower() == "token" else "key"
    return "query" if name.lower() in QUERY_NAMES or _is_secret(name) else None


def _is_harmless(kind: Kind, text: str, begin: int, sign: str, position: int) -> bool:
    """Whether what stands before or after a name says that it has no secret."""
    if kind == "flag":
        return text.startswith("-", position)
    if kind == "query":
        return not sign.startswith("=") or begin == 0 or text[begin - 1] not in "?&;"
    # "unexpected token: x" is a parser's complaint
    return (
        kind == "token"
        and sign.strip() == ":"
        and begin > 1
        and text[begin - 1].isspace()
        and text[begin - 2].isalpha()
    )


def _is_message(text: str, start: int) -> bool:
    """Whether no secret begins here although the name before is one's: nothing, a sentence, or the name of a variable."""
    if text[start : start + 1] not in _MESSAGE_STARTS:
        return False
    if NO_VALUE.match(text, start):
        return True
    found = MESSAGE.match(text, start)
    return found is not None and (not found[0][:1].isupper() or secret_name(found[0]))


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
