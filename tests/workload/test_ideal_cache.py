"""What a prefix cache could do at best."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from servebench.contracts.point_row import PointRow
from servebench.contracts.request import Message, Request
from servebench.workload.build.requests import add_extras
from servebench.workload.ideal_cache import hit_rate, ideal_columns, ideal_hits, ideal_hits_of
from servebench.workload.multi_turn import MultiTurnSettings, MultiTurnWorkload
from servebench.workload.rag_prefix import RagPrefixSettings, RagPrefixWorkload
from servebench.workload.unique import UniqueSettings, UniqueWorkload


def settings(**keys):
    return UniqueSettings(name="unique", **keys)


def test_ideal_hits_of_documents(pieces):
    """All but the first request about a document find it: share 0.5 of 256 tokens is 8 blocks of 16."""
    rag = RagPrefixWorkload(
        RagPrefixSettings(name="rag_prefix", share=0.5, input_tokens=256, documents=4, api="completions")
    )
    hits = ideal_hits(rag.requests(40, stream="c1-0", tokenizer=pieces), pieces)
    repeats = 40 - len(set(rag.documents_of(40, stream="c1-0")))
    assert hit_rate(hits) == pytest.approx(repeats * 128 / (40 * 256))


def test_ideal_hits_of_unique_prompts(pieces):
    """None at all."""
    unique = UniqueWorkload(settings(input_tokens=200, api="completions"))
    assert hit_rate(ideal_hits(unique.requests(50, stream="c1-0", tokenizer=pieces), pieces)) == 0


def test_ideal_hits_by_hand(pieces):
    """Whole blocks, never the last token, nothing between adapters, nothing before it was seen."""
    words = " ".join(["word"] * 32)
    texts = [words, words, f"{words} more", "else", words]
    requests = [Request(request_id=str(n), prompt=text) for n, text in enumerate(texts)]
    requests[4] = add_extras(requests[4], settings(adapters=("other",)))
    assert ideal_hits(requests, pieces) == [(0, 32), (16, 32), (32, 33), (0, 1), (0, 32)]
    assert hit_rate([]) is None


def test_ideal_hits_of_sessions(pieces):
    """Each turn finds what was sent before it: most of its prompt."""
    talk = MultiTurnWorkload(MultiTurnSettings(name="multi_turn", turns=6, active=2, history="scripted"))
    rate = hit_rate(ideal_hits(talk.requests(60, stream="c1-0", tokenizer=pieces), pieces))
    assert rate is not None
    assert 0.5 < rate < 0.9


def sent(request_id, at_ns, outcome="ok", warmup=False):
    return SimpleNamespace(
        request_id=request_id,
        sent_ns=at_ns,
        ended_ns=at_ns + 1,
        outcome=outcome,
        measured=not warmup,
        text="",
        prompt_tokens=None,
    )


def test_what_the_chat_template_adds_is_in_the_cache(pieces):
    """Two chats that share nothing of their own, of which the server counts 30 tokens more than they say."""
    requests = [Request(request_id=name, messages=(Message("user", f"{name} one two"),)) for name in "ab"]
    counts = [total for _, total in ideal_hits(requests, pieces)]
    assert ideal_hits(requests, pieces, 1, served=[count + 30 for count in counts]) == [
        (30 + common, count + 30) for common, count in zip((0, pieces.count(["user: "])[0]), counts, strict=True)
    ]
    plain = [Request(request_id="p", prompt="one two")]
    assert ideal_hits(plain, pieces, 1, served=[40])[0][0] == 0, "a completion has no template"


def test_no_ideal_rate_of_images(pieces):
    """The server counts the tokens of images, which prompts do not share, with those of the template, which they do."""
    plain = [Request(request_id=name, messages=(Message("user", f"{name} one two"),)) for name in "ab"]
    shown = [replace(one, images=("data:image/png;base64,AA==",)) for one in plain]
    records = [sent("a", 10), sent("b", 20)]
    assert ideal_hits_of(plain, records, pieces)
    assert ideal_hits_of(shown, records, pieces) == {}


def test_columns_follow_the_order_of_sending(pieces, quarters):
    """In the order sent, over ok requests inside the window; what failed was seen, too."""
    words = " ".join(["word"] * 33)
    requests = [Request(request_id=name, prompt=words) for name in "abc"]
    records = [sent("a", 30), sent("b", 10, "timeout"), sent("c", 20), sent("w", 1, warmup=True)]
    row = PointRow(window_start_ns=15, window_end_ns=40)
    assert ideal_columns(ideal_hits_of(requests, records, pieces), records, row) == {
        "prefix_cache_hit_rate_ideal": 32 / 33
    }
    first = PointRow(window_start_ns=5, window_end_ns=15)
    assert ideal_columns(ideal_hits_of(requests, records, pieces), records, first) == {
        "prefix_cache_hit_rate_ideal": None
    }
    assert (
        ideal_columns(ideal_hits_of(requests, records, quarters), records, row)
        == ideal_columns(ideal_hits_of(requests, [], pieces), [], PointRow())
        == {}
    )
