"""What a command does to its surroundings: the files that it opens, the programs it starts, the addresses it asks for."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.spawn")
SENDS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request")
TOUCHES = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link",
           "os.chmod", "os.truncate", "os.utime", "sqlite3.connect", "glob.glob", "shutil.copyfile", "shutil.move")  # fmt: skip
KINDS = frozenset((*STARTS, *SENDS, *TOUCHES, "socket.bind"))

_seen: list[tuple[str, tuple[Any, ...]]] | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _seen is not None and event in KINDS:
        _seen.append((event, args))


# Python keeps a hook until the process ends; it only looks while a test records
sys.addaudithook(_hook)


class Acts:
    """What was seen: pairs of an audit event of Python and its arguments."""

    def __init__(self, seen: list[tuple[str, tuple[Any, ...]]]) -> None:
        self._seen = seen

    def of(self, *kinds: str) -> list[str]:
        """Return these events, as text."""
        return [f"{kind} {args}" for kind, args in self._seen if kind in kinds]

    def naming(self, word: str, inside: Path) -> list[str]:
        """Return what was done with anything whose name has this word, other than with files inside a folder."""
        found = [(kind, args) for kind, args in self._seen if word in repr(args)]
        return [f"{kind} {args}" for kind, args in found if not (kind in TOUCHES and _is_inside(args[0], inside))]

    def opened(self, inside: Path) -> set[str]:
        """Return the files in a folder that were opened to be read, by their paths in it."""
        paths = [args[0] for kind, args in self._seen if kind == "open" and not _writes(args)]
        own = [_whole(path) for path in paths if isinstance(path, (str, bytes))]
        return {str(path.relative_to(inside)) for path in own if path.is_relative_to(inside) and path != inside}


def _writes(args: tuple[Any, ...]) -> bool:
    _, mode, flags = args
    return bool(flags & (os.O_WRONLY | os.O_CREAT)) if mode is None else any(one in mode for one in "wax")


def _is_inside(path: Any, folder: Path) -> bool:
    return isinstance(path, (str, bytes)) and _whole(path).is_relative_to(folder)


def _whole(path: str | bytes) -> Path:
    # without following links
    return Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100


@contextmanager
def recorded() -> Iterator[Acts]:
    """Record what this process does."""
    global _seen  # noqa: PLW0603 - the hook cannot be removed
    _seen = []
    try:
        yield Acts(_seen)
    finally:
        _seen = None
