from pathlib import Path

import pytest

from servebench.quality.rows import GSM8K, MMLU, question_file
from servebench.util.errors import ConfigError


@pytest.mark.parametrize("source", [MMLU, GSM8K], ids=["mmlu", "gsm8k"])
def test_questions_in_the_cache_are_not_fetched_again(source, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    kept = tmp_path / "quality" / source.sha256[:16] / Path(source.member).name
    with pytest.raises(ConfigError, match=f"{source.package} {source.version}"):
        question_file(source, tmp_path)
    kept.write_bytes(b"{}\n")
    assert question_file(source, tmp_path) == kept
