"""Where models and other big files are kept."""

import os
from pathlib import Path

from servebench.util.errors import ConfigError

CACHE_VARIABLE = "SERVEBENCH_CACHE"


def cache_folder() -> Path:
    """Return where models, other big files and the signing key are kept: `SERVEBENCH_CACHE`, else `~/.cache/servebench`. Raises
    ConfigError for a relative SERVEBENCH_CACHE: a stranger's folder could bring its own key. A relative XDG_CACHE_HOME is
    ignored, as the XDG Base Directory Specification says."""
    asked = os.environ.get(CACHE_VARIABLE)
    if asked:
        folder = Path(asked).expanduser()
        if not folder.is_absolute():
            raise ConfigError(
                f"{CACHE_VARIABLE}={asked} is relative, so it would be another folder in each directory; give a full path"
            )
        return folder
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "servebench"
