"""What redaction hid by patterns that could take quadratic time: whatever they hid must still be hidden."""

import re

from servebench.util.secret_patterns import MARK, QUERY_NAMES, secret_name

VALUE = r"\"[^\"]*\"|'[^']*'|[^\s\"'&]+"
USERINFO = re.compile(r"(?<=://)[^/?#\s\"']+@")
AUTHORIZATION = re.compile(
    r"(?i)(authorization[\"']?\s*[:=,]\s*[\"']?)(?:(?:basic|bearer|token|digest)\s+)?(?!\[)[^\s\"',}\])]+"
)
BEARER = re.compile(r"(?i)\b(bearer\s+)(?!\[)[^\s\"',;)\]}]{6,}")
QUERY = re.compile(r"([?&;])([\w.-]{1,60})(=)([^\s\"'&;#:,]+)")
FLAG = re.compile(rf"(?<![\w-])(--?)([A-Za-z][\w.-]*)(\s+|=)({VALUE})")
ASSIGNED = re.compile(rf"(?<![\w.@/+~-])([\w.@/+~-]++)([\"']?\s*=\s*)({VALUE})")
MAPPED = re.compile(rf"(?<![\w.-])([\w.-]++)([\"']?\s*:\s*)({VALUE})")
WELL_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|xox[abprs]-[\w-]{10,}|nvapi-[A-Za-z0-9_-]{16,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)"
)


def _value(found):
    name, sign, value = found.groups()
    if not secret_name(re.split(r"[./@]", name)[-1]) or value.strip("\"'") in ("", "null", "None"):
        return found.group()
    if value.startswith(MARK) or (sign.strip() == ":" and name.lower() == "token"):
        return found.group()
    return f"{name}{sign}{MARK}"


def _query(found):
    before, name, sign, value = found.groups()
    hidden = secret_name(name) or name.lower() in QUERY_NAMES
    return f"{before}{name}{sign}{MARK}" if hidden and value not in ("null", "None") else found.group()


def _flag(found):
    dashes, name, sign, value = found.groups()
    return (
        f"{dashes}{name}{sign}{MARK}"
        if secret_name(name) and not (sign.isspace() and value.startswith("-"))
        else found.group()
    )


def formerly_redacted(text):
    """Return the text as it was redacted before."""
    text = USERINFO.sub(f"{MARK}@", text)
    text = AUTHORIZATION.sub(rf"\1{MARK}", text)
    text = BEARER.sub(rf"\1{MARK}", text)
    for pattern, hide in ((QUERY, _query), (FLAG, _flag), (ASSIGNED, _value), (MAPPED, _value)):
        text = pattern.sub(hide, text)
    return WELL_KNOWN.sub(MARK, text)
