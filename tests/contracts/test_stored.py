import pytest

from servebench.contracts.stored import chosen


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["engine=vllm_nightly", "engine.dtype=auto"], "vllm_nightly"),
        (["engine=vllm", "+engine=mine"], "mine"),
        (["engine.name=x", "load=quick"], "vllm"),
        ([], "vllm"),
    ],
)
def test_an_engine_is_called_as_it_was_chosen(overrides, name):
    assert chosen(overrides, "engine", "vllm") == name
