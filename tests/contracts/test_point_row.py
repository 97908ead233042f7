from itertools import pairwise
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from servebench.contracts.columns import columns_of
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS, PointRow, Screen, columns_shown


def test_every_column_has_a_meaning_in_one_sentence():
    for column in columns_of(PointRow):
        assert column.description.endswith("."), column.name
        assert column.description[0].isupper() or not column.description[0].isalpha(), column.name


def test_a_row_survives_a_frame():
    """Counts stay whole and missing values null, though pandas makes both floats."""
    rows = [
        PointRow(point="c1-r0", concurrency=1, requests_ok=5, doubts=("errors",), level_reached=True),
        PointRow(point="q2-r0", rate=2.0, ttft_ms_p50=1.5),
    ]
    frame = pd.DataFrame([row.as_dict() for row in rows])
    assert [PointRow.from_dict(row) for row in frame.to_dict("records")] == rows
    assert list(rows[0].as_dict()) == list(POINT_COLUMNS)


def test_columns_of_other_versions_are_kept():
    row = PointRow.from_dict({"point": "c1-r0", "later": np.float64(2.0), "older": float("nan")})
    assert (row["later"], row["older"], row.get("later")) == (2.0, None, 2.0)
    assert row.as_dict()["later"] == 2.0
    with pytest.raises(KeyError):
        row["unknown"]
    assert row.get("unknown") is None


def test_the_load_level():
    assert PointRow(concurrency=8).level == Level(8)
    assert PointRow(rate=2.5).level == Level(rate=2.5)
    assert PointRow().level == Level()


@pytest.mark.parametrize("screen", get_args(Screen))
def test_what_a_screen_shows_is_named_and_headings_differ(screen: Screen) -> None:
    headings = [one.heading for one in columns_shown(screen)]
    assert headings
    assert len(set(headings)) == len(headings)


def test_percentiles_of_one_latency_stand_together() -> None:
    quantities = [one.name.partition("_")[0] for one in columns_shown("report")]
    assert sum(a != b for a, b in pairwise(quantities)) == len(set(quantities)) - 1


def test_a_column_is_called_by_its_name_unless_it_has_a_title() -> None:
    assert POINT_COLUMNS["itl_ms_p95"].labelled == "ITL p95, ms"
    assert POINT_COLUMNS["output_throughput_tok_s"].labelled == "output throughput, tok/s"


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("ttft_ms_p99", "lower"),
        ("goodput_req_s", "higher"),
        ("window_s", None),
    ],
)
def test_a_metric_has_its_direction(name: str, better: str | None) -> None:
    assert POINT_COLUMNS[name].better == better
