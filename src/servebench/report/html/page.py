"""`report.html`: one self-contained page on a run or a study. No script, no network; readable on a phone and in print.

Everything that a model, a server or a config said is escaped, and the page's own policy forbids scripts and requests, so
that nothing of it can act.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from servebench.analysis.warnings.catalog import explain
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData, mapping
from servebench.report import comparison as texts
from servebench.report.html import charts
from servebench.report.html.charts import RunView
from servebench.report.html.svg import Axis, Mark, Span
from servebench.report.points import best_row, verdict_counts
from servebench.report.terminal import advice
from servebench.report.terminal.results import REPEATS_NOTE
from servebench.report.terminal.tables import local_time
from servebench.util.figures import MISSING, number, seconds, with_interval

Row = PointRow
LOG_LINES = 15
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

STYLE = """
:root{color-scheme:light;--ink:#1a1a1a;--dim:#5c5c5c;--line:#d9d9d9;--soft:#f5f6f8;--blue:#0a58a3}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:20px;font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:var(--ink);background:#fff}
h1{font-size:1.55rem;margin:.2em 0;overflow-wrap:anywhere}h2{font-size:1.2rem;margin:2em 0 .6em;border-bottom:2px solid var(--line);padding-bottom:.2em}
h3{font-size:1rem;margin:1.2em 0 .4em;overflow-wrap:anywhere}
p{margin:.5em 0}.dim{color:var(--dim)}small{color:var(--dim)}
nav{font-size:.9rem;margin:.6em 0}nav a{margin-right:.9em;color:var(--blue);white-space:nowrap;line-height:2}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:10px;margin:1em 0}
.card{background:var(--soft);border:1px solid var(--line);border-radius:8px;padding:10px 12px;overflow-wrap:anywhere}
.card b{display:block;font-size:1.3rem}.card span{color:var(--dim);font-size:.85rem;display:block}
.answers{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(330px,100%),1fr));gap:10px}
.card span.tag{display:inline-block}.card span.good{color:#005c3f}.card span.warn{color:#6b4c00}.card span.bad{color:#8a1f00}
.answers .card ol{margin:.3em 0;padding-left:1.4em}.answers .card b{display:inline;font-size:1em}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(440px,100%),1fr));gap:14px}
figure{margin:0;border:1px solid var(--line);border-radius:8px;padding:8px;break-inside:avoid;min-width:0}
figcaption{font-weight:600;font-size:.92rem;padding:2px 4px 6px;overflow-wrap:anywhere}
figcaption small{display:block;font-weight:400}
svg{width:100%;height:auto;display:block}
svg text.t{font:11px system-ui,sans-serif;fill:#333}svg text.ax{fill:#111;font-size:11.5px}svg text.lim{fill:#a00000;font-weight:600}
svg .grid{stroke:#e4e4e4;stroke-width:1}svg .limit{stroke:#a00000;stroke-width:1.4;stroke-dasharray:7 4}svg .window{fill:#000;opacity:.05}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:.6em 0}
.wide svg{min-width:680px}
table{border-collapse:collapse;width:100%;font-size:.86rem}
th,td{padding:5px 9px;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
th{background:var(--soft);font-weight:600;white-space:nowrap}td.l,th.l{text-align:left}td.n{white-space:nowrap}
td.o{overflow-wrap:anywhere;min-width:14em;text-align:left}
tr:last-child td{border-bottom:0}
.tag{display:inline-block;border-radius:4px;padding:0 6px;font-size:.82rem;border:1px solid;white-space:nowrap}
.good{color:#005c3f;border-color:#009e73;background:#eefaf5}.warn{color:#6b4c00;border-color:#c99700;background:#fff8e6}
.bad{color:#8a1f00;border-color:#d55e00;background:#fff1ea}.plain{color:#333;border-color:#aaa;background:#fafafa}
.box{border:1px solid;border-radius:8px;padding:8px 12px;margin:.6em 0;overflow-wrap:anywhere}
pre{background:var(--soft);border:1px solid var(--line);border-radius:8px;padding:10px;overflow-x:auto;font-size:.82rem;white-space:pre-wrap;overflow-wrap:anywhere}
ul{margin:.3em 0;padding-left:1.3em}li{overflow-wrap:anywhere}
details>summary{cursor:pointer;color:var(--blue);margin:.5em 0}
@media(max-width:600px){body{padding:12px;font-size:14px}h1{font-size:1.25rem}.charts{grid-template-columns:1fr}figure{padding:4px}}
@media print{body{max-width:none;padding:0;font-size:10pt}nav{display:none}h2{break-after:avoid}.wide{overflow:visible}.wide svg{min-width:0}
 .charts{grid-template-columns:1fr 1fr}tr,.box,.card{break-inside:avoid}details>*{display:block}table{font-size:7pt}
 th,td{padding:2px 3px}.wide th,.wide td,.wide td.n{white-space:normal;overflow-wrap:break-word}td.o{min-width:0}.tag{white-space:normal}
 .wide .tag{font-size:1em;padding:0 3px}#points table,#quality table{font-size:6pt}#points :is(th,td),#quality :is(th,td){padding:2px 1.5px;overflow-wrap:anywhere}}
"""  # noqa: E501


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One point over time. Panels are (name with unit, samples of (seconds, value))."""

    run: str
    level: str
    spans: Sequence[Span]
    panels: Sequence[tuple[str, Sequence[tuple[float, float]]]] = ()
    window: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class QualityRow:
    """What a data set said of a run at one load: the share right (`measure` says right in what sense, or that it is a mean
    score) with its interval. `doubts` are codes."""

    run: str
    dataset: str
    share: float
    low: float
    high: float
    count: int
    measure: str = "right"
    at: str = ""
    load: float | None = None
    right_per_s: float | None = None
    latency_ms_p50: float | None = None
    latency_ms_p99: float | None = None
    unanswered: int = 0
    emulated: bool = False
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """A run with what was worked out of it."""

    run: RunData
    view: RunView
    rows: Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that a report shows. What is empty is told as not measured."""

    title: str
    words: Sequence[str]
    runs: Sequence[RunPage]
    version: str
    answers: Sequence[Any] = ()
    comparisons: Sequence[Any] = ()
    agreements: Sequence[tuple[str, str, Any]] = ()
    unjudged: str = ""
    timelines: Sequence[Timeline] = ()
    quality: Sequence[QualityRow] = ()
    published: Sequence[Any] = ()
    faults: Sequence[str] = ()
    distribution_at: str | None = None
    repeats: Sequence[tuple[str, Any]] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    made_s: float = field(default_factory=time.time)


def e(value: Any) -> str:
    """Text that is safe in HTML, attributes too."""
    return escape(str(value), quote=True)


def tag(text: str, kind: str) -> str:
    """A word in a frame; its colour repeats what the word says."""
    return f'<span class="tag {kind}">{e(text)}</span>'


KINDS = {
    "valid": "good",
    "finished": "good",
    "faster": "good",
    "winner": "good",
    "doubtful": "warn",
    "interrupted": "warn",
    "unequal_settings": "warn",
    "no clear winner": "warn",
    "none qualifies": "warn",
    "mixed": "warn",
    "void": "bad",
    "failed": "bad",
    "missing": "bad",
    "slower": "bad",
}


def kind_of(word: str) -> str:
    """The look of a verdict."""
    return KINDS.get(word, "plain")


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,), wide: Sequence[int] = ()
) -> str:
    """A table of cells that are HTML already; columns in `left` begin at the left, those in `wide` are prose."""

    def cell(index: int, text: str) -> str:
        look = "o" if index in wide else "l n" if index in left else "n"
        return f'<td class="{look}">{text}</td>'

    heads = "".join(
        f'<th class="{"l" if i in left or i in wide else ""}">{e(name)}</th>' for i, name in enumerate(head)
    )
    body = "".join(f"<tr>{''.join(cell(i, text) for i, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def chart_figure(svg: str | None, caption: str, note: str = "") -> str:
    """A chart with its caption; nothing where there is no chart."""
    if svg is None:
        return ""
    small = f"<small>{e(note)}</small>" if note else ""
    return f"<figure><figcaption>{e(caption)}{small}</figcaption>{svg}</figure>"


def page(data: Page) -> str:
    """The whole page as text."""
    sections = [
        ("summary", "Summary and advice", _summary(data)),
        ("load", "Throughput and latency against load", _load(data)),
        ("distributions", "Latency distributions", _distributions(data)),
        ("points", "All points", _points(data)),
        ("repeats", "Over repeats", _repeats(data)),
        ("comparison", "Comparison", _comparison(data)),
        ("timeline", "Timeline", _timeline(data)),
        ("cold", "Cold start", _cold(data)),
        ("quality", "Quality", _quality(data)),
        ("fairness", "Fairness", _fairness(data)),
        ("doubts", "Doubts and remedies", _doubts(data)),
        ("published", "Beside published numbers", _published(data)),
        ("commands", "What made it", _commands(data)),
    ]
    shown = [(name, title, body) for name, title, body in sections if body]
    links = " ".join(f'<a href="#{name}">{e(title)}</a>' for name, title, _ in shown)
    bodies = "".join(f'<section id="{name}"><h2>{e(title)}</h2>{body}</section>' for name, title, body in shown)
    made = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(data.made_s))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{e(data.title)} · servebench</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{e(data.title)}</h1><p class='dim'>servebench {e(data.version)} · {e(made)}</p></header>"
        f"<nav>{links}</nav><main>{bodies}</main></body></html>\n"
    )


def _summary(data: Page) -> str:
    parts = [f'<div class="box warn">{e(fault)}</div>' for fault in data.faults]
    for one in data.runs:
        run = one.run
        if run.status != "finished" or run.error:
            why = f": {e(run.error)}" if run.error else ""
            parts.append(f'<div class="box bad"><b>{e(run.name)}</b> is {e(run.status)}{why}{_log_tail(run)}</div>')
        parts += [f'<div class="box warn"><b>{e(run.name)}</b>: {e(fault)}</div>' for fault in run.faults]
    if any(one.run.emulated for one in data.runs):
        parts.append('<div class="box warn">Emulated engines: the numbers say nothing of real ones.</div>')
    parts.append(f'<div class="cards">{"".join(_card(one) for one in data.runs)}</div>')
    parts.append(_advice(data.answers))
    return "".join(parts)


def _log_tail(run: RunData) -> str:
    if run.engine_log is None:
        return ""
    try:
        lines = run.engine_log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return ""
    return f"<details><summary>last lines of engine.log</summary><pre>{e(chr(10).join(lines))}</pre></details>"


def _card(one: RunPage) -> str:
    best = best_row(one.rows)
    run = one.run
    foreign = f" · measured by {run.foreign}" if run.foreign else ""
    facts = (
        f"{run.fact('model') or MISSING} · {run.fact('gpu') or MISSING} · {run.fact('workload') or MISSING}{foreign}"
    )
    name = f"{run.fact('engine') or run.name} {run.fact('engine_version') or ''}".strip()
    if best is None:
        figures = "<b>no number</b><span>no point may be believed</span>"
    else:
        ttft = number(best.ttft_ms_p50)
        figures = (
            f"<b>{e(with_interval(best, 'output_throughput_tok_s'))} tok/s</b>"
            f"<span>best, at load {e(best.level_label)} ({e(best.verdict)}); TTFT p50 {e(ttft)} ms</span>"
        )
    return (
        f'<div class="card"><span>{e(name)}</span>{figures}<span>{e(facts)}</span>'
        f"<span>points: {e(verdict_counts(one.rows))}</span></div>"
    )


def _advice(answers: Sequence[Any]) -> str:
    if not answers:
        return ""
    blocks = "".join(_answer(one) for one in answers if one.outcome != "not measured")
    absent = ", ".join(one.use_case.title for one in answers if one.outcome == "not measured")
    note = f"<p class='dim'>Not measured: {e(absent)}.</p>" if absent else ""
    return f'<h3>Which for what</h3><div class="answers">{blocks}</div>{note}' if blocks else note


def _answer(one: Any) -> str:
    ranking = "".join(_score(score, one.use_case.unit) for score in one.ranking[:4])
    lead = f"<p>Lead over the next: <b>{e(advice.lead_text(one))}</b></p>" if one.lead is not None else ""
    why = f"<p class='dim'>{e(one.why)}</p>" if one.why else ""
    why += "".join(f"<p>{tag('less accurate', 'bad')} {e(line)}</p>" for line in one.quality)
    missing = "".join(f"<li><small>without a score: {e(line)}</small></li>" for line in one.missing)
    changes = "".join(f"<li>{e(line)}</li>" for line in one.changes)
    change = f"<p>What would change it:</p><ul>{changes}</ul>" if changes else ""
    return (
        f'<div class="card"><p><strong>{e(one.use_case.title)}</strong> {tag(one.outcome, kind_of(one.outcome))}'
        f"<span>{e(one.group)}</span></p><ol>{ranking}</ol><ul>{missing}</ul>{lead}{why}{change}</div>"
    )


def _score(score: Any, unit: str) -> str:
    return f"<li>{e(score.entrant.name)}: {e(advice.score_text(score, unit))} <small>{e(advice.place_text(score))}</small></li>"


def _views(data: Page) -> list[RunView]:
    return [one.view for one in data.runs]


def _load(data: Page) -> str:
    views = _views(data)
    ttft, tpot = data.limits.get("ttft_ms"), data.limits.get("tpot_ms")
    repeated_levels = any(row.repeat for one in data.runs for row in one.rows)
    bars = f"bars: {'lowest to highest repeat' if repeated_levels else '95 % interval'}; hollow: doubtful"
    parts = [
        chart_figure(
            charts.against_load(
                views,
                "output_throughput_tok_s",
                Axis(title="output tokens a second", zero=True),
                title="output throughput against load",
                unit="tok/s",
            ),
            "Output throughput",
            bars,
        ),
        chart_figure(
            charts.against_load(
                views,
                "ttft_ms_p50",
                Axis(title="TTFT p50, ms", log=True),
                title="time to first token against load",
                unit="ms",
                marks=[Mark(y=ttft, text=f"SLO {ttft:g} ms")] if ttft else (),
            ),
            "Time to first token, median",
            bars,
        ),
        chart_figure(
            charts.against_load(
                views, "ttft_ms_p99", Axis(title="TTFT p99, ms", log=True), title="TTFT p99 against load", unit="ms",
                marks=[Mark(y=ttft, text=f"SLO {ttft:g} ms")] if ttft else (),
            ),
            "Time to first token, 99th percentile",
            bars,
        ),
        chart_figure(
            charts.against_load(
                views, "tpot_ms_mean", Axis(title="TPOT mean, ms", zero=True), title="time per output token", unit="ms",
                marks=[Mark(y=tpot, text=f"SLO {tpot:g} ms")] if tpot else (),
            ),
            "Time per output token, mean",
            bars,
        ),
        chart_figure(charts.pareto(views, title="speed for a user against throughput of a GPU"),
                     "Speed for a user against throughput of the machine", "up and to the right is better"),
        chart_figure(charts.tradeoff(views, title="TTFT against throughput"),
                     "TTFT against throughput", "the larger the mark, the higher the load; down and to the right is better"),
    ]  # fmt: skip
    drawn = "".join(parts)
    left_out = sum(row.verdict == "void" for one in data.runs for row in one.rows)
    note = f"<p class='dim'>{left_out} void points are left out of the charts; see the doubts.</p>" if left_out else ""
    return f'<div class="charts">{drawn}</div>{note}' if drawn else "<p>No point was measured.</p>"


def _distributions(data: Page) -> str:
    at = data.distribution_at
    if at is None:
        return ""
    kinds = (
        ("ttft_ms", "time to first token, ms", "Time to first token"),
        ("itl_ms", "gap between tokens, ms", "Gap between tokens (ITL)"),
        ("e2e_ms", "whole answer, ms", "Whole answer (E2E)"),
    )
    parts = [
        chart_figure(
            charts.distribution(_views(data), at, name, words, title=f"{title} at load {at}"), f"{title} at load {at}"
        )
        for name, words, title in kinds
    ]
    return f'<div class="charts">{"".join(parts)}</div>' if any(parts) else ""


POINT_COLUMNS = (
    ("ok", "requests_ok"),
    ("failed", "requests_failed"),
    ("tok/s", "output_throughput_tok_s"),
    ("req/s", "request_throughput_req_s"),
    ("good req/s", "goodput_req_s"),
    ("TTFT p50", "ttft_ms_p50"),
    ("TTFT p99", "ttft_ms_p99"),
    ("with failed", "ttft_ms_p99_all"),
    ("ITL mean", "itl_ms_mean"),
    ("ITL p99", "itl_ms_p99"),
    ("TPOT mean", "tpot_ms_mean"),
    ("E2E p50", "e2e_ms_p50"),
    ("E2E p99", "e2e_ms_p99"),
    ("with failed", "e2e_ms_p99_all"),
    ("cache hits", "prefix_cache_hit_rate"),
    ("at best", "prefix_cache_hit_rate_ideal"),
    ("valid JSON", "json_compliance"),
    ("of twins", "json_compliance_unconstrained"),
    ("needles", "needle_recall"),
    ("J/token", "energy_j_per_token"),
    ("tok/s/W", "output_tok_s_per_w"),
    ("$/M tokens", "cost_usd_per_mtok"),
    ("$/M good req", "cost_usd_per_mgood"),
)

SHARES = (
    *("prefix_cache_hit_rate", "prefix_cache_hit_rate_ideal"),
    *("json_compliance", "json_compliance_unconstrained", "needle_recall"),
)


def _points(data: Page) -> str:
    rows = [(one, row) for one in data.runs for row in one.rows]
    if not rows:
        return ""
    failed = any(row.requests_failed for _, row in rows)
    kept = [
        (name, column)
        for name, column in POINT_COLUMNS
        if any(row.get(column) is not None for _, row in rows) and (failed or not column.endswith("_all"))
    ]
    body = [
        [
            e(one.view.name),
            e(row.level_label + (f" ·{row.repeat}" if row.repeat else "")),
            *(_figure(row, column) for _, column in kept),
            tag(str(row.verdict or MISSING), kind_of(str(row.verdict))),
        ]
        for one, row in rows
    ]
    head = ("run", "load", *(name for name, _ in kept), "verdict")
    note = " With failed: a failed request counts as infinitely slow (∞)." if failed else ""
    return f"<p class='dim'>Times in ms; ± half of a 95 % interval.{note}</p>{table(head, body)}"


def _repeats(data: Page) -> str:
    if not data.repeats:
        return ""
    metrics = {name: title for _, found in data.repeats for name, title in found.titles.items()}
    body = []
    for name, found in data.repeats:
        for at, own in found.levels.items():
            count = max(row.count for row in own.values())
            cells = (e(own[metric].text if metric in own else MISSING) for metric in metrics)
            body.append([e(name), e(at), str(count), *cells])
    notes = "".join(
        f'<div class="box warn"><b>{e(name)}</b>: {e(note)}</div>'
        for name, found in data.repeats
        for note in found.notes
    )
    head = ("run", "load", "repeats", *metrics.values())
    return f"{notes}<p class='dim'>{e(REPEATS_NOTE)}.</p>{table(head, body)}"


def _figure(row: Row, column: str) -> str:
    value = row.get(column)
    if column == "output_throughput_tok_s":
        return e(with_interval(row, column))
    if column in SHARES and value is not None:
        return f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else e(number(value))


def _comparison(data: Page) -> str:
    parts = [f"<p class='dim'>{e(data.unjudged)}</p>"] if data.unjudged else []
    for one in data.comparisons:
        rows = [
            [
                *map(e, texts.cells_of(row)[:-1]),
                tag(texts.verdict_of(row), kind_of(row.result) if row.competes else "plain")
                + (f"<br><small>{e(row.why)}</small>" if row.why else ""),
            ]
            for row in one.rows
        ]
        head = texts.HEADINGS
        parts.append(
            f"<h3>{e(one.candidate)} against {e(one.baseline)}</h3>"
            f"<p>{tag(str(one.result), kind_of(str(one.result)))} {e(one.summary)}</p>{table(head, rows, left=(1,), wide=(5,))}"
        )
    if parts and data.comparisons:
        parts.append(
            f"<p class='dim'>Change from baseline to candidate. {e(texts.PAIRED_NOTE)} Tests permute stretches of requests "
            "and are corrected for their number (Holm); points that are not valid do not compete and stand in brackets.</p>"
        )
    return "".join(parts)


def _timeline(data: Page) -> str:
    parts = []
    for one in data.timelines:
        svg = charts.requests_timeline(
            one.spans, one.panels, one.window, title=f"{one.run} at load {one.level} over time"
        )
        if svg:
            parts.append(f'<h3>{e(one.run)}, load {e(one.level)}</h3><div class="wide">{svg}</div>')
    return "".join(parts)


def _cold(data: Page) -> str:
    starts = []
    shared = []
    for one in data.runs:
        for kind, suffix in (("cold_start", ""), ("warm_restart", " (warm restart)")):
            start = mapping(one.run.manifest.get(kind))
            phases = [
                (str(mapping(phase).get("name")), float(mapping(phase)["seconds"]))
                for phase in start.get("phases") or ()
                if isinstance(mapping(phase).get("seconds"), (int, float))
            ]
            if phases and not start.get("shared"):
                starts.append((one.view.name + suffix, phases))
            elif phases and not suffix:
                shared.append(one.view.name)
    svg = charts.cold_start(starts, title="cold start by phase")
    rows = [[e(name), e(phase), f"{at:.2f}"] for name, phases in starts for phase, at in phases]
    every = table(("run", "phase", "over after, s"), rows, left=(0, 1)) if rows else ""
    note = f"<p class='dim'>Started by an earlier run: {e(', '.join(shared))}.</p>" if shared else ""
    figure = chart_figure(svg, "Cold start by phase", "from the start of the command to the first real token")
    more = f"<details><summary>every phase</summary>{every}</details>" if every else ""
    return (f'<div class="charts">{figure}</div>{more}' if svg else "") + note


def _quality(data: Page) -> str:
    if not data.quality:
        return "<p class='dim'>Not measured: ask for it with quality=.</p>"
    parts = []
    if any(row.emulated for row in data.quality):
        parts.append('<div class="box warn">What an emulated engine answers means nothing.</div>')
    figures = []
    for dataset in dict.fromkeys(row.dataset for row in data.quality):
        own = [row for row in data.quality if row.dataset == dataset]
        several = len({row.load for row in own}) > 1
        rows = [
            (f"{row.run}{f', {row.at}' if several else ''} ({row.count} answers)", row.share, row.low, row.high)
            for row in own
        ]
        figures.append(
            chart_figure(
                charts.quality(rows, title=f"quality on {dataset}", measure=own[0].measure), f"Quality on {dataset}"
            )
        )
        if several:
            points = [(row.run, row.load, row.share, row.low, row.high, row.right_per_s) for row in own]
            shares, speeds = charts.quality_against_load(points, dataset, own[0].measure)
            figures.append(chart_figure(shares, f"{dataset} against load"))
            figures.append(chart_figure(speeds, f"Right answers per second on {dataset}"))
    parts.append(f'<div class="charts">{"".join(figures)}</div>')
    head = (
        "run",
        "benchmark",
        "at",
        "answers",
        "of them",
        "%",
        "95 %",
        "failed",
        "latency p50 ms",
        "p99 ms",
        "right/s",
        "doubts",
    )
    body = [
        [
            e(row.run),
            e(row.dataset),
            e(row.at),
            str(row.count),
            e(row.measure),
            f"{100 * row.share:.1f}",
            f"{100 * row.low:.1f} to {100 * row.high:.1f}",
            str(row.unanswered),
            e(number(row.latency_ms_p50)),
            e(number(row.latency_ms_p99)),
            e(number(row.right_per_s)),
            e(", ".join(row.doubts)),
        ]
        for row in data.quality
    ]
    parts.append(table(head, body, left=(0, 1, 2, 4, 11)))
    for baseline, candidate, one in data.agreements:
        parts.append(
            f"<p>{tag(one.finding, kind_of(one.finding))} {e(candidate)} against {e(baseline)}: {e(one.swapped().sentence)}</p>"
        )
    return "".join(parts)


def _fairness(data: Page) -> str:
    parts = []
    for one in data.comparisons:
        if not one.unequal:
            parts.append(f"<p>{e(one.candidate)} and {e(one.baseline)} were set up equally.</p>")
            continue
        rows = [
            [
                e(d.key),
                e(d.baseline),
                e(d.candidate),
                tag("matters", "bad") if d.matters else tag("no", "plain"),
                e(d.reason),
            ]
            for d in one.unequal
        ]
        head = ("unequal", "baseline", "candidate", "matters", "why")
        parts.append(
            f"<h3>{e(one.candidate)} against {e(one.baseline)}</h3>{table(head, rows, wide=(0, 1, 2, 4), left=(3,))}"
        )
    return "".join(parts)


def _doubts(data: Page) -> str:
    about: dict[str, list[str]] = {}
    for one in data.runs:
        for row in one.rows:
            for code in row.doubts:
                about.setdefault(str(code), []).append(f"{one.view.name} at {row.level_label}")
    for answers in data.quality:
        for code in answers.doubts:
            about.setdefault(code, []).append(f"{answers.run}, {answers.dataset} at {answers.at}")
    if not about:
        return "<p>None: every point is valid.</p>" if any(one.rows for one in data.runs) else ""
    rows = [
        [
            f"<b>{e(code)}</b>",
            e(explain(code)),
            e(", ".join(dict.fromkeys(where))),
        ]
        for code, where in about.items()
    ]
    return table(("doubt", "what it means and what to do", "where"), rows, wide=(1, 2))


def _published(data: Page) -> str:
    rows = [
        [
            e(one.run),
            e(one.level),
            e(one.metric),
            f"{e(number(one.own))} {e(one.unit)}",
            f"{e(number(one.published))} {e(one.unit)}",
            f"{100 * one.difference:+.1f} %",
            e(f"{one.source}; {one.note}" if one.note else one.source),
        ]
        for one in data.published
    ]
    head = ("run", "load", "metric", "yours", "published", "apart", "where and how")
    return table(head, rows, left=(0, 2), wide=(6,)) if rows else ""


def _commands(data: Page) -> str:
    parts = []
    if data.words:
        parts.append(f"<pre>servebench {e(shlex.join(data.words))}</pre>")
    for one in data.runs:
        manifest = one.run.manifest
        argv = [str(word) for word in mapping(manifest.get("command")).get("argv") or ()]
        environment = mapping(mapping(manifest.get("command")).get("env"))
        machine = mapping(manifest.get("machine"))
        gpus = [mapping(gpu) for gpu in machine.get("gpus") or ()]
        started, ended = manifest.get("started_s"), manifest.get("ended_s")
        facts = {
            "folder": str(one.run.path.parent.name + "/" + one.run.path.name),
            "began": local_time(one.run.started_s),
            "took": seconds(ended - started) if started and ended else None,
            "machine": " · ".join(str(v) for v in (machine.get("platform"), machine.get("cpu_model")) if v),
            "GPU": ", ".join(f"{gpu.get('name')} (driver {gpu.get('driver_version')})" for gpu in gpus),
            "CUDA": machine.get("cuda"),
            "commit": mapping(manifest.get("git")).get("commit"),
            "measured by": one.run.foreign,
        }
        told = "".join(f"<li>{e(name)}: {e(value)}</li>" for name, value in facts.items() if value)
        assigned = [f"{name}={shlex.quote(str(value))}" for name, value in environment.items()]
        command = " ".join([*assigned, shlex.join(argv)])
        engine = f"<p>The engine's command:</p><pre>{e(command)}</pre>" if argv else ""
        again = f"<pre>servebench run --lock {e(shlex.quote(str(one.run.path / 'manifest.json')))}</pre>"
        repeat = f"<p>To repeat it:</p>{again}" if one.run.config and not one.run.foreign else ""
        parts.append(f"<h3>{e(one.view.name)}: {e(one.run.title)}</h3><ul>{told}</ul>{engine}{repeat}")
    return "".join(parts)
