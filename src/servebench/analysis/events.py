"""The conclusions of a study as events; all others are in `contracts.events`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servebench.contracts.events import Event

if TYPE_CHECKING:
    from servebench.analysis.conclude import Conclusions
    from servebench.analysis.tuning.answer import TuneAnswer


class StudyAnswered(Event):
    """What a whole study says, or so far."""

    found: Conclusions


class TuneAnswered(Event):
    """The answer of a tune, whole or so far."""

    answer: TuneAnswer
