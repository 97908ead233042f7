from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from servebench.contracts.engine import Command
from servebench.engine.describe import describe_command, is_secret


def test_what_is_printed_can_be_pasted(tmp_path: Path) -> None:
    """A shell that runs the line gets the same arguments, variables and folder."""
    show = "import os, sys; print([os.environ['W'], os.getcwd(), *sys.argv[1:]])"
    words = ("a b", "it's", '{"x": 1}', "$HOME", "*", "")
    command = Command(argv=(sys.executable, "-c", show, *words), env={"W": "two words"}, cwd=tmp_path)
    line = describe_command(command)
    assert "\n" not in line
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["two words", str(tmp_path), *words])


def test_variables_come_first() -> None:
    """As a shell requires."""
    assert describe_command(Command(argv=("vllm", "serve", "m"), env={"A": "1"})) == "A=1 vllm serve m"


@pytest.mark.parametrize(
    ("argv", "env", "line"),
    [
        (("x", "--api-key", "s3cret", "--port", "1"), {}, "x --api-key [redacted] --port 1"),
        (("x", "--hf-token=s3cret"), {}, "x --hf-token=[redacted]"),
        (("x",), {"HF_TOKEN": "s3cret", "PASSWORD": ""}, "HF_TOKEN=[redacted] PASSWORD='' x"),
        (("x", "--api-key", "--port", "1"), {}, "x --api-key --port 1"),
        (("x", "--max-num-batched-tokens", "8192"), {}, "x --max-num-batched-tokens 8192"),
        (("x", "--api-key-file", "f"), {}, "x --api-key-file f"),
    ],
)
def test_secrets_are_redacted(argv: tuple[str, ...], env: dict[str, str], line: str) -> None:
    """Only those, by the names of flags and variables."""
    assert describe_command(Command(argv=argv, env=env)) == line


@pytest.mark.parametrize("name", ["HF_TOKEN", "--api-key", "OPENAI_API_KEY", "apiKey", "client_secret", "MY_PASSWORD"])
def test_names_of_secrets(name: str) -> None:
    """One word of the name says so."""
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "--max-total-tokens", "--tokenizer", "--eos-token", "--token-id", "KEYBOARD"]
)
def test_names_that_only_look_like_secrets(name: str) -> None:
    """Tokens of text are not secret."""
    assert not is_secret(name)
