"""KV memory: what is shared, what is pinned, what is thrown out first."""

import random

import pytest

from servebench.emulator.memory import KvMemory
from servebench.emulator.text import count_tokens
from servebench.util.common_prefix import common_prefix_length


def text(start, tokens):
    """A text of so many tokens that begins like this."""
    return (start * tokens)[: tokens * 4]


def run(memory, prompt, answer=""):
    """A whole request; what it found in the cache."""
    holding = memory.admit(prompt, count_tokens(prompt), 0)
    memory.computed(holding, prompt)
    if answer:
        assert memory.grow(holding, count_tokens(answer))
    memory.release(holding, prompt + answer)
    return holding.cached


@pytest.mark.parametrize(
    ("memory", "found"),
    [
        (KvMemory(1000, 16, shared=True), 96),
        (KvMemory(1000, 16, shared=False), 0),
        (KvMemory(1000, 1, shared=True), 101),
    ],
    ids=["blocks", "off", "tokens"],
)
def test_a_shared_prefix_is_found_as_finely_as_the_cache_can(memory, found):
    """101 tokens in common: whole blocks of 16, or to the token."""
    head = text("abcd", 101)
    assert run(memory, head + text("1", 20)) == 0
    assert run(memory, head + text("2", 20)) == found


def test_a_turn_finds_the_turn_before_with_its_answer():
    """Prompt and answer of one turn are the beginning of the next."""
    memory = KvMemory(1000, 16, shared=True)
    first, answer = text("ask ", 64), text("tell", 32)
    run(memory, first, answer)
    assert run(memory, first + answer + text("more", 16)) == 96


@pytest.mark.parametrize(
    "memory",
    [KvMemory(1000, 16, shared=True), KvMemory(1000, 1, shared=True)],
    ids=["blocks", "tokens"],
)
def test_the_last_token_of_a_prompt_is_always_computed(memory):
    """The same prompt again: something must be computed to give a token."""
    prompt = text("abcd", 64)
    run(memory, prompt)
    assert run(memory, prompt) < 64


def test_the_longest_unused_goes_first_and_nothing_that_is_used():
    memory = KvMemory(128, 16, shared=True)
    one, two, three = text("aaaa", 48), text("bbbb", 48), text("cccc", 48)
    run(memory, one)
    run(memory, two)
    assert memory.cached(one) > 0
    run(memory, one)
    run(memory, three)
    more = "x" * 8
    assert memory.cached(one + more) > memory.cached(two + more)
    held = memory.admit(text("dddd", 112), 112, 0)
    assert held is not None
    assert memory.admit(text("eeee", 48), 48, 0) is None
    assert memory.used() <= 128


def test_memory_is_never_lost_nor_made():
    """After any requests, all ended, nothing is in use; meanwhile never more than there is."""
    rng = random.Random("blocks")
    memory = KvMemory(512, 16, shared=True)
    running = []
    for _ in range(600):
        if running and rng.random() < 0.5:
            holding, prompt = running.pop(rng.randrange(len(running)))
            memory.release(holding, prompt if rng.random() < 0.8 else None)
        else:
            prompt = text(rng.choice(["abcd", "efgh"]), rng.randrange(8, 60)) + text(str(rng.randrange(9)), 12)
            taken = memory.admit(prompt, count_tokens(prompt), 0)
            if taken is not None:
                memory.computed(taken, prompt)
                memory.grow(taken, rng.randrange(1, 9))
                running.append((taken, prompt))
        assert 0 <= memory.used() <= memory.capacity
    for holding, _ in running:
        memory.release(holding, None)
    assert memory.used() == 0


@pytest.mark.parametrize(
    ("one", "other"), [("", ""), ("a", ""), ("abc", "abd"), ("abc", "abc"), ("abcd", "abc"), ("x", "y")]
)
def test_common_is_the_length_of_the_common_beginning(one, other):
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert common_prefix_length(one, other) == expected
