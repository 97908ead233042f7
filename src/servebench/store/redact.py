"""Secrets are taken out of everything that is written or sent."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

MARK = "[redacted]"
SECRET_NAME = re.compile(
    r"(^|[^a-z])(api_?key|apikey|access_?key|secret|password|passwd|passphrase|authorization|credentials?|bearer|private_?key"
    r"|[a-z]*_?token)($|[^a-z])",
    re.IGNORECASE,
)
HARMLESS_NAME = re.compile(
    r"api_key_env$|(^|_)(eos|bos|pad|unk|stop|first|last|per|max|min)_token|token_ids?$", re.IGNORECASE
)
SECRET_LENGTH_MIN = 6
USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
QUERY = re.compile(r"(?i)([?&](?:[a-z_-]*key|[a-z_-]*token|secret|password|sig|signature)=)[^&\s\"']+")
BEARER = re.compile(r"(?i)\b(bearer\s+)[a-z0-9._~+/=-]{6,}")
FLAG = re.compile(r"(?i)(--?(?:[a-z-]*api-?key|[a-z-]*token|[a-z-]*password|[a-z-]*secret)[= ])(\S+)")
WELL_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|nvapi-[A-Za-z0-9_-]{16,})"
)


def secret_name(name: str) -> bool:
    """Whether a key or variable of this name holds a secret (`OPENAI_API_KEY`, `hf_token`; not `max_tokens`)."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).replace("-", "_")
    return bool(SECRET_NAME.search(spaced)) and not HARMLESS_NAME.search(spaced)


def _environment_secrets() -> list[str]:
    values = {value for name, value in os.environ.items() if secret_name(name) and len(value) >= SECRET_LENGTH_MIN}
    return sorted(values, key=len, reverse=True)


def redact_text(text: str) -> str:
    """The text without user names and keys in URLs, bearer tokens, key flags, and values of secret variables."""
    for secret in _environment_secrets():
        text = text.replace(secret, MARK)
    text = USERINFO.sub(f"{MARK}@", text)
    text = QUERY.sub(rf"\1{MARK}", text)
    text = BEARER.sub(rf"\1{MARK}", text)
    text = FLAG.sub(rf"\1{MARK}", text)
    return WELL_KNOWN.sub(MARK, text)


def _after_flag(items: list[Any]) -> list[Any]:
    """The values that follow a secret flag in a command are secrets too."""
    hidden = False
    result = []
    for item in items:
        result.append(MARK if hidden else item)
        hidden = isinstance(item, str) and item.startswith("-") and "=" not in item and secret_name(item.lstrip("-"))
    return result


def redact(value: Any) -> Any:
    """A copy of plain data without secrets: by the names of keys, and by what strings look like."""
    if isinstance(value, Mapping):
        return {
            name: MARK if isinstance(item, str) and item and secret_name(str(name)) else redact(item)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _after_flag([redact(item) for item in value])
    return redact_text(value) if isinstance(value, str) else value
