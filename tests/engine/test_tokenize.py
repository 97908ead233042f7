import json
from pathlib import Path

import pytest

from servebench.contracts.settings import ModelSettings
from servebench.engine.adapters.openai import OpenAiEngine
from servebench.engine.launchers.attach import AttachLauncher, AttachSettings
from servebench.engine.tokenize import ApproximateTokenizer, engine_tokenizer, offline_tokenizer
from servebench.util.errors import ConfigError, EngineError

TOKENIZER = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1, "?": 2}, "unk_token": "?"},
    "pre_tokenizer": {"type": "Whitespace"},
    "added_tokens": [],
}


@pytest.fixture
def running(server, context_of):
    def start(*options):
        settings = AttachSettings(name="attach", base_url=f"http://127.0.0.1:{server(*options)}/v1")
        return AttachLauncher().launch(
            OpenAiEngine(), context_of(), settings, log_path=Path("unused"), say=lambda _: None
        )

    return start


def model(**keys):
    return ModelSettings(name="m", **keys)


@pytest.fixture
def tokenizer_json(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(TOKENIZER))
    return path


def check_truncation(tokenizer):
    text = " ".join(f"word{index}" for index in range(200))
    for tokens in (0, 1, 2, 50, 199, 200, 300):
        cut = tokenizer.truncate(text, tokens)
        assert text.startswith(cut)
        assert tokenizer.count([cut])[0] == min(tokens, 200)
        if tokens < 200:
            assert tokenizer.count([text[: len(cut) + 1]])[0] > tokens, "a longer prefix would fit"


@pytest.mark.slow
def test_the_engine_counts_if_it_can(running, fake):
    """Its endpoint is preferred: exact, in the order of the texts, and truncation returns the longest prefix."""
    tokenizer = engine_tokenizer(fake(), running(), model())
    assert (tokenizer.name, tokenizer.exact) == ("engine", True)
    texts = [" ".join(["w"] * count) for count in (3, 0, 40, 1)]
    assert tokenizer.count(texts) == [3, 0, 40, 1]
    check_truncation(tokenizer)


@pytest.mark.slow
def test_words_that_an_earlier_start_has_counted_are_not_asked_for_again(running, fake):
    counts = {"known": 7}
    tokenizer = engine_tokenizer(fake(), running(), model(), counts)
    assert tokenizer.count(["known", "new", "known", "w " * 30]) == [7, 1, 7, 30]
    assert counts == {"known": 7, "one two": 2, "new": 1}


def test_an_engine_that_stops_counting_is_an_error(running, fake):
    """There is no fallback to an approximation in the middle of a workload."""
    engine = running()
    tokenizer = engine_tokenizer(fake(), engine, model())
    tokenizer._url = tokenizer._url.replace("/tokenize", "/other")
    with pytest.raises(EngineError, match=r"/other .*404: no such path"):
        tokenizer.count(["one"])


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["none", "other"])
def test_a_tokenize_path_that_does_not_work_is_skipped(running, fake, answers):
    tokenizer = engine_tokenizer(fake(), running("--tokens", answers), model())
    assert tokenizer.exact is False


@pytest.mark.slow
@pytest.mark.parametrize("how", ["file", "folder", "model"])
def test_the_models_file_counts(running, tokenizer_json, how):
    """`model.tokenizer`, a file or its folder, or the model's own folder."""
    where = {
        "file": model(tokenizer=str(tokenizer_json)),
        "folder": model(tokenizer=str(tokenizer_json.parent)),
        "model": model(path=str(tokenizer_json.parent)),
    }[how]
    tokenizer = engine_tokenizer(OpenAiEngine(), running(), where)
    assert (tokenizer.name, tokenizer.exact) == (str(tokenizer_json), True)
    assert tokenizer.count(["one two", "", "one"]) == [2, 0, 1]
    check_truncation(tokenizer)


def test_a_named_file_that_cannot_be_used_is_an_error(running, tokenizer_json):
    """Missing or broken: there is no silent approximation."""
    endpoint = running()
    with pytest.raises(ConfigError, match=r"model.tokenizer=/no/such: "):
        engine_tokenizer(OpenAiEngine(), endpoint, model(tokenizer="/no/such"))
    broken = tokenizer_json.with_name("broken.json")
    broken.write_text("{}")
    with pytest.raises(EngineError, match=r"broken.json"):
        engine_tokenizer(OpenAiEngine(), endpoint, model(tokenizer=str(broken)))
    with pytest.raises(ConfigError, match=r"broken.json"):
        offline_tokenizer(model(tokenizer=str(broken)))


def test_the_file_in_the_hubs_cache_counts(tokenizer_json, tmp_path, monkeypatch):
    """Where an engine has left it that downloaded the model; of another model, or one without a valid id, nothing is found."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tokenizer_json).rename(snapshot / "tokenizer.json")
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    assert offline_tokenizer(ModelSettings(name="some/model")).count(["one two"]) == [2]
    for name in ("other/model", "../../etc", "a b c"):
        assert offline_tokenizer(ModelSettings(name=name)).exact is False


def test_the_approximation(running):
    """Four characters per token, at least one, and none for an empty text."""
    tokenizer = engine_tokenizer(OpenAiEngine(), running(), model(path="/models/some.gguf"))
    assert isinstance(tokenizer, ApproximateTokenizer)
    assert (tokenizer.name, tokenizer.exact) == ("approximate (4 characters a token)", False)
    assert tokenizer.count(["", "a", "abcdefgh", "a" * 400]) == [0, 1, 2, 100]
    assert tokenizer.truncate("a" * 400, 7) == "a" * 28
