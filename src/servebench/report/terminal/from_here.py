"""Commands as they are from the current folder."""

import os
import re
import shlex
import shutil
import sysconfig
from contextlib import suppress
from pathlib import Path

COMMAND = re.compile(r"(?:(?<=['`(])|(?<=: )|(?<![^\n]))(?:servebench(?= (?!was )\S)|mlflow(?= ui ))")
"""The name of a program where a command begins: a text, a line, a quotation, or what follows a colon."""


def commands_from_here(text: str) -> str:
    """Return text whose commands can be pasted: where PATH has another program of that name than this installation, or none,
    commands begin with the path of this installation's. Beside a command, paths below the current folder lack its name."""
    if COMMAND.search(text) is None:
        return text
    with suppress(OSError):
        text = re.sub(rf"(?<![^\s'\"=:(]){re.escape(str(Path.cwd()))}/(?=[\w.])", "", text)
    return COMMAND.sub(lambda found: _program(found[0]), text)


def _program(name: str) -> str:
    own = Path(sysconfig.get_path("scripts"), name)
    found = shutil.which(name)
    if not own.exists() or (found is not None and own.samefile(found)):
        return name
    places = [shlex.quote(str(own))]
    with suppress(OSError, RuntimeError):
        places += ["~/" + shlex.quote(str(own.relative_to(Path.home())))] if own.is_relative_to(Path.home()) else []
        beside = os.path.relpath(own)
        places.append(shlex.quote(beside if os.sep in beside else f".{os.sep}{beside}"))
    return min(places, key=len)
