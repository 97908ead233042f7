import numpy as np
import pandas as pd
import pytest

from servebench.contracts.columns import columns_of
from servebench.contracts.point_row import COLUMN_NAMES, PointRow


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
    assert list(rows[0].as_dict()) == list(COLUMN_NAMES)


def test_columns_of_other_versions_are_kept():
    row = PointRow.from_dict({"point": "c1-r0", "later": np.float64(2.0), "older": float("nan")})
    assert (row["later"], row["older"], row.get("later")) == (2.0, None, 2.0)
    assert row.as_dict()["later"] == 2.0
    with pytest.raises(KeyError):
        row["unknown"]
    assert row.get("unknown") is None


def test_the_load_level_as_text():
    assert PointRow(concurrency=8).level_label == "8"
    assert PointRow(rate=2.5).level_label == "2.5/s"
    assert PointRow().level_label == "-"
