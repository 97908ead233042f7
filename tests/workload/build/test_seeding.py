"""Salts, generators, and the two ways to ask."""

import re

import pytest

from servebench.contracts.request import Message
from servebench.contracts.settings import WorkloadSettings
from servebench.workload.build.requests import add_extras, as_request
from servebench.workload.build.seeding import SALT_CHARACTERS, SALT_TOKENS_MAX, generator, salt


def test_salt_is_fixed():
    """A salt never changes between versions: figures taken with the same seed stay comparable."""
    assert salt(0, "point", 0) == "174eec2fa5b7"
    assert re.fullmatch(r"[0-9a-f]{12}", salt(-5, "ä", 10**9))


def test_salts_differ_in_each_part():
    """Seed, stream and index each change it."""
    salts = {salt(seed, stream, index) for seed in range(5) for stream in ("a", "b", "a/1") for index in range(200)}
    assert len(salts) == 3000


def test_a_salt_fits_its_tokens():
    """Even a tokenizer of single characters has room for a salt and two line ends."""
    assert SALT_CHARACTERS + 2 <= SALT_TOKENS_MAX


def test_generator_is_fixed():
    """The generator of a stream is the same in every process and version."""
    assert [generator(0, "point").randrange(1000) for _ in range(2)] == [generator(0, "point").randrange(1000)] * 2
    assert generator(0, "a").random() != generator(0, "b").random() != generator(1, "a").random()


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_as_request(api):
    """A chat has one turn of the user; a completion has the bare text; never both."""
    request = as_request("hello", api, "r-1", output_tokens=3)
    chat = api == "chat"
    assert request.messages == ((Message("user", "hello"),) if chat else None)
    assert request.prompt == (None if chat else "hello")
    assert (request.request_id, request.output_tokens) == ("r-1", 3)


def test_fields_of_the_user_go_with_every_request():
    """They replace those of the workload."""
    settings = WorkloadSettings(name="w", body={"reasoning_effort": "low", "top_p": 0.5})
    request = as_request("hello", "chat", "r-1", extra={"top_p": 0.9, "tools": []})
    assert add_extras(request, settings).extra == {"top_p": 0.5, "tools": [], "reasoning_effort": "low"}
