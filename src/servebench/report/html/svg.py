"""Small charts as SVG text: axes, lines with intervals, points, bars, spans. No script, no font, no network.

Series differ by colour, marker and dash, so that they stay distinct with colour blindness and in black and white.
The colours are those of Okabe and Ito (2008). All text is escaped here.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6D00", "#56B4E9", "#000000", "#7A7A7A")
DASHES = ("", "6 3", "2 2", "8 3 2 3", "4 4", "1 3", "10 4", "3 1")
MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross", "plus", "circle")
WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 14, 42
LEGEND_ROW = 16
LETTER = 6.1
"""The approximate width of a letter at the size of the labels."""
TICKS = 5


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A point of a series. `low` and `high` are its interval on the y axis; a doubtful point is `hollow`."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    size: float = 4.0
    tip: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name. `index` chooses colour, marker and dash; a `plain` line has no markers, a `swatch` stands
    for a filled part of a bar."""

    name: str
    dots: Sequence[Dot]
    index: int = 0
    line: bool = True
    plain: bool = False
    swatch: bool = False


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis, with its unit in the title."""

    title: str
    log: bool = False
    ticks: Sequence[float] | None = None
    zero: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A horizontal line across the chart, such as a limit."""

    y: float
    text: str


@dataclass
class Scale:
    """Maps values to positions."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: list[float] = field(default_factory=list)

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = (math.log10(max(v, 1e-12)) for v in (low, high, at))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def tick_text(value: float) -> str:
    """Return a short label for a tick."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def scale(values: Iterable[float], start: float, end: float, axis: Axis) -> Scale:
    """Return a scale that contains all values, with round ticks."""
    kept = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)] or (
        [1.0, 10.0] if axis.log else [0.0, 1.0]
    )
    low, high = min(kept), max(kept)
    if axis.log:
        return _log_scale(low, high, start, end, axis)
    if axis.zero:
        low, high = min(0.0, low), max(0.0, high)
    if low == high:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    step = _step((high - low) / TICKS)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = list(axis.ticks) if axis.ticks is not None else [round(n * step, 12) for n in range(first, last + 1)]
    return Scale(min(first * step, low), max(last * step, high), start, end, ticks=ticks)


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _log_scale(low: float, high: float, start: float, end: float, axis: Axis) -> Scale:
    if axis.ticks is not None:
        room = (high / low) ** 0.04 if high > low else 1.5
        return Scale(low / room, high * room, start, end, log=True, ticks=list(axis.ticks))
    if high / low < 10:
        low, high = low / 1.15, high * 1.15
        decade = 10.0 ** math.floor(math.log10(low))
        every = [decade * f * p for p in (1, 10) for f in (1, 1.5, 2, 3, 4, 5, 6, 8)]
        inside = [t for t in every if low <= t <= high]
        if len(inside) < TICKS // 2 + 1:
            step = _step((high - low) / TICKS)
            inside = [round(n * step, 12) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
        return Scale(low, high, start, end, log=True, ticks=inside or [low, high])
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [10.0**p * f for p in range(first, last + 1) for f in factors]
    low, high = low / 1.2, high * 1.2
    return Scale(low, high, start, end, log=True, ticks=[t for t in ticks if low <= t <= high])


def _text(x: float, y: float, words: str, *, anchor: str = "middle", kind: str = "t", turn: bool = False) -> str:
    rotate = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{rotate}>{escape(words)}</text>'


def _marker(kind: str, x: float, y: float, size: float, style: str) -> str:
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" {style}/>'
    if kind == "square":
        return f'<rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size:.1f}" height="{2 * size:.1f}" {style}/>'
    s = size * 1.2
    paths = {
        "triangle": f"M{x:.1f} {y - s:.1f}l{s:.1f} {2 * s:.1f}h{-2 * s:.1f}z",
        "down": f"M{x:.1f} {y + s:.1f}l{s:.1f} {-2 * s:.1f}h{-2 * s:.1f}z",
        "diamond": f"M{x:.1f} {y - s:.1f}l{s:.1f} {s:.1f}l{-s:.1f} {s:.1f}l{-s:.1f} {-s:.1f}z",
        "cross": f"M{x - s:.1f} {y - s:.1f}l{2 * s:.1f} {2 * s:.1f}m0 {-2 * s:.1f}l{-2 * s:.1f} {2 * s:.1f}",
        "plus": f"M{x - s:.1f} {y:.1f}h{2 * s:.1f}m{-s:.1f} {-s:.1f}v{2 * s:.1f}",
    }
    return f'<path d="{paths[kind]}" {style}/>'


def _style(index: int, *, hollow: bool) -> str:
    colour = COLOURS[index % len(COLOURS)]
    fill = "#fff" if hollow else colour
    return f'fill="{fill}" stroke="{colour}" stroke-width="1.6"'


def _legend(series: Sequence[Series], width: float) -> tuple[list[str], float]:
    """The legend in as many rows as it needs, and its height."""
    parts: list[str] = []
    x, y = float(LEFT), 10.0
    for one in series:
        name = shortened(one.name, int((width - LEFT - RIGHT - 26) / LETTER))
        space = 26 + LETTER * len(name) + 10
        if x + space > width - RIGHT and x > LEFT:
            x, y = float(LEFT), y + LEGEND_ROW
        index = one.index % len(COLOURS)
        if one.line:
            parts.append(
                f'<line x1="{x}" y1="{y - 4:.1f}" x2="{x + 20}" y2="{y - 4:.1f}" stroke="{COLOURS[index]}" stroke-width="2" '
                f'stroke-dasharray="{DASHES[index]}"/>'
            )
        if not one.plain:
            marker = "square" if one.swatch else MARKERS[index]
            parts.append(_marker(marker, x + 10, y - 4, 5 if one.swatch else 3.5, _style(index, hollow=False)))
        parts.append(_text(x + 24, y, name, anchor="start"))
        x += space
    return parts, y + 8


def shortened(text: str, length: int) -> str:
    """Return the text, cut in the middle if it is longer."""
    if len(text) <= length:
        return text
    head = max(1, (length - 1) // 2)
    return f"{text[:head]}…{text[-(max(1, length - 1 - head)) :]}"


def chart(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    title: str,
    marks: Sequence[Mark] = (),
    height: int = HEIGHT,
    width: int = WIDTH,
) -> str | None:
    """Draw lines or points over two axes as an SVG element. Series without points are left out; None if all are."""
    series = [one for one in series if one.dots]
    if not series:
        return None
    named, head = _legend(series, width) if len(series) > 1 else ([], 0.0)
    top = TOP + head
    height = int(height + head)
    xs = [dot.x for one in series for dot in one.dots]
    ys = [v for one in series for dot in one.dots for v in (dot.y, dot.low, dot.high) if v is not None]
    across = scale(xs, LEFT, width - RIGHT, x)
    up = scale([*ys, *(mark.y for mark in marks)], height - BOTTOM, top, y)
    parts = [*named, *_frame(across, up, x, y, (width, height, top))]
    for mark in marks:
        place = up(mark.y)
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{width - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(_text(width - RIGHT - 2, place - 4, mark.text, anchor="end", kind="t lim"))
    for one in series:
        parts += _drawn(one, across, up)
    return figure(parts, title, width, height)


def figure(parts: Sequence[str], title: str, width: int, height: int) -> str:
    """Return an SVG element with a title for screen readers."""
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _frame(across: Scale, up: Scale, x: Axis, y: Axis, size: tuple[int, int, float]) -> list[str]:
    width, height, top = size
    parts = []
    last = -math.inf
    for tick in sorted(across.ticks):
        place = across(tick)
        if not LEFT - 1 <= place <= width - RIGHT + 1:
            continue
        parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{top}" y2="{height - BOTTOM}"/>')
        words = tick_text(tick)
        if place - last > LETTER * len(words) + 6:
            parts.append(_text(place, height - BOTTOM + 15, words))
            last = place
    for tick in up.ticks:
        place = up(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(_text(LEFT - 5, place + 4, tick_text(tick), anchor="end"))
    parts.append(_text((LEFT + width - RIGHT) / 2, height - 8, x.title, kind="t ax"))
    parts.append(_text(13, (top + height - BOTTOM) / 2, y.title, kind="t ax", turn=True))
    return parts


def _drawn(one: Series, across: Scale, up: Scale) -> list[str]:
    index = one.index % len(COLOURS)
    colour = COLOURS[index]
    parts = []
    places = [(across(dot.x), up(dot.y)) for dot in one.dots]
    if one.line and len(places) > 1:
        joined = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        parts.append(
            f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.8" '
            f'stroke-dasharray="{DASHES[index]}"/>'
        )
    for dot, (px, py) in zip(one.dots, places, strict=True):
        if dot.low is not None and dot.high is not None:
            a, b = up(dot.low), up(dot.high)
            parts.append(
                f'<path d="M{px:.1f} {a:.1f}V{b:.1f}M{px - 3:.1f} {a:.1f}h6M{px - 3:.1f} {b:.1f}h6" '
                f'stroke="{colour}" stroke-width="1.2" fill="none"/>'
            )
        if not one.plain:
            drawn = _marker(MARKERS[index], px, py, dot.size, _style(index, hollow=dot.hollow))
            parts.append(f"<g>{drawn}<title>{escape(dot.tip)}</title></g>" if dot.tip else drawn)
    return parts


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of a bar chart: stacked parts (name, length), and the interval of their sum."""

    name: str
    parts: Sequence[tuple[str, float]]
    low: float | None = None
    high: float | None = None


def bars(rows: Sequence[Bar], x: Axis, *, title: str, text: Callable[[float], str] = tick_text) -> str | None:
    """Draw horizontal bars, each with its name above and its sum behind; parts are coloured by name. None without rows."""
    if not rows:
        return None
    names = list(dict.fromkeys(name for row in rows for name, _ in row.parts))
    series = [Series(name=name, dots=(), index=i, line=False, swatch=True) for i, name in enumerate(names)]
    named, head = _legend(series, WIDTH) if len(names) > 1 else ([], 0.0)
    row_height, left = 36, 14
    height = int(TOP + head + row_height * len(rows) + BOTTOM)
    ends = [max(sum(length for _, length in row.parts), row.high or 0.0) for row in rows]
    across = scale([0.0, *ends], left, WIDTH - 64, x)
    bottom = height - BOTTOM
    parts = [*named]
    for tick in across.ticks:
        parts.append(
            f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{TOP + head}" y2="{bottom}"/>'
        )
        parts.append(_text(across(tick), bottom + 15, tick_text(tick)))
    parts.append(_text(WIDTH / 2, height - 8, x.title, kind="t ax"))
    for number, row in enumerate(rows):
        y = TOP + head + row_height * number + 14
        parts.append(_text(left, y, shortened(row.name, int((WIDTH - left) / LETTER)), anchor="start"))
        at = 0.0
        for name, length in row.parts:
            begin, end = across(at), across(at + length)
            colour = COLOURS[names.index(name) % len(COLOURS)]
            tip = escape(f"{name}: {text(length)}")
            parts.append(
                f'<rect x="{begin:.1f}" y="{y + 4}" width="{max(end - begin, 0.5):.1f}" height="13" fill="{colour}" '
                f'stroke="#fff" stroke-width=".7"><title>{tip}</title></rect>'
            )
            at += length
        if row.low is not None and row.high is not None:
            a, b = across(row.low), across(row.high)
            parts.append(
                f'<path d="M{a:.1f} {y + 10.5}H{b:.1f}M{a:.1f} {y + 6.5}v8M{b:.1f} {y + 6.5}v8" stroke="#000" fill="none"/>'
            )
        parts.append(_text(max(across(at), across(row.high or 0.0)) + 5, y + 15, text(at), anchor="start"))
    return figure(parts, title, WIDTH, height)


@dataclass(frozen=True, kw_only=True)
class Span:
    """A request on the timeline, in seconds from the start of the point."""

    sent_s: float
    first_s: float | None
    end_s: float
    failed: bool = False


SPANS_MAX = 240
PANEL = 96


def timeline(
    spans: Sequence[Span],
    panels: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    *,
    window: tuple[float, float] | None,
    disturbed: Sequence[tuple[float, float, str]] = (),
    title: str,
) -> str:
    """Draw requests as bars (waiting, then generating) above panels of samples, over the same time axis. Stretches in which
    others took the machine are red."""
    width = 860
    shown = spans if len(spans) <= SPANS_MAX else [spans[i * len(spans) // SPANS_MAX] for i in range(SPANS_MAX)]
    row = max(1.0, min(5.0, 230 / max(len(shown), 1)))
    requests_height = row * len(shown)
    head = 24
    height = int(head + requests_height + 16 + PANEL * len(panels) + BOTTOM)
    seconds = [s.end_s for s in shown] + [t for _, samples in panels for t, _ in samples]
    across = scale([0.0, *seconds], LEFT, width - RIGHT, Axis(title="", zero=True))
    parts = []
    x = float(LEFT)
    for name, colour in (("waiting for the first token", "#E69F00"), ("generating", "#0072B2"), ("failed", "#000")):
        parts.append(f'<rect x="{x}" y="4" width="12" height="9" fill="{colour}"/>')
        parts.append(_text(x + 16, 12, name, anchor="start"))
        x += 30 + LETTER * len(name)
    bottom = height - BOTTOM
    if window is not None:
        a, b = across(window[0]), across(window[1])
        parts.append(
            f'<rect class="window" x="{a:.1f}" y="{head - 4}" width="{max(b - a, 0):.1f}" height="{bottom - head + 4}"/>'
        )
        parts.append(_text(x + 6, 12, "shaded: the measurement window", anchor="start"))
        x += 36 + LETTER * len("shaded: the measurement window")
    for low, high, who in disturbed:
        a, b = across(max(low, 0.0)), across(max(high, 0.0))
        place = f'x="{a:.1f}" y="{head - 4}" width="{max(b - a, 0.4):.1f}" height="{bottom - head + 4}"'
        parts.append(f'<rect class="disturbed" {place}><title>{escape(who)}</title></rect>')
    if disturbed:
        parts.append(f'<rect class="disturbed" x="{x}" y="4" width="12" height="9"/>')
        parts.append(_text(x + 16, 12, "others took the machine", anchor="start"))
    for tick in across.ticks:
        parts.append(f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{head}" y2="{bottom}"/>')
        parts.append(_text(across(tick), bottom + 15, tick_text(tick)))
    parts.append(_text((LEFT + width) / 2, height - 8, "seconds from the first request", kind="t ax"))
    few = f"{len(shown)} of {len(spans)} requests" if len(shown) < len(spans) else f"{len(spans)} requests"
    parts.append(_text(13, head + requests_height / 2, few, kind="t ax", turn=True))
    for number, span in enumerate(shown):
        y = head + number * row
        first = span.first_s if span.first_s is not None else span.end_s
        for begin, end, colour in ((span.sent_s, first, "#E69F00"), (first, span.end_s, "#0072B2")):
            fill = "#000" if span.failed else colour
            wide = across(end) - across(begin)
            if wide > 0:
                place = f'x="{across(begin):.1f}" y="{y:.1f}" width="{max(wide, 0.4):.1f}" height="{row * 0.8:.1f}"'
                parts.append(f'<rect {place} fill="{fill}"/>')
    for number, (name, samples) in enumerate(panels):
        top = head + requests_height + 22 + PANEL * number
        up = scale([v for _, v in samples], top + PANEL - 20, top + 8, Axis(title="", zero=True))
        parts.append(_text(LEFT, top + 2, name, anchor="start", kind="t ax"))
        for tick in (up.ticks[0], up.ticks[-1]):
            parts.append(_text(LEFT - 5, up(tick) + 4, tick_text(tick), anchor="end"))
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
            )
        joined = " ".join(f"{across(t):.1f},{up(v):.1f}" for t, v in samples if math.isfinite(v))
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{COLOURS[number % 4]}" stroke-width="1.5"/>')
    return figure(parts, title, width, height)
