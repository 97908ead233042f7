"""What a search knows of a measured point."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The part of a point that a search uses. `good` of `judged` requests met the SLO, the others in bursts of
    `design_effect` (null: none missed it); `kept_up` is, in an open loop, the share of the arrivals that did not stay in
    flight, and `completed_req_s` the requests that were answered, a second. Its window took `seconds`. `usable` is false if the
    point says nothing about its level (the clock was stepped); `doubts` are its warning codes."""

    point: str
    level: float
    good: int = 0
    judged: int = 0
    design_effect: float | None = None
    throughput_tok_s: float | None = None
    completed_req_s: float | None = None
    kept_up: float | None = None
    seconds: float = 0.0
    usable: bool = True
    doubts: tuple[str, ...] = ()
