"""Make the pictures of the docs from real runs: `make pictures` (needs tmux and chromium; takes some minutes).

A picture of a terminal is what a command leaves on a terminal of 80 columns, drawn by Rich as SVG; a picture of a page is a
screenshot of it. The runs are made in an empty folder, so the pictures show what a reader gets who types the same words.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
COLUMNS, LINES_KEPT = 80, 2000
TERMINALS: dict[str, tuple[str, ...]] = {"first_run": ()}
"""Pictures of a terminal by name, and the words of the command."""
PAGES = {"demo_report": ("demo", "study.name=demo", "tracking=none")}
"""Pictures of a report by name, and the words of the command that makes it."""
WINDOW = (1280, 1000)
"""The size of the browser's window, in pixels."""


def tmux(*words: str) -> str:
    """Return what tmux prints, on a server of our own. Raises CalledProcessError."""
    command = ("tmux", "-L", f"pictures-{os.getpid()}", "-f", os.devnull, *words)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def screen_after(words: tuple[str, ...], folder: Path) -> str:
    """Return what servebench leaves on a terminal, with colours, after it has ended."""
    command = shlex.join((sys.executable, "-P", "-m", "servebench", *words))
    tmux(
        "new-session", "-d", "-x", str(COLUMNS), "-y", "50", "-c", str(folder),
        f"tmux -L pictures-{os.getpid()} set-option -g history-limit {LINES_KEPT}; exec sh",
    )  # fmt: skip
    tmux("respawn-pane", "-k", "-c", str(folder), f"{command}; tmux -L pictures-{os.getpid()} wait-for -S done; cat")
    tmux("wait-for", "done")
    shown = tmux("capture-pane", "-e", "-p", "-S", "-")
    tmux("kill-server")
    return shown.rstrip()


def draw_terminal(name: str, words: tuple[str, ...], folder: Path) -> None:
    """Run a command and write docs/pictures/NAME.svg."""
    shown = screen_after(words, folder).replace(f"{folder}/", "")
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(f"[bold]$ servebench {shlex.join(words)}[/]".rstrip())
    for line in AnsiDecoder().decode(shown):
        console.print(line)
    console.save_svg(str(PICTURES / f"{name}.svg"), title="servebench", unique_id=name)


def draw_page(name: str, words: tuple[str, ...], folder: Path) -> None:
    """Run a command and write docs/pictures/NAME.png, of the report that it makes."""
    subprocess.run((sys.executable, "-P", "-m", "servebench", *words), check=True, capture_output=True, cwd=folder)
    page = max(folder.glob("outputs/*/report.html"), key=os.path.getmtime)
    options = ("--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=8000")
    to = (f"--screenshot={PICTURES / name}.png", f"--window-size={WINDOW[0]},{WINDOW[1]}")
    subprocess.run(("chromium", *options, *to, page.as_uri()), check=True, capture_output=True)


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for picture, words in TERMINALS.items():
            draw_terminal(picture, words, folder)
        for picture, words in PAGES.items():
            draw_page(picture, words, folder)


if __name__ == "__main__":
    main()
