"""What is known of the weights that an engine was started with."""

import base64
import struct
import zlib

import pytest

from servebench.contracts.settings import ModelSettings
from servebench.engine import weights
from servebench.engine.weights import EDGE_BYTES, weights_facts


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model-2.safetensors").write_bytes(b"b" * (3 * EDGE_BYTES))
    (tmp_path / "model-1.safetensors").write_bytes(b"a")
    (tmp_path / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def facts(path, *argv, **more):
    return weights_facts(ModelSettings(name="m", path=None if path is None else str(path), **more), argv)


def test_a_folder_has_format_precision_and_a_digest_of_its_weights(folder):
    found = facts(folder, "serve", str(folder))
    assert (found["format"], found["quantization"]) == ("safetensors", "bfloat16")
    (folder / "tokenizer.json").write_text("{ }")
    assert facts(folder, "serve")["digest"] == found["digest"]
    (folder / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}, "torch_dtype": "float16"}')
    assert facts(folder, "serve")["quantization"] == "awq"


@pytest.mark.parametrize("place", [0, 3 * EDGE_BYTES - 1])
def test_other_bytes_at_either_end_are_another_digest(folder, place):
    before = facts(folder, "serve")["digest"]
    with (folder / "model-2.safetensors").open("r+b") as file:
        file.seek(place)
        file.write(b"x")
    assert facts(folder, "serve")["digest"] != before


@pytest.mark.parametrize(
    ("name", "quantization"), [("Tiny-Q4_K_M.gguf", "Q4_K_M"), ("t.f16.gguf", "F16"), ("t.gguf", "unknown")]
)
def test_a_gguf_file_says_in_its_name_how_it_is_quantized(tmp_path, name, quantization):
    file = tmp_path / name
    file.write_bytes(b"GGUF")
    found = facts(None, "llama-server", "-m", str(file))
    assert (found["format"], found["quantization"], found["digest"][:7]) == ("gguf", quantization, "sha256:")


def text(value):
    return struct.pack("<Q", len(value)) + value


def header(*pairs, version=3, keys=None):
    """A GGUF header with these keys; each value with its type."""
    body = b"".join(text(name) + struct.pack("<I", kind) + value for name, kind, value in pairs)
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs) if keys is None else keys) + body


def file_type(number):
    return (b"general.file_type", weights.UINT32, struct.pack("<I", number))


VOCABULARY = (
    b"tokenizer.ggml.tokens",
    weights.ARRAY,
    struct.pack("<IQ", weights.STRING, 3) + text(b"a") + text(b"") + text(b"bc"),
)
SCORES = (b"tokenizer.ggml.scores", weights.ARRAY, struct.pack("<IQ3f", 6, 3, 0.0, 1.0, 2.0))
NAME = (b"general.name", weights.STRING, text(b"tiny"))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (header(file_type(15)), "Q4_K_M"),
        (header(NAME, VOCABULARY, SCORES, (b"x", 10, bytes(8)), file_type(3)), "Q4_1"),
        (header(NAME, file_type(7 | weights.GUESSED), version=2), "Q8_0"),
        (header(NAME, VOCABULARY), None),
        (header(file_type(999)), None),
        (header(file_type(15), version=1), None),
        (header(NAME, keys=2**63), None),
        (header((b"x", weights.STRING, struct.pack("<Q", 2**63)), file_type(15)), None),
        (header((b"x", weights.ARRAY, struct.pack("<IQ", weights.STRING, 2**40)), file_type(15)), None),
        (header((b"x", weights.ARRAY, struct.pack("<IQ", weights.ARRAY, 1)), file_type(15)), None),
        (header((b"x", 99, b"")), None),
        (header((b"x", weights.ARRAY, struct.pack("<IQ", 12, 2**61))), None),
        (header((b"general.file_type", 10, struct.pack("<Q", 15))), None),
        (header(*[(b"", 7, b"\1")] * (weights.KEYS_MAX + 1), file_type(15)), None),
        (header(keys=1) + struct.pack("<Q", 2**64 - 1) + b"x", None),
        (header()[:8], None),
        (header(file_type(15))[:-2], None),
        (b"", None),
    ],
)
def test_a_renamed_gguf_file_says_in_its_header_how_it_is_quantized(tmp_path, data, found):
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    assert weights.gguf_quantization(file) == found
    assert facts(None, "llama-server", "-m", str(file))["quantization"] == (found or "unknown")


def test_the_header_counts_more_than_the_name(tmp_path):
    file = tmp_path / "Tiny-Q8_0.gguf"
    file.write_bytes(header(file_type(3)))
    assert facts(None, "llama-server", "-m", str(file))["quantization"] == "Q4_1"


REAL = zlib.decompress(
    base64.b85decode(
        "c-n=M+e*Vg5Qf)NJ)mes1O+wT=v6~o5ql|uR!~7uub1g&nl9Nx+-%hPOumKqUS`u3+Y~W31M`0~^G{~G-KVQLLdeDpDZj%}AX`4hsL+5"
        "2!LR|h$ZT$KsmL#QT?mk{T7m5_oq(i{P*foWvV;zN{y}OXWIJe`oZbbUB)Da*X7eVv<8Q6tGHq84X%mCu?_jxBuFaa)uk$$OD!u}Sj~5"
        "%2qCQt>b5+jW^jarr2sbKe$YN9j({{D02O0jjUG!Qua=TeUGyaZLKo5n3=e_DyTCb3TGgMjGbHz)L0vlkX9X9J#7*w1?jM;LLbS3^;WY"
        "$Mi_3?v*J)v1bna-7UCicfJIs%wh7T+utsA4-PjRu5lPcSHZ7)8a;9HY*Qi8~WiA2FhRZC=4d<LzpM>`s7SEh=}eaDWi~nsYnt{Y%p1#"
        "ldq^n;4y9*f;o0-JNPqxc}@P{n1ds5Dit@NNQw8G0nKp%2j=Q9iP>w-itu$Uh~iBZyP7Iw*"
    )
)
"""How the published SmolLM2-135M-Instruct.Q4_1.gguf begins, up to its file type."""


def test_the_header_of_a_real_file_is_read(tmp_path):
    (tmp_path / "model.gguf").write_bytes(REAL)
    assert weights.gguf_quantization(tmp_path / "model.gguf") == "Q4_1"


def test_what_nobody_can_see_is_unknown(folder):
    """A server that was running already, and weights that the engine fetches."""
    running = weights_facts(ModelSettings(name="m", path=str(folder)), None)
    assert set(running.values()) == {"unknown"}
    fetched = facts(None, "vllm", "serve", "some/model", revision="abc")
    assert fetched == {"format": "unknown", "quantization": "unknown", "digest": "unknown", "revision": "abc"}


CONFIGS = [
    "",
    "null",
    "[]",
    "[" * 200_000,
    '{"quantization_config": 5}',
    '{"quantization_config": {"quant_method": {"a": 1}}}',
]
CONFIGS += ['{"torch_dtype": "' + "x" * 1_000_000 + '"}', '{"n": ' + "9" * 100_000 + "}", " " * (17 << 20)]


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_a_hostile_config_is_a_short_text(folder, number):
    (folder / "config.json").write_text(CONFIGS[number])
    assert len(facts(folder, "serve", str(folder))["quantization"]) <= 100


def test_a_config_that_never_ends_is_not_read(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")
    assert facts(folder, "serve", str(folder))["quantization"] == "unknown"
