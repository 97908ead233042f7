"""What a shell is told when it asks for completion."""

import os
import subprocess
import sys

import pytest

from servebench.cli.completion import completion_script, install_completion
from servebench.cli.group import cli


@pytest.fixture
def complete(capsys, monkeypatch, tmp_path):
    """Return the completions of a line in bash, in a folder with a study of one run."""
    from servebench.cli.main import _complete

    monkeypatch.chdir(tmp_path)
    run = tmp_path / "outputs" / "my_study" / "00_vllm_unique"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run.parent / "study.json").write_text("{}")

    def completions(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        assert _complete("bash_complete") == 0
        return [item.partition(",")[2] for item in capsys.readouterr().out.splitlines() if item]

    return completions


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("servebench com", {"compare"}),
        ("servebench --vers", {"--version"}),
        ("servebench --mul", {"--multirun"}),
        ("servebench compare --max", {"--max-regression"}),
        ("servebench compare my", {"my_study"}),
        ("servebench show my_study/", {"my_study/00_vllm_unique"}),
        ("servebench show --outputs elsewhere my", set()),
        ("servebench work my_study 0", {"00_vllm_unique"}),
        ("servebench resume ", {"my_study", "last"}),
        ("servebench report x --as ai", {"aiperf"}),
        ("servebench plugins n", {"new"}),
        ("servebench engine=vl", {"vllm"}),
        ("servebench run -m engine=vllm,sg", {"vllm,sglang"}),
        ("servebench engine=vllm workl", {"workload=agent_loop", "workload=unique"}),
        ("servebench l", {"ls", "launch=", "load="}),
        ("servebench ls stat", {"status="}),
        ("servebench ls engine=vl", {"vllm"}),
    ],
)
def test_completions_in_bash(complete, line, expected):
    found = complete(line)
    if any(value.endswith("=unique") for value in expected):
        assert expected <= set(found)
    else:
        assert set(found) == expected


@pytest.mark.parametrize(("shell", "path"), [
    ("bash", "data/bash-completion/completions/servebench"),
    ("zsh", "data/servebench/completion.zsh"),
    ("fish", "config/fish/completions/servebench.fish"),
])  # fmt: skip
def test_completion_is_installed_where_the_shell_looks(shell, path, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert str(tmp_path / path) in install_completion(shell, cli)
    assert (tmp_path / path).read_text() == completion_script(shell, cli)


def test_bash_takes_the_script(tmp_path):
    """A real bash calls the command and keeps what it answers, without a space behind `load=`."""
    command = tmp_path / "servebench"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m servebench "$@"\n')
    command.chmod(0o755)
    script = completion_script("bash", cli) + (
        'COMP_LINE="servebench com" COMP_POINT=14 COMP_WORDS=(servebench com) COMP_CWORD=1\n'
        "compopt() { echo compopt $*; }\n"
        "_servebench_completion servebench com servebench\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, check=False)
    assert (done.stdout, done.stderr) == ("compare\n", "")
