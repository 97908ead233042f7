"""The client off the hot path against servers that mean harm: in time, in bounded memory, and a reason of one line."""

import resource
from types import SimpleNamespace

import httpx
import pytest

from servebench.engine.adapters.openai import OpenAiEngine
from servebench.engine.supervisor.endpoint import generate_token, http_error_reason, served_models
from servebench.protocol.errors import error_text
from servebench.util import bounded_http
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError
from support.hostile import BEHAVIOURS, HostileServer

TIMEOUT_S = 1.5
BYTES_MAX = 4 << 20
GROWTH_KIB = 60 << 10


@pytest.fixture
def serve():
    made = []

    def start(name):
        made.append(HostileServer(lambda number, method, path: name))
        return made[-1].base_url

    yield start
    for one in made:
        one.close()


ASKS = {
    "models": served_models,
    "words": lambda http, url: error_text(http.get(url).content),
    "a token": lambda http, url: generate_token(http, url, OpenAiEngine(), "tiny", TIMEOUT_S),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BEHAVIOURS)
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_no_behaviour_holds_the_client_up_or_fills_its_memory(serve, name, ask):
    # the slow ones never end by themselves: that this test ends shows that the client gave up
    url = serve(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with client((), timeout_s=TIMEOUT_S, bytes_max=BYTES_MAX) as http:
        try:
            ask(http, url)
            told = "nothing"
        except httpx.HTTPError as error:
            told = http_error_reason(error)
        except EngineError as error:
            told = str(error)
    assert 0 < len(told) < 400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("slow headers", "no whole answer within 1.5 s"),
        ("a slow body", "no whole answer within 1.5 s"),
        ("endless interim answers", "the answer is longer than 131072 bytes"),
        ("endless body without a line end", "the answer is longer than 131072 bytes"),
        ("a gzip bomb", "the answer is encoded as 'gzip', which was not asked for"),
    ],
)
def test_the_reason_is_named(serve, name, reason):
    # a busy machine may take long for the first bytes of an answer that is not about time
    timeout_s = TIMEOUT_S if name.startswith("slow") or name.endswith("slow body") else 20 * TIMEOUT_S
    with client((), timeout_s=timeout_s, bytes_max=131_072) as http, pytest.raises(httpx.HTTPError) as told:
        http.get(serve(name))
    assert reason in str(told.value)


def test_a_redirect_is_not_followed(serve):
    with client((("Authorization", "Bearer k"),), timeout_s=20 * TIMEOUT_S) as http:
        assert http.get(serve("a redirect")).status_code == 307


def test_each_exchange_has_its_own_deadline_and_size(serve, monkeypatch):
    """Together they take longer, and more bytes, than one may."""
    now_s = 0.0
    monkeypatch.setattr(bounded_http, "time", SimpleNamespace(monotonic=lambda: now_s))
    url = serve(None)
    with client((), timeout_s=20 * TIMEOUT_S, bytes_max=2000) as http:
        for _ in range(30):
            assert served_models(http, url) == ["tiny"]
            now_s += 10 * TIMEOUT_S
