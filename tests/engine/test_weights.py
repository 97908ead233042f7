"""What is known of the weights that an engine was started with."""

import pytest

from servebench.contracts.settings import ModelSettings
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


def test_what_nobody_can_see_is_unknown(folder):
    """A server that was running already, and weights that the engine fetches."""
    running = weights_facts(ModelSettings(name="m", path=str(folder)), None)
    assert set(running.values()) == {"unknown"}
    fetched = facts(None, "vllm", "serve", "some/model", revision="abc")
    assert fetched == {"format": "unknown", "quantization": "unknown", "digest": "unknown", "revision": "abc"}
