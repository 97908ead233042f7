"""Where models and other big files are kept."""

import os
from pathlib import Path

CACHE_VARIABLE = "SERVEBENCH_CACHE"


def cache_folder() -> Path:
    """Where models and other big files are kept: `SERVEBENCH_CACHE`, else `~/.cache/servebench`."""
    asked = os.environ.get(CACHE_VARIABLE)
    if asked:
        return Path(asked).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "servebench"
