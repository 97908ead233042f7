"""No secret is in anything that is written; what only looks like one stays."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servebench.util.redaction import known_secrets, redact, redact_text, remember_config
from servebench.util.secret_patterns import MARK, find_secrets, secret_name
from util.former_redaction import formerly_redacted

SECRET = "s3cr3t-Value-42"


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY", "api_key", "apikey", "api-key", "apiKey", "x-api-key", "launch.api_key", "hf_token", "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN", "token", "accessToken", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "db_password",
        "PGPASSWORD", "passwd", "client_secret", "Authorization", "credentials", "private_key", "OPENAI_KEY",
        "WANDB_API_KEY", "NGC_CLI_API_KEY", "GITHUB_TOKEN_2", "bearer", "passphrase", "--api-key", "MY_PASSWORD",
        "Ocp-Apim-Subscription-Key", "x-functions-key", "Cookie", "Set-Cookie", "X-Auth", "AccountKey",
    ],
)  # fmt: skip
def test_names_of_secrets(name):
    assert secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "input_tokens", "output_tokens", "max_tokens", "max_new_tokens", "tokenizer", "tokenizer_mode", "api_key_env",
        "prefix_caching", "eos_token_id", "eos_token", "bos_token", "pad_token_id", "token_ids", "token_count",
        "num_tokens", "max-num-batched-tokens", "energy_j_per_token", "time_per_output_token", "event_tokens",
        "skip_tokenizer_init", "cached_tokens", "key", "cache_key", "keyword", "HF_TOKEN_PATH", "api_key_file", "api_key_header",
        "tokens", "secretary", "passing", "compass", "kv_cache_dtype", "seed", "token_throughput", "--token-id", "KEYBOARD",
        "TOKENIZERS_PARALLELISM", "--max-total-tokens", "--tokenizer", "--eos-token",
    ],
)  # fmt: skip
def test_names_that_only_look_like_it(name):
    assert not secret_name(name)


PLANTED = {
    "config value": {"engine": {"env": {"HF_TOKEN": SECRET}}},
    "list under a secret key": {"extra_args": {"api-key": [SECRET, SECRET + "2"]}},
    "mapping under a secret key": {"credentials": {"user": SECRET, "more": [SECRET]}},
    "flag, then value": {"argv": ["vllm", "serve", "--api-key", SECRET, "--port", "1"]},
    "flag=value": {"argv": ["vllm", f"--api-key={SECRET}"]},
    "flag with underscores": {"argv": [f"--hf_token={SECRET}"]},
    "short flag name": ["-token", SECRET],
    "url userinfo": {"uri": f"https://user:{SECRET}@host/x"},
    "userinfo with an at sign": {"uri": f"postgresql://user:p@{SECRET}@host/db"},
    "url query": {"uri": f"https://host/x?a=1&api_key={SECRET}&b=2"},
    "signed url": f"https://host/x?X-Amz-Signature={SECRET}",
    "bearer": {"header": f"Bearer {SECRET}"},
    "basic": f"Authorization: Basic {SECRET}",
    "header pair": {"headers": [["X-Api-Key", SECRET], ["Accept", "x"]]},
    "hydra word": {"words": ["-m", f"+engine.env.OPENAI_API_KEY={SECRET},a b,{SECRET}"]},
    "hydra mapping": [f"engine.env={{HF_TOKEN:{SECRET},A:1}}"],
    "hydra quoted": [f"engine.extra_args.api-key='one {SECRET}'"],
    "command in one line": f"HF_TOKEN={SECRET} vllm serve x --api-key '{SECRET} two' --port 1",
    "log of an engine": f"INFO args: Namespace(host='x', api_key='{SECRET}', max_model_len=5)",
    "json in text": json.dumps({"api_key": SECRET, "n": 1}),
    "yaml in text": f"password: {SECRET}",
    "nested lists": [[["deep", {"list": [{"secret": SECRET}]}]]],
    "tuple": ({"password": SECRET},),
    "a number": {"password": 987654321},
    "flag after a flag": f"vllm serve x --enable-prefix-caching --api-key {SECRET}",
    "flags in one word": f"see docs.--api-key {SECRET}",
    "flag in a list in text": f"['vllm', '--api-key', '{SECRET}', '--port', '1']",
    "flag in escaped JSON": f'{{"argv": "[\\"--api-key\\", \\"{SECRET}\\"]"}}',
    "inside a quoted value": f"cmd='HF_TOKEN={SECRET} vllm serve'",
    "inside another value": f"docker run --env=HF_TOKEN={SECRET} x",
    "inside JSON text": f'{{"error": "api_key: {SECRET}"}}',
    "escaped JSON": f'body="{{\\"api_key\\": \\"{SECRET}\\"}}"',
    "cut off": f'api_key="{SECRET} and mo',
    "list of values": f"args: api_key=['{SECRET}', '{SECRET}2']",
    "bytes": f"api_key=b'{SECRET}'",
    "call": f"Settings(api_key=SecretStr('{SECRET}'))",
    "name as value": f"SecretStr: api_key=SecretStr('{SECRET}')",
    "subscript": f'headers["x-api-key"] = "{SECRET}"',
    "walrus": f"api_key := {SECRET}",
    "other scheme": f"Authorization: Negotiate {SECRET}",
    "yaml token": f"token: {SECRET}",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\n"  # pragma: allowlist secret
    f"{SECRET.replace('-', '')}\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("place", PLANTED)
def test_planted_secrets_are_gone(place):
    text = json.dumps(redact(PLANTED[place]))
    assert SECRET not in text
    assert SECRET.replace("-", "") not in text
    assert "987654321" not in text
    assert MARK in text


@pytest.mark.parametrize(
    "text", [f"Incorrect key provided: {SECRET}.", f"connect to http://h/{SECRET}/x failed", f"x{SECRET}y"]
)
def test_values_of_secret_variables_are_gone(text, monkeypatch):
    """What the environment calls secret is found in any text, whatever is around it."""
    monkeypatch.setenv("MY_SERVICE_TOKEN", SECRET)
    assert SECRET not in redact_text(text)
    assert SECRET not in json.dumps(redact({"error": [text]}))


def test_a_short_value_of_a_secret_variable_is_no_secret(monkeypatch):
    """A placeholder (`EMPTY`) would be found inside other words."""
    monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
    assert redact_text("the queue is EMPTY") == "the queue is EMPTY"


HARMLESS = [
    {"input_tokens": 512, "output_tokens": 128, "max_tokens": 7, "eos_token_id": 2, "eos_token": "</s>"},
    {"tokenizer": "meta/x", "api_key_env": "OPENAI_API_KEY", "prefix_caching": True, "api_key": None, "token": ""},
    {"argv": ["vllm", "--max-num-batched-tokens", "8192", "--tokenizer", "x/y", "--max-num-seqs=64", "--eos-token", "x"]},
    ["workload.output_tokens=64,128", "launch.api_key_env=MY_KEY_VARIABLE", "engine.prefix_caching=true"],
    "unexpected token: x; 512 input_tokens: 3, output_tokens=5, api_key_env=NAME, tokenizer: qwen",
    "https://host:8000/v1?model=x&max_tokens=5",
    "--max-num-batched-tokens 8192 --tokenizer-mode auto --api-key --port 1",
    "a bearer of news and the basic settings",
    "mail me at someone@example.org; see http://host/a and x@y",
    {"n": 1, "x": 1.5, "y": None, "z": [True, None]},
    "launch.api_key_env=MY_API_KEY: this environment variable is not set or is empty; export it first",
    "quality.judge.api_key_env=JUDGE_API_KEY: that variable is not set; export it",
    "OPENAI_API_KEY environment variable is not set",
    "api_key: OPENAI_API_KEY environment variable is not set",
    "launch.api_key_env=OPENAI_API_KEY: OPENAI_API_KEY environment variable is not set",
    "authorization: HF_TOKEN is missing",
    "engine.env.HF_TOKEN: must be a text",
    "Namespace(api_key=None, hf_token=False), {'token': null, 'password': ''}",
]  # fmt: skip


@pytest.mark.parametrize("value", HARMLESS, ids=range(len(HARMLESS)))
def test_harmless_things_stay(value):
    assert redact(value) == value


def test_redaction_changes_nothing_the_second_time():
    """What is redacted is redacted again when it is sent."""
    for value in PLANTED.values():
        once = redact(value)
        assert redact(once) == once


@pytest.mark.parametrize(
    "secret", ['two "words" \\ and more', "p@ss/w%rd?", "Überlänge-öäü", "several\nlines-of-one-secret\nmore"]
)
def test_a_known_secret_is_gone_in_every_form(secret, monkeypatch):
    """As it is, in JSON, in a URL, and each long line of it."""
    monkeypatch.setenv("MY_SERVICE_TOKEN", secret)
    forms = [secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, safe="")]
    forms += [line for line in secret.splitlines() if len(line) > 16]
    for form in forms:
        assert form not in redact_text(f"say {form}, x{form}y")


NAMES = [
    "api_key",
    "HF_TOKEN",
    "x-api-key",
    "db.password",
    "Authorization",
    "OPENAI_KEY",
    "token",
    "sig",
    "name",
    "tokens",
]
JOINTS = ["=", ": ", " ", '": "', "='", '\\": \\"', "=[", "= ", ":=", "&", "', '", " = b'", "\n"]
PARTS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(JOINTS),
    st.sampled_from(
        ["--", "-", "?", "&", "://", "@", "Bearer ", "basic ", '"', "'", "}", ",", ";", " ", "\n", "null", "("]
    ),
    st.integers(0, 9).map(lambda n: f"planted{n}planted"),
    st.text("ab=:\"' \\\n-_./[]{}", max_size=4),
)
TEXTS = st.lists(PARTS, max_size=14).map("".join)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_what_was_hidden_by_former_patterns_is_hidden(text):
    before, after = formerly_redacted(text), redact_text(text, [])
    for n in range(10):
        assert after.count(f"planted{n}planted") <= before.count(f"planted{n}planted"), (text, before, after)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.lists(st.text(min_size=6, max_size=12), min_size=1, max_size=3))
def test_no_known_secret_survives(text, secrets):
    """Whatever is around it, and whatever else is hidden."""
    middle = len(text) // 2
    text = text[:middle] + "".join(secrets) + text[middle:] + secrets[0]
    after = redact_text(text, secrets)
    assert not [secret for secret in secrets if secret in after.replace(MARK, "\0") and secret not in MARK]
    found = find_secrets(text, secrets)
    assert all(0 <= begin <= start < end <= len(text) for start, end, begin in found)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_any_text_is_redacted_once(text):
    once = redact_text(text, [])
    assert redact_text(once, []) == once


def test_names_of_variables_stay():
    """A header's name says that its value is secret; what stands here is where that is."""
    config = {"launch": {"headers_env": {"x-api-key": "GATEWAY"}, "headers": {"x-api-key": "abc"}}}
    assert redact(config) == {"launch": {"headers_env": {"x-api-key": "GATEWAY"}, "headers": {"x-api-key": MARK}}}
    word = "launch.headers_env.x-api-key=GATEWAY"
    assert redact([word]) == [word]
    assert redact_text(f"{word}: not set") == f"{word}: not set"


def test_variables_that_a_config_names_are_secret(monkeypatch):
    """One under a key of its own, or several by the headers that they fill."""
    values = {"KEY_ONE": "plain-value-one", "KEY_TWO": "plain-value-two"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    remember_config({"launch": {"x_env": "KEY_ONE", "headers_env": {"x-team": "KEY_TWO"}}})
    assert set(values.values()) <= set(known_secrets())
