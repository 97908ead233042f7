"""What all launchers know of an engine that serves."""

from dataclasses import dataclass, field
from pathlib import Path

from servebench.contracts.engine import Command, StartPhase
from servebench.contracts.request import Tokenizer


@dataclass(kw_only=True)
class EngineHandle:
    """The attributes of a RunningEngine; a launcher's own class adds `died` and `stop`."""

    base_url: str
    root_url: str
    model: str
    started_ns: int
    phases: tuple[StartPhase, ...] = ()
    version: str | None = None
    pid: int | None = None
    command: Command | None = None
    log_path: Path | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    verify_tls: bool = True
    tokenizer: Tokenizer | None = None
    """How the server counts tokens, if that is known without asking it."""
