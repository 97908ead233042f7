"""The study's own copy of its plan, and the secrets that are not in it."""

import pytest

from servebench.store.layout import StudyFolder
from servebench.store.plan import PlannedRun, read_plan, with_secrets, write_plan
from servebench.util.errors import ConfigError, StoreError

CONFIG = {
    "engine": {"name": "vllm", "env": {"HF_TOKEN": "hf_0123456789abcdefghij", "PLAIN": "x"}},
    "load": {"concurrency": [1]},
}


def test_a_plan_comes_back_without_its_secrets(tmp_path):
    folder = StudyFolder(tmp_path)
    write_plan(folder, [PlannedRun(name="00_a", overrides=("engine=vllm",), config=CONFIG)])
    assert "hf_0123" not in folder.plan.read_text()
    (run,) = read_plan(folder)
    assert (run.name, run.overrides) == ("00_a", ("engine=vllm",))
    assert run.config["load"] == {"concurrency": [1]}
    full = with_secrets(run.config, {"HF_TOKEN": "again"})
    assert full["engine"]["env"] == {"HF_TOKEN": "again", "PLAIN": "x"}
    assert run.config["engine"]["env"]["HF_TOKEN"] == "[redacted]"


def test_a_secret_that_is_not_there_is_named(tmp_path):
    config = {"engine": {"env": {"HF_TOKEN": "[redacted]"}}, "tracking": {"uri": "http://[redacted]@host"}}
    with pytest.raises(ConfigError) as caught:
        with_secrets(config, {})
    assert caught.value.faults[0].startswith(
        "engine.env.HF_TOKEN was taken out of the plan, for it is a secret; export HF_TOKEN"
    )
    assert caught.value.faults[1].startswith("tracking.uri was taken out of the plan")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "has no plan.json: run the study's command again"),
        ("{", "is no JSON"),
        ("[]", "it is not a JSON object"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 2, "runs": [{}]}', "plan.json cannot be read: runs.0.name: field required"),
    ],
)
def test_a_plan_that_is_none(tmp_path, text, words):
    folder = StudyFolder(tmp_path)
    if text is not None:
        folder.plan.write_text(text)
    with pytest.raises(StoreError, match=words):
        read_plan(folder)
