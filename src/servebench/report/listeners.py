"""Who listens to the events of a study: the terminal, and the life-cycle hooks of plugins."""

from collections.abc import Iterator
from contextlib import contextmanager

from servebench.contracts.events import ErrorSaid, Event, Events, Listen
from servebench.registry.registry import Registry
from servebench.report.terminal.display import Detail, Display


def listeners(registry: Registry, detail: Detail | None = None) -> Listen:
    """Return what opens the listeners of a study; `detail` is what the terminal prints. Faults of plugins are said once."""
    said: set[str] = set()

    @contextmanager
    def opened() -> Iterator[Events]:
        with Display(detail=detail) as display:

            def tell(event: Event) -> None:
                for fault in {*registry.faults, *registry.notify(event)} - said:
                    said.add(fault)
                    display(ErrorSaid(fault))

            yield Events((display, tell), live=display.lively)

    return opened
