"""Whole searches against an endpoint that serves a few requests at a time."""

import pytest

from support.results import attached_study, document, run_of


@pytest.mark.slow
def test_the_highest_concurrency_that_meets_an_slo(endpoint, run_main, tmp_path):
    """The endpoint serves two at a time and refuses a third; a refused request never meets an SLO."""
    url, _ = endpoint(ttft_s=0.02, gap_s=0.02, at_most=2)
    load = (
        "load=slo",
        "load.search.upper=8",
        "load.warmup_requests=0",
        "slo.ttft_ms=100000",
        "slo.attainment=0.8",
    )
    lengths = ("workload=unique", "workload.input_tokens=16", "workload.output_tokens=4")
    run_main(*attached_study(url, *load, *lengths), code=0)
    search = document(run_of(tmp_path) / "manifest.json")["search"]
    assert (search["outcome"], search["level"], search["bracket"]) == ("found", 2.0, [2.0, 3.0])
    assert [probe["level"] for probe in search["probes"]][:3] == [1.0, 2.0, 4.0], "doubled"
    assert {2.0, 3.0} <= {probe["level"] for probe in search["probes"]}, "both ends of the bracket are measured"
    assert search["confidence"] == 0.95


def test_a_search_without_a_limit_is_a_mistake(run_main):
    """An SLO search needs something to search for; said before anything starts."""
    done = run_main(*attached_study("http://127.0.0.1:9/v1", "load=slo"), code=2)
    assert "load=slo" in done.stderr
