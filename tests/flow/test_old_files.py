"""Studies of older versions are shown, compared and resumed."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from servebench.contracts.results import SCHEMA_VERSION

OLD = Path(__file__).parents[1] / "store" / "old"
STUDIES = sorted(path.parent for path in OLD.glob("*/*/study.json"))


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.parent.name)
def test_an_old_study_is_shown_and_resumed(study, servebench, endpoint, tmp_path):
    mine = tmp_path / "outputs" / study.name
    shutil.copytree(study, mine)
    url, _ = endpoint(model="stub")
    for manifest in mine.glob("*/manifest.json"):
        manifest.write_text(manifest.read_text().replace("http://127.0.0.1:28777/v1", url))
    runs = sorted(path.name for path in mine.iterdir() if path.is_dir())
    for words in (("ls",), ("show", study.name), ("show", f"{study.name}/{runs[0]}")):
        shown = servebench(*words, code=0)
        assert runs[0] in shown.stdout
    refused = servebench("resume", study.name, code=2)
    assert "--trust" in refused.stderr
    servebench("resume", study.name, "--trust", code=0)
    points = pd.read_parquet(mine / runs[1] / "points.parquet")
    assert [name.removesuffix("-a1") for name in points.point] == ["c1-r0", "c2-r0"]
    assert points.requests_ok.tolist() == [6, 6]
    compared = servebench("compare", study.name, code=0)
    assert "c1" in compared.stdout or "1" in compared.stdout
    for file in ("study.json", f"{runs[1]}/run.json", f"{runs[1]}/manifest.json"):
        assert json.loads((mine / file).read_text())["schema_version"] == SCHEMA_VERSION
