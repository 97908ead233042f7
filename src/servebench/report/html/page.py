"""`report.html`: one self-contained page on a run or a study. No network; readable on a phone, in print and without scripts.

The templates escape everything that a model, a server or a config said. The page's own policy allows the two scripts that
are ours, by their hashes, and nothing else; Vega interprets its expressions, so that no text becomes code.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from servebench.report.charts import draw
from servebench.report.charts.model import Chart, ChartSet, Spec
from servebench.report.html import results, sections
from servebench.report.html.first_screen import first_screen
from servebench.report.html.model import Page
from servebench.util.safe_text import clean_html

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SECTIONS = (
    ("answer", "", first_screen),
    ("load", "Speed by load", results.load),
    ("distributions", "Latency distributions", results.distribution),
    ("parts", "Where the time goes", results.where_time_goes),
    ("points", "All points", results.points),
    ("repeats", "Over repeats", results.repeats),
    ("comparison", "Comparison", sections.comparison),
    ("timeline", "Timeline", results.timeline),
    ("limits", "What limits it", sections.limits),
    ("cold", "Cold start", results.cold_start),
    ("quality", "Quality", results.quality),
    ("fairness", "Fairness", sections.fairness),
    ("doubts", "Warnings and remedies", sections.warnings),
    ("published", "Published numbers", sections.published),
    ("commands", "Commands", sections.commands),
)
"""The id and title of each section, and what returns its template macro and content; None leaves it out."""
STILL_WIDTH = 320
"""Of the picture of a panel that stands where no script runs, in pixels."""
CHARTS_SIZE_MAX = 1_150_000
"""Of the data of all charts and their pictures. Beyond, a chart of a page without scripts is its description: the page has to
stay small enough to be sent, under 3 MB with the script that draws."""
BREAKS = re.compile(r"([=_/,])")
BUNDLE = "@vega-bundle@"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the environment of the page's templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("servebench.report.html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    found.filters["breakable"] = breakable
    return found


def breakable(text: str) -> Markup:
    """Return a text as HTML that may break behind the signs of settings and paths, so that no number is cut."""
    from markupsafe import Markup, escape

    return Markup(BREAKS.sub(r"\1<wbr>", str(escape(text))))  # noqa: S704  the text is escaped


class Drawing:
    """The charts of a page: their specs for the script, and a still picture of each for print and for pages without scripts."""

    def __init__(self) -> None:
        self.specs: list[Any] = []
        self.packing = draw.Packing()
        self._left = CHARTS_SIZE_MAX

    def live(self, chart: Chart) -> int:
        """Keep the spec of a panel, and return its number."""
        self.specs.append(self.packing.packed(draw.framed(chart)))
        self._left -= len(draw.script_json(self.specs[-1]))
        return len(self.specs) - 1

    def still(self, chart: Chart) -> str:
        """Return the picture of a panel as a data URL; empty once the pictures of the page are as large as they may be."""
        return self._url(draw.still(draw.framed(chart, width=STILL_WIDTH)))

    def whole(self, found: ChartSet) -> str:
        """Return the picture of all panels of a set as a data URL; empty like that of a panel."""
        return self._url(draw.still(draw.composed(found, ())))

    def _url(self, spec: Spec) -> str:
        if self._left <= self.packing.size:
            return ""
        found = f"data:image/svg+xml;base64,{base64.b64encode(draw.svg(spec).encode()).decode()}"
        self._left -= len(found)
        return found


def page(data: Page) -> str:
    """Return the page as HTML."""
    templates, drawing = environment(), Drawing()
    macros: Any = templates.get_template("sections.html").make_module({"drawing": drawing})
    shown = []
    for name, title, build in SECTIONS:
        content = build(data)
        if content is not None:
            macro, section = content
            shown.append((name, title, getattr(macros, macro)(section)))
    script = (files(__package__) / "templates" / "page.js").read_text(encoding="utf-8") if drawing.specs else ""
    bundle = draw.javascript() if drawing.specs else ""
    text = templates.get_template("page.html").render(
        data=data,
        sections=shown,
        created=time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(data.made_s)),
        specs=draw.script_json({"config": draw.CONFIG, "charts": drawing.specs, "strings": drawing.packing.strings}),
        scripts=[BUNDLE, script] if drawing.specs else [],
        policy=policy([bundle, script] if drawing.specs else []),
    )
    # the last one is ours: a name in the page may spell it too
    head, _, tail = clean_html(text).rpartition(BUNDLE)
    return f"{head}{bundle}{tail}\n"


def answer_part(data: Page) -> str:
    """Return the first screen alone with its style, as a part of another page."""
    macros: Any = environment().get_template("sections.html").make_module({"drawing": Drawing()})
    style = (files(__package__) / "templates" / "style.css").read_text(encoding="utf-8")
    body = macros.first_screen(first_screen(data)[1])
    return clean_html(f'<style>@scope (.servebench) {{\n{style}}}</style><div class="servebench">{body}</div>')


def policy(scripts: list[str]) -> str:
    """Return the page's Content-Security-Policy: nothing from elsewhere, and no script but these."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    allowed = f"script-src {hashes}; " if scripts else ""
    return f"default-src 'none'; {allowed}style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
