"""`report.html`: one self-contained page on a run or a study. No script, no network; readable on a phone and in print.

The templates escape everything that a model, a server or a config said, and the page's own policy forbids scripts and
requests, so that nothing of it can act.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from servebench.report.html import results, sections
from servebench.report.html.model import Page
from servebench.util.clean import clean_html

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS = (
    ("summary", "Summary and recommendations", sections.summary),
    ("load", "Throughput and latency by load", results.load),
    ("distributions", "Latency distributions", results.distributions),
    ("points", "All points", results.points),
    ("repeats", "Over repeats", results.repeats),
    ("comparison", "Comparison", sections.comparison),
    ("timeline", "Timeline", results.timeline),
    ("cold", "Cold start", results.cold_start),
    ("quality", "Quality", results.quality),
    ("fairness", "Fairness", sections.fairness),
    ("doubts", "Warnings and remedies", sections.warnings),
    ("published", "Published numbers", sections.published),
    ("commands", "Commands", sections.commands),
)
"""The id and title of each section, and what returns its template macro and content; None leaves it out."""


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("servebench.report.html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def page(data: Page) -> str:
    """Return the page as HTML."""
    environment = _environment()
    macros: Any = environment.get_template("sections.html").module
    shown = []
    for name, title, build in SECTIONS:
        content = build(data)
        if content is not None:
            macro, section = content
            shown.append((name, title, getattr(macros, macro)(section)))
    created = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(data.made_s))
    template = environment.get_template("page.html")
    return clean_html(template.render(data=data, sections=shown, created=created)) + "\n"
