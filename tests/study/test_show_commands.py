import subprocess
import sys

from servebench.contracts.engine import Command
from servebench.study.show_commands import describe_command


def test_what_is_printed_can_be_pasted(tmp_path):
    """A shell that runs the line gets the same arguments, variables and folder."""
    show = "import os, sys; print([os.environ['W'], os.getcwd(), *sys.argv[1:]])"
    words = ("a b", "it's", '{"x": 1}', "$HOME", "*", "")
    command = Command(argv=(sys.executable, "-c", show, *words), env={"W": "two words"}, cwd=tmp_path)
    line = describe_command(command)
    assert "\n" not in line
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["two words", str(tmp_path), *words])


def test_variables_come_first():
    assert describe_command(Command(argv=("vllm", "serve", "m"), env={"A": "1"})) == "A=1 vllm serve m"


def test_secrets_are_redacted():
    command = Command(argv=("x", "--api-key", "s3cret", "--port", "1"), env={"HF_TOKEN": "s3cret", "PASSWORD": ""})
    assert describe_command(command) == "HF_TOKEN=[redacted] PASSWORD='' x --api-key [redacted] --port 1"
