"""Settings that have an effect only with others are refused where somebody has set them."""

import pytest

from servebench.config import compose_jobs
from servebench.config.effects import DEPENDENCIES
from servebench.registry.registry import registry
from servebench.util.errors import ConfigError

CLOSED = ("engine=vllm", "launch=simulated", "load=quick", "tracking=none", "quality=none", "workload=unique")
RATE = (*CLOSED, "load=rate")
IGNORED = [
    (CLOSED, "load.burstiness=3"),
    (RATE, "load.burstiness=3"),
    (CLOSED, "load.arrival=constant"),
    (RATE, "load.stagger=false"),
    (RATE, "load.while_growing=true"),
    ((*CLOSED, "study.starts=2"), "load.while_growing=true"),
    (CLOSED, "load.max_concurrency=4"),
    (CLOSED, "load.time_scale=2"),
    (("load=slo", "slo=interactive"), "load.repeats=3"),
    (RATE, "load.hold_level=false"),
    ((*CLOSED, "load.requests=20"), "load.drain_s=5"),
    ((*CLOSED, "load.requests=20"), "load.until=5%"),
    ((*CLOSED, "load.requests=20"), "load.min_requests=9"),
    ((*CLOSED, "load.until=null"), "load.max_duration_s=9"),
    (CLOSED, "load.cancel_after_s=9"),
    ((*CLOSED, "load.ramp.over_s=2"), "load.ramp.steps=9"),
    (CLOSED, "workload.adapter_skew=1"),
    ((*CLOSED, "workload=agent_loop"), "workload.sub_steps=9"),
    ((*CLOSED, "workload=rag_prefix", "workload.documents=1"), "workload.skew=1"),
    ((*CLOSED, "workload=long_context", "workload.needles=0"), "workload.depths=[0.5]"),
    ((*CLOSED, "workload=sharegpt"), "workload.split=test"),
    (CLOSED, "launch.shift_s=9"),
    (CLOSED, "launch.machine_s=9"),
    (CLOSED, "engine.spans_address=127.0.0.1:4318"),
    (CLOSED, "quality.items=9"),
    (CLOSED, "tracking.experiment=x"),
    ((*CLOSED, "telemetry.enabled=false"), "telemetry.interval_s=9"),
    (CLOSED, "slo.attainment=0.5"),
    ((*CLOSED, "study.starts=1"), "study.margin=9%"),
    ((*CLOSED, "study.until=decided"), "study.metrics=[ttft_ms_p50]"),
]
EFFECTIVE = [
    (*RATE, "load.arrival=gamma", "load.burstiness=3"),
    (*CLOSED, "load.min_requests=9", "load.max_duration_s=9", "load.drain_s=5"),
    (*CLOSED, "load.requests=20"),
    (*CLOSED, "load.cancel_fraction=0.5", "load.cancel_after_s=9"),
    (*CLOSED, "workload.adapters=[a,b]", "workload.adapter_skew=1"),
    (*CLOSED, "study.until=decided", "study.margin=9%"),
    (*CLOSED, "load.arrival=poisson"),
    (*RATE, "load.max_concurrency=4"),
]


@pytest.mark.parametrize(("words", "setting"), IGNORED)
def test_a_setting_without_an_effect_is_refused_in_one_line(words, setting):
    with pytest.raises(ConfigError) as error:
        compose_jobs([*words, setting], registry())
    (line,) = error.value.faults
    assert line.startswith(f"{setting.partition('=')[0]}=")


@pytest.mark.parametrize("words", EFFECTIVE)
def test_a_setting_with_an_effect_and_a_preset_pass(words):
    assert compose_jobs(words, registry())


def test_settings_without_effect_for_one_reason_share_a_line():
    words = [*CLOSED, "workload.api=completions", "+workload.images.count=3", "+workload.images.width=64"]
    with pytest.raises(ConfigError) as error:
        compose_jobs(words, registry())
    (line,) = error.value.faults
    assert "workload.images.count=3, workload.images.width=64 have no effect without messages" in line


def test_in_a_sweep_one_run_that_uses_a_setting_is_enough():
    words = ["-m", *CLOSED, "load=quick,rate", "load.arrival=gamma"]
    closed, opened = compose_jobs(words, registry())
    assert closed.settings.load.arrival == opened.settings.load.arrival == "gamma"
    with pytest.raises(ConfigError, match=r"load\.arrival"):
        compose_jobs([*words[:-2], "load=quick,sweep", "load.arrival=gamma"], registry())


def test_in_a_sweep_a_run_that_has_the_default_uses_no_setting():
    """Both runs have 20 requests: they would be the same run twice."""
    with pytest.raises(ConfigError, match=r"load\.until='10%' has no effect"):
        compose_jobs(["-m", *CLOSED, "load.requests=20", "load.until=null,10%"], registry())
    words = ["-m", *CLOSED, "load.requests=20,auto", "load.until=null,10%"]
    assert len(compose_jobs(words, registry())) == 4
    assert len(compose_jobs(["-m", *CLOSED, "load.until=null,10%", "tracking.experiment=servebench"], registry())) == 2


def test_a_setting_of_a_file_of_the_user_is_refused_too(tmp_path):
    (tmp_path / "load").mkdir()
    (tmp_path / "load" / "mine.yaml").write_text(
        "defaults: [base, _self_]\nname: mine\nconcurrency: [1]\nburstiness: 3\n"
    )
    with pytest.raises(ConfigError, match=r"load\.burstiness=3"):
        compose_jobs([*CLOSED, "load=mine", "--config-dir", str(tmp_path)], registry())


def test_an_empty_mapping_replaces_what_the_file_has():
    (job,) = compose_jobs([*CLOSED, "workload=mix", "workload.parts={}"], registry())
    assert job.settings.workload.parts == {}
    (job,) = compose_jobs([*CLOSED, "workload=mix", "workload.parts={}", "workload.parts.unique.weight=1"], registry())
    assert list(job.settings.workload.parts) == ["unique"]


def test_each_rule_has_a_case():
    cases = {setting.partition("=")[0] for _, setting in IGNORED}
    rules = [dependency.keys for dependency in DEPENDENCIES]
    tried = [any(one.startswith(key) for key in keys for one in cases) for keys in rules]
    skipped = [keys for keys, found in zip(rules, tried, strict=True) if not found]
    assert len(skipped) <= 5, skipped
