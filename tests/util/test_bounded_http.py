"""The client off the hot path against servers that mean harm: in time, in bounded memory, and a reason of one line."""

from __future__ import annotations

import importlib.util
import resource
import time
from pathlib import Path

import httpx
import pytest

from servebench.engine.adapters.openai import OpenAiEngine
from servebench.engine.supervisor.answers import generate, reason_of, said, served_models
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError

spec = importlib.util.spec_from_file_location("hostile", Path(__file__).parent / "hostile.py")
hostile = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hostile)

TIMEOUT_S = 1.5
BYTES_MAX = 4 << 20
GROWTH_KIB = 60 << 10


@pytest.fixture
def serve():
    made = []

    def start(name):
        made.append(hostile.Hostile(lambda number, method, path: name))
        return made[-1].url

    yield start
    for one in made:
        one.close()


def ask_models(http, url):
    return served_models(http, url)


def ask_words(http, url):
    return said(http.get(url))


def ask_generate(http, url):
    return generate(http, url, OpenAiEngine(), "tiny", TIMEOUT_S)


@pytest.mark.parametrize("name", hostile.MANNERS)
@pytest.mark.parametrize("ask", [ask_models, ask_words, ask_generate])
def test_no_manner_holds_up_or_fills_up(serve, name, ask):
    url = serve(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    with client((), timeout_s=TIMEOUT_S, bytes_max=BYTES_MAX) as http:
        try:
            ask(http, url)
            told = "nothing"
        except httpx.HTTPError as error:
            told = reason_of(error)
        except EngineError as error:
            told = str(error)
    assert 0 < len(told) < 400
    assert time.monotonic() - began < 10 * TIMEOUT_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB


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
    # what is not about time has time: a busy machine takes long for the first bytes
    timeout_s = TIMEOUT_S if name.startswith("slow") or name.endswith("slow body") else 20 * TIMEOUT_S
    with client((), timeout_s=timeout_s, bytes_max=131_072) as http, pytest.raises(httpx.HTTPError) as told:
        http.get(serve(name))
    assert reason in str(told.value)


def test_a_redirect_is_not_followed(serve):
    with client((("Authorization", "Bearer k"),), timeout_s=TIMEOUT_S) as http:
        assert http.get(serve("a redirect")).status_code == 307


def test_a_client_is_used_again_after_the_deadline_of_one_exchange(serve):
    """The budget is each exchange's own."""
    url = serve(None)
    with client((), timeout_s=TIMEOUT_S, bytes_max=2000) as http:
        for _ in range(30):
            assert served_models(http, url) == ["tiny"]
            time.sleep(0.03)
