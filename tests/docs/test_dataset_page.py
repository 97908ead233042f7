"""The file and the commands of docs/own_prompts.md for a user's own prompts, tried as typed."""

import re
import shlex
from pathlib import Path

import pytest

from servebench.testing.server import FakeServer, plain_server
from support.results import attached_study

PAGE = (Path(__file__).parents[2] / "docs" / "own_prompts.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_own_prompts_of_the_page(run_main, tmp_path):
    """The preview as it stands; the run against another server, and shorter."""
    (found,) = re.findall(r"^```jsonl\n# file: (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / found[0]).write_text(found[1])
    preview, run = (shlex.split(line) for line in re.findall(r"^    servebench (.*)", PAGE, re.MULTILINE))
    assert run_main(*preview, code=0).stdout.count("input tokens,") == 3
    words = [word for word in run if not word.startswith("load.duration_s=")]
    with FakeServer(plain_server("m")) as server:
        target = [one for one in attached_study(server.base_url) if "model.name" not in one]
        more = ("model.name=m", "load.requests=8", "load.warmup_requests=0", "load.self_check=never")
        run_main(*target, *words, *more, code=0)
