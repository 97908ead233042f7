"""Whole searches against an endpoint that serves a few requests at a time."""

import json

import pytest

ATTACH = ("engine=openai", "launch=attach", "model.name=tiny", "tracking=none", "workload=unique")
SHORT = ("workload.input_tokens=16", "workload.output_tokens=4", "load.warmup_requests=0")


@pytest.mark.slow
def test_the_highest_concurrency_that_meets_an_slo(endpoint, run_main, tmp_path):
    """The endpoint serves two at a time and refuses a third; a refused request never meets an SLO."""
    url, _ = endpoint(ttft_s=0.02, gap_s=0.02, at_most=2)
    run_main(
        *ATTACH,
        *SHORT,
        f"launch.base_url={url}",
        "load=search_slo",
        "load.search.upper=8",
        "slo.ttft_ms=100000",
        "slo.attainment=0.8",
        "study.name=s",
        code=0,
    )
    manifest = json.loads(next(tmp_path.glob("outputs/s/*/manifest.json")).read_text())
    search = manifest["search"]
    assert (search["outcome"], search["level"], search["bracket"]) == ("found", 2.0, [2.0, 3.0])
    assert [probe["level"] for probe in search["probes"]][:3] == [1.0, 2.0, 4.0], "doubled"
    assert {2.0, 3.0} <= {probe["level"] for probe in search["probes"]}, "both ends of the bracket are measured"
    assert search["confidence"] == 0.95


def test_a_search_without_a_limit_is_a_mistake(run_main):
    """An SLO search needs something to search for; said before anything starts."""
    done = run_main(*ATTACH, "launch.base_url=http://127.0.0.1:9/v1", "load=search_slo", code=2)
    assert "load=search_slo" in done.stderr
