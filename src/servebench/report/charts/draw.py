"""Frames Vega-Lite specs for each place that shows them, and draws pictures of them with vl-convert."""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from servebench.report.charts.model import Chart, ChartSet, Series, Spec
from servebench.report.charts.specs import colour_scales
from servebench.store.files import replacing
from servebench.util.bounded_file import read_bytes
from servebench.util.cache import cache_folder
from servebench.util.errors import StoreError
from servebench.util.safe_text import clean_line

VEGA_LITE = "6.1"
SNIPPET = "window.vegaEmbed = vegaEmbed;"
SCRIPT_BYTES_MAX = 8 << 20
WIDTH = 330
"""Of a panel of a picture, in pixels."""
WIDE = 860
PNG_SCALE = 2
"""Sharp enough for slides."""
COLUMNS = 3
PLACES = re.compile(r' (?:d|transform)="[^"]*"')
DECIMALS = re.compile(r"(\.\d\d)\d+")
FONT = "system-ui, 'Segoe UI', Roboto, Arial, sans-serif"
CONFIG = {
    "font": FONT,
    "background": "#ffffff",
    "axis": {
        "labelFontSize": 11, "titleFontSize": 11.5, "titleFontWeight": "normal", "gridColor": "#e4e4e4",
        "domainColor": "#999999", "tickColor": "#999999", "labelColor": "#333333", "titleColor": "#111111",
    },
    "legend": {"labelFontSize": 11.5, "symbolSize": 70},
    "title": {"fontSize": 12.5, "anchor": "start"},
    "view": {"stroke": None},
}  # fmt: skip


def parameters(percentile: str = "p50") -> list[Spec]:
    """Return the parameters that all charts share: the percentile, and the series that are switched off."""
    return [{"name": "stat", "value": percentile}, {"name": "hidden", "value": []}]


def framed(chart: Chart, *, width: int | str = "container", percentile: str = "p50") -> Spec:
    """Return the spec of one panel, without CONFIG. All texts are clean: they come from engines and files."""
    size = (
        {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}}
        if width == "container"
        else {"width": width}
    )
    spec: Spec = _clean({**chart.spec, **size, "description": chart.words, "params": parameters(percentile)})
    return spec


def composed(found: ChartSet, series: Sequence[Series]) -> Spec:
    """Return the spec of one picture: all panels with their titles and one legend."""
    names = list(dict.fromkeys(one.name for one in series))
    first = {one.name: one for one in series}
    scales = colour_scales([first[name] for name in names], legend=True)
    del scales["strokeDash"]
    empty = {"data": {"values": [{"run": name} for name in names]}, "width": 1, "height": 1}
    legend = {**empty, "mark": {"type": "point", "filled": True, "opacity": 1, "size": 0}, "encoding": scales}
    width = WIDE if found.wide else WIDTH
    panels = [{**one.spec, "width": width, "title": one.title} for one in found.charts]
    title = f"{found.title}{', p50' if found.stats else ''}"
    spec: Spec = _clean(
        {
            "title": {"text": title, "fontSize": 15},
            "vconcat": [*([legend] if series else []), {"concat": panels, "columns": 1 if found.wide else COLUMNS}],
            "resolve": {"scale": {"color": "independent", "shape": "independent"}},
            "params": parameters(),
            "padding": 10,
        }
    )
    return spec


def _clean(value: Any) -> Any:
    """Return a spec whose texts hold no control, directional or invisible characters."""
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return clean_line(value) if isinstance(value, str) else value


def svg(spec: Spec) -> str:
    """Draw a spec as an SVG document. Places have two decimals: more are a third of the file and cannot be seen."""
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, config=CONFIG)
    return PLACES.sub(lambda found: DECIMALS.sub(r"\1", found[0]), drawn)


def png(spec: Spec) -> bytes:
    """Draw a spec as a PNG picture with PNG_SCALE dots for each pixel of it."""
    import vl_convert

    picture: bytes = vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, config=CONFIG, scale=PNG_SCALE)
    return picture


@lru_cache(maxsize=1)
def javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, without a network.

    Bundling takes seconds, so the result is kept in the cache folder, by version; a file that others may write is not used.
    """
    import vl_convert

    kept = cache_folder() / f"vega-{version('vl-convert-python')}-{VEGA_LITE}.js"
    with suppress(OSError, ValueError):
        found = kept.stat()
        if found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return read_bytes(kept, SCRIPT_BYTES_MAX).decode()
    script: str = vl_convert.javascript_bundle(SNIPPET, vl_version=VEGA_LITE)
    with suppress(OSError, StoreError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as part:
            part.write_text(script, encoding="utf-8")
            part.chmod(0o600)
    return script


def packed(spec: Spec) -> str:
    """Return a spec in a twentieth of its size, as letters that need no escaping; the page's script unpacks it."""
    # a screen reader gets the chart in words, not each of its marks with twelve digits
    text = json.dumps({**spec, "config": {**CONFIG, "aria": False}}, allow_nan=False, separators=(",", ":"))
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def still(spec: Spec) -> Spec:
    """Return a spec without what only a mouse finds: the tooltips and the wide invisible marks that carry them."""
    return {**_still(spec), "config": {"aria": False}}


def _still(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item if key == "data" else _still(item) for key, item in value.items() if key != "tooltip"}
    if isinstance(value, list):
        return [_still(one) for one in value if not _is_invisible(one)]
    return value


def _is_invisible(layer: Any) -> bool:
    mark = layer.get("mark") if isinstance(layer, dict) else None
    return isinstance(mark, dict) and mark.get("opacity") == 0
