"""What all workloads share: the fields of a request, and configs that say what the settings default to."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from servebench.config.validate import check_section, with_ranges
from servebench.contracts.settings import LengthSettings
from servebench.workload.agent_loop import AgentLoopWorkload
from servebench.workload.dataset import ShareGptWorkload
from servebench.workload.long_context import LongContextWorkload
from servebench.workload.multi_turn import MultiTurnWorkload
from servebench.workload.rag_prefix import RagPrefixWorkload
from servebench.workload.structured_json import StructuredJsonWorkload
from servebench.workload.summarization import SummarizationWorkload
from servebench.workload.unique import UniqueWorkload
from support.workloads import requests_of

CONF = Path(__file__).parents[2] / "conf" / "workload"
PLAIN = (UniqueWorkload, RagPrefixWorkload, ShareGptWorkload)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("kind", PLAIN)
def test_fields(pieces, text_of, kind, api, exact):
    """Settings reach each request, and ids are the stream's, in order."""
    requests = requests_of(kind, pieces, 3, "c8-0", api=api, exact_output=exact, temperature=0.5)
    assert [request.request_id for request in requests] == ["c8-0-00000", "c8-0-00001", "c8-0-00002"]
    for request in requests:
        assert (request.prompt is None) == (api == "chat")
        assert (request.exact_output, request.temperature) == (exact, 0.5)
        assert text_of(request)


@pytest.mark.parametrize("kind", PLAIN)
def test_streams_do_not_depend_on_one_another(pieces, kind):
    """The same workload gives the same requests again after it was asked for others, and none when asked for none."""
    workload = kind(kind.settings_type(name=kind.name))
    first = workload.requests(20, stream="a", tokenizer=pieces)
    workload.requests(5, stream="b", tokenizer=pieces)
    assert workload.requests(20, stream="a", tokenizer=pieces) == first == requests_of(kind, pieces, 20, "a")
    assert workload.requests(0, stream="a", tokenizer=pieces) == []


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [
        (MultiTurnWorkload, None),
        (AgentLoopWorkload, None),
        (LongContextWorkload, None),
        (SummarizationWorkload, None),
        (StructuredJsonWorkload, (None, 512)),
        (RagPrefixWorkload, (512, LengthSettings(kind="uniform", min=32, max=96))),
    ],
)
def test_config_files(kind, lengths):
    """The shipped configs have only keys that the settings know, and their defaults but for api, cache and lengths."""
    plain = OmegaConf.to_container(OmegaConf.load(CONF / f"{kind.name}.yaml"))
    assert isinstance(plain, dict)
    assert plain.pop("defaults") == ["base", "_self_"]
    found, problems = check_section("workload", with_ranges(plain), {"workload": kind.settings_type})
    assert not problems
    assert lengths in (None, (found.input_tokens, found.output_tokens))
    chosen = {name: getattr(found, name) for name in ("api", "cache", "input_tokens", "output_tokens")}
    assert found == kind.settings_type(name=kind.name, **chosen)
    assert found.cache == ("cold" if kind in COLD else "as_is")


COLD = (MultiTurnWorkload, AgentLoopWorkload, StructuredJsonWorkload, RagPrefixWorkload)
