"""How a point is built: what of its requests counts."""

import pytest

from calibration.simulate import STEADY, Plant, simulate_run
from servebench.contracts.emulation import Variation


@pytest.mark.slow
@pytest.mark.parametrize(("warming", "cut"), [(True, True), (False, False)])
def test_the_requests_before_an_engine_is_steady_do_not_count(warming, cut):
    """20% slower in the first third of the point: found, cut, and the rest is what the engine shows in the long run."""
    words = (
        "load.concurrency=[8]",
        "load.requests=500",
        "workload.output_tokens={kind:normal,mean:64,stdev:40,min:2,max:200}",
    )
    plant = Plant(words=words, variation=STEADY)
    steady_ms = simulate_run(plant, "truth", seed=1).rows[0].itl_ms_mean
    if warming:
        plant = plant.planted(slowdown=1.2, shift=1 / 1.2 - 1, shift_s=3.0, shift_over_s=15.0)
    point = simulate_run(plant, "0", seed=0).points[0]
    assert (point.row.warmup_cut_s is not None) is cut
    assert "not_stationary" not in {doubt.code for doubt in point.doubts}
    assert point.row.itl_ms_mean == pytest.approx(steady_ms, rel=0.03)
    counted = point.row.ttft_ms_n
    assert (counted < 450) is cut
    assert point.row.requests_ok == 500, "they are kept"


def test_a_slowdown_multiplies_every_duration():
    """TTFT, TPOT, E2E and the time for a token, at one user and at several."""
    words = ("load.concurrency=[1,4]", "load.requests=40")
    even = Variation(start_sd=0.0, wander_sd=0.0, step_noise=0.0)
    plant = Plant(words=words, variation=even)
    usual, slow = (simulate_run(one, "0", seed=1).rows for one in (plant, plant.planted(slowdown=1.05)))
    for before, after in zip(usual, slow, strict=True):
        for name in ("ttft_ms_p50", "ttft_ms_mean", "tpot_ms_mean", "e2e_ms_p50"):
            assert after[name] / before[name] == pytest.approx(1.05, rel=0.002), name
