"""What secrets look like in a text: names that hold them, values that stand after such names, keys of well-known forms.

All patterns take linear time, whatever the text: a repeat never gives back what it took (`++`), and nothing that can be long is
tried again from its second character. `tests/fuzz/test_time.py` tries them.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

MARK = "[redacted]"
SECRET_NAME = re.compile(
    r"(^|_)((api|access|account|subscription|functions?|private|signing|encryption)_?keys?|secrets?|password|passwd|passphrase"
    r"|authorization|credentials?|bearer|signature|jwt|cookies?)(_|\d|$)|(^|_)x_auth$"
    r"|(^|_)[a-z]*token(_?\d+|_(read|write|value|admin))?$|(^|_)[a-z]*password$|(^|_)[a-z]*apikey$",
    re.IGNORECASE,
)
ENVIRONMENT_NAME = re.compile(r"[A-Z0-9_]+_(KEY|PAT|PASS|PWD|AUTH|CREDS|COOKIE|DSN|CONNECTION_STRING)")
"""Variables that are secret by custom (`OPENAI_KEY`); a config key of such a name in small letters may be anything."""
HARMLESS_NAME = re.compile(
    r"_(env|path|file|dir|name)$|(^|_)api_key_header$|(^|_)(eos|bos|pad|unk|sep|cls|mask|stop|first|last|per|max|min|num|new|next|input|output|prompt|cached)_token",
    re.IGNORECASE,
)
NAME_LENGTH_MAX = 200
"""Of a longer name the end says what it names."""

NAME_WORDS = (
    *("key", "token", "secret", "pass", "auth", "cred", "bearer", "sig", "jwt", "pat", "pwd", "cookie", "dsn"),
    *("connection", "code"),
)
"""Each name of a secret has one of these."""
QUERY_NAMES = {"key", "sig", "code", "auth", "pass", "pwd"}
"""Names that are secret in the query of a URL."""

USERINFO = re.compile(r"(?<=://)[^/?#\s\"']+@")
_SCHEMES = r"(?:basic|bearer|token|digest|negotiate|ntlm|apikey)"
AUTHORIZATION = re.compile(
    r"(?i)authorization\\*+[\"']?+\]?+\s*+[:=,]\s*+\\*+[\"']?+"
    rf"((?:{_SCHEMES}\s++)?(?:\[redacted\]|[^\s\"',}}\])]++))"
)
BEARER = re.compile(r"(?i)\bbearer\s++[=:\\]*+(\[redacted\]|[^\s\"',;)\]}]{6,}+)")
SCHEMES = {"authorization": AUTHORIZATION, "bearer": BEARER}
WELL_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}+|hf_[A-Za-z0-9]{16,}+|gh[pousr]_[A-Za-z0-9]{20,}+|github_pat_\w{20,}+|glpat-[\w-]{16,}+"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}+|xox[abprs]-[\w-]{10,}+|nvapi-[A-Za-z0-9_-]{16,}+)"
    r"|(?<![\w-])[\w-]{11,}+\.eyJ[\w-]{8,}+\.[\w-]*+"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*+"
)
WELL_KNOWN_WORDS = ("sk-", "hf_", "gh", "glpat-", "AKIA", "AIza", "xox", "nvapi-", ".eyJ", "PRIVATE KEY")
_RUN = r"[\w.@/+~-]"
_SIGN = r"\\*+[\"']?+\]?+\s*+[=:]{1,2}+>?+\s*+\\*+"
HEAD = re.compile(rf"(?<!{_RUN})({_RUN}++)({_SIGN})")
"""A name that may be a secret's, and what joins it with its value: `=` or `:`."""
HEAD_OR_FLAG = re.compile(rf"(?<!{_RUN})({_RUN}++)({_SIGN}|\s++|\\*+[\"'],\s*+\\*+)")
"""The same in a text with flags, whose values follow a space or a comma."""
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
_MESSAGE_STARTS = frozenset("\"'[ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghimnorstuvw")
_FLAG = re.compile(r"(?<![\w-])--?(?=[A-Za-z])")
Kind = Literal["key", "token", "flag", "query"]
VALUES = {"key": VALUE, "token": VALUE, "flag": VALUE, "query": QUERY_VALUE}


def secret_name(name: str) -> bool:
    """Whether a key, flag or variable of this name holds a secret (`hf_token`; not `max_tokens`)."""
    return _is_secret(name[-NAME_LENGTH_MAX:])


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", name)
    spaced = re.sub(r"[^A-Za-z0-9]+", "_", spaced).strip("_")
    if HARMLESS_NAME.search(spaced):
        return False
    return bool(SECRET_NAME.search(spaced) or ENVIRONMENT_NAME.fullmatch(spaced))


def last_part(name: str) -> str:
    """Return the key itself of a dotted config key (`engine.env.HF_TOKEN`); `headers_env` below that, which names variables."""
    *_, parent, last = ["", *re.split(r"[./@+~]", name.rstrip("./@+~"))]
    return parent if parent == "headers_env" else last


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
        patterns = (pattern for word, pattern in SCHEMES.items() if word in lower)
        schemes = (one for pattern in patterns for one in pattern.finditer(text))
        found += [(*one.span(1), one.start()) for one in schemes if not _is_message(text, one.start(1))]
        found += _named_values(text)
    return sorted(found)


def _named_values(text: str) -> list[Hidden]:
    found, end = [], 0
    for head in (HEAD_OR_FLAG if _FLAG.search(text) else HEAD).finditer(text):
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
    if _is_secret(last := last_part(name)):
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
