"""The decision whether a started engine is ready, without an engine."""

from servebench.engine.supervisor.readiness import REFUSAL_S, Readiness


def readiness(*, has_health=True):
    return Readiness(has_health=has_health, deadline_s=100.0)


def test_an_engine_is_ready_after_all_steps():
    """It must listen, be healthy and generate a token, in this order."""
    state = readiness()
    for step in ("listening", "healthy", "first_token"):
        assert state.step == step
        assert state.failure(1.0) is None
        state.step_passed()
    assert state.step is None
    assert state.failure(1000.0) is None


def test_an_engine_without_a_health_endpoint_skips_that_step():
    state = readiness(has_health=False)
    state.step_passed()
    assert state.step == "first_token"


def test_the_deadline_ends_the_start_with_the_last_problem():
    state = readiness()
    state.step_failed("/health returned 503", 99.0, "not_yet")
    assert state.failure(100.0) is None
    assert state.failure(100.1) == "late"
    assert state.problem == "/health returned 503"


def test_a_server_that_keeps_refusing_is_given_up():
    """An attempt without an answer changes nothing; "not yet" restarts the clock."""
    state = readiness()
    state.step_failed("404", 1.0, "refused")
    state.step_failed("timeout", 5.0, "none")
    state.step_failed("404", 10.0, "refused")
    assert state.failure(1.0 + REFUSAL_S) is None
    assert state.failure(1.1 + REFUSAL_S) == "refusing"
    state.step_failed("503", 22.0, "not_yet")
    assert state.failure(30.0) is None
    state.step_failed("404", 30.0, "refused")
    assert state.failure(30.1 + REFUSAL_S) == "refusing"
