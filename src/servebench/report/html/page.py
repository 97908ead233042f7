"""Blocks as self-contained pages: no network; readable on a phone, in print and without scripts.

The templates escape everything that a model, a server or a config said. A page's own policy allows the two scripts that are ours,
by their hashes, and nothing else; Vega interprets its expressions, so that no text becomes code.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from servebench.report.blocks import Block, Label, Line, Span
from servebench.report.charts import draw
from servebench.report.charts.model import Chart, ChartSet, Spec
from servebench.report.screens import sections
from servebench.report.screens.first_screen import first_screen
from servebench.report.screens.page import Page
from servebench.report.screens.points import repeats_blocks
from servebench.report.screens.times import times_blocks
from servebench.report.screens.tuning import tune_blocks
from servebench.util.safe_text import clean_html

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from servebench.analysis.tuning.answer import TuneAnswer

SECTIONS: Sequence[tuple[str, str, Callable[[Page], Iterable[Block]]]] = (
    ("answer", "", first_screen),
    ("load", "Speed by load", sections.load),
    ("distributions", "Latency distributions", sections.distribution),
    ("parts", "Where the time goes", lambda data: times_blocks(data.times)),
    ("points", "All points", sections.points),
    ("repeats", "Over repeats", lambda data: repeats_blocks([(one.label, one.rows) for one in data.runs])),
    ("comparison", "Comparison", sections.comparison),
    ("timeline", "Timeline", sections.timeline),
    ("limits", "What limits it", sections.limits),
    ("cold", "Cold start", sections.cold_start),
    ("quality", "Quality", sections.quality),
    ("fairness", "Fairness", sections.fairness),
    ("doubts", "Warnings and remedies", sections.warnings),
    ("commands", "Commands", sections.commands),
)
"""The id, the title and the builder of each section; one without blocks is left out."""
STILL_WIDTH = 320
"""Of the picture of a panel that stands where no script runs, in pixels."""
CHARTS_SIZE_MAX = 1_150_000
"""Of the data of all charts and their pictures. Beyond, a chart of a page without scripts is its description: the page has to
stay small enough to be sent, under 3 MB with the script that draws."""
NOTE_MAX = 60
"""Longer notes of labels are folded."""
LOOKS = ("good", "warn", "bad")
BREAKS = re.compile(r"([=_/,])")
BUNDLE = "@vega-bundle@"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the environment of the page's templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("servebench.report.html")
    found = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    found.filters |= {"breakable": breakable, "look": look, "paragraph": paragraph}
    found.filters["kind"] = lambda block: type(block).__name__
    found.tests["label"] = lambda span: isinstance(span, Label)
    found.globals["note_max"] = NOTE_MAX
    return found


def breakable(text: str) -> Markup:
    """Return a text as HTML that may break behind the signs of settings and paths, so that no number is cut."""
    from markupsafe import Markup, escape

    return Markup(BREAKS.sub(r"\1<wbr>", str(escape(text))))  # noqa: S704  the text is escaped


def look(one: Span | Line) -> str:
    """Return the CSS class of a label or an item: what its tone says of trust."""
    return next((word for word in one.tone.split() if word in LOOKS), "plain")


def paragraph(one: Line) -> str:
    """Return the CSS classes of a paragraph: its tone, but that labels have their own, and whether it is indented."""
    first = one.spans[0] if one.spans else None
    words = [] if isinstance(first, Label) else [word for word in one.tone.split() if word not in ("strong", "small")]
    return " ".join([*words, *(["indented"] if one.indent else [])])


class Drawing:
    """The charts of a page: their specs for the script, and a still picture of each for print and for pages without scripts."""

    def __init__(self) -> None:
        self.alive = False
        """Whether there is a chart for the script."""
        self._left = CHARTS_SIZE_MAX

    def live(self, chart: Chart) -> str:
        """Return the packed spec of a panel."""
        self.alive = True
        found = draw.packed(draw.framed(chart))
        self._left -= len(found)
        return found

    def still(self, chart: Chart) -> str:
        """Return the picture of a panel as a data URL; empty once the pictures of the page are as large as they may be."""
        return self._url(draw.still(draw.framed(chart, width=STILL_WIDTH)))

    def whole(self, found: ChartSet) -> str:
        """Return the picture of all panels of a set as a data URL; empty like that of a panel."""
        return self._url(draw.still(draw.composed(found, ())))

    def _url(self, spec: Spec) -> str:
        if self._left <= 0:
            return ""
        found = f"data:image/svg+xml;base64,{base64.b64encode(draw.svg(spec).encode()).decode()}"
        self._left -= len(found)
        return found


def page(data: Page) -> str:
    """Return the page of a run or a study as HTML."""
    from servebench import __version__

    created = time.strftime("%Y-%m-%d %H:%M %Z")
    about = [*([data.folder] if data.folder != data.title else []), f"servebench {__version__}", created]
    return _whole(data.title, about, [(name, title, build(data)) for name, title, build in SECTIONS])


def tune_page(answer: TuneAnswer) -> str:
    """Return the page of a tune's answer as HTML."""
    return _whole(answer.study, ["servebench tune"], [("answer", "", tune_blocks(answer, complete=True))])


def part(blocks: Iterable[Block]) -> str:
    """Return blocks without charts, with their style, as a part of another page."""
    style = (files(__package__) / "templates" / "style.css").read_text(encoding="utf-8")
    body = _macros(Drawing()).show(blocks)
    return clean_html(f'<style>@scope (.servebench) {{\n{style}}}</style><div class="servebench">{body}</div>')


def _macros(drawing: Drawing) -> Any:
    return environment().get_template("blocks.html").make_module({"drawing": drawing})


def _whole(title: str, about: Sequence[str], parts: Iterable[tuple[str, str, Iterable[Block]]]) -> str:
    drawing = Drawing()
    show = _macros(drawing).show
    shown = [(name, heading, show(own)) for name, heading, blocks in parts if (own := list(blocks))]
    known = {"title": title, "about": about, "sections": shown}
    template = environment().get_template("page.html")
    if not drawing.alive:
        return clean_html(template.render(**known, scripts=[], policy=policy([])))
    script, bundle = (files(__package__) / "templates" / "page.js").read_text(encoding="utf-8"), draw.javascript()
    text = template.render(**known, scripts=[BUNDLE, script], policy=policy([bundle, script]))
    # the last one is ours: a name in the page may spell it too
    head, _, tail = clean_html(text).rpartition(BUNDLE)
    return f"{head}{bundle}{tail}\n"


def policy(scripts: list[str]) -> str:
    """Return the page's Content-Security-Policy: nothing from elsewhere, and no script but these."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    allowed = f"script-src {hashes}; " if scripts else ""
    return f"default-src 'none'; {allowed}style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
