"""Every setting in every form goes through a simulated study to its last screen, or is refused in time and in one line.

A sample by default; all of them with `make fuzz`, which sets SERVEBENCH_SETTINGS to how many (0: all).
"""

from __future__ import annotations

import os
import random
import shutil
from itertools import islice
from pathlib import Path

import pytest

from support.setting_cases import BASE, Ending, cases, command, flags, pairs

COUNT = int(os.environ.get("SERVEBENCH_SETTINGS", "20"))
SEED = int(os.environ.get("SEED", "1"))
REFUSED = (2, 3)
"""Exit codes of what is refused before anything starts."""
RESULTS = (0, *REFUSED, 5)
"""Exit codes of a study on a simulated engine; 5: no request succeeded, such as those too long for its context."""
DOCUMENTED = (0, 1, 2, 3, 4, 5, 6, 7, 8)


def chosen(every, rng):
    return every if not COUNT else rng.sample(every, min(COUNT, len(every)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, before = tmp_path_factory.mktemp("settings"), Path.cwd()
    os.chdir(path)
    assert command(*BASE, "study.name=base").code == 0
    yield path
    os.chdir(before)


def faults_of(words: tuple[str, ...], ending: Ending, codes: tuple[int, ...]) -> list[str]:
    """Return what is wrong with how a command ended."""
    faults = []
    if ending.code not in codes or "Traceback" in ending.err:
        faults.append(f"{words}: {ending.code}: {ending.err[-2000:]}")
    if ending.code in REFUSED and not all(line.startswith("servebench: ") for line in ending.err.splitlines()):
        faults.append(f"{words}: not an error of a user: {ending.err}")
    return faults


def tried(words: tuple[str, ...], outputs: Path) -> list[str]:
    """Run a study with these settings, and every command that shows it; return what is wrong."""
    before = set(outputs.iterdir())
    ending = command(*BASE, *words)
    found = faults_of(words, ending, RESULTS)
    made = [path for path in outputs.iterdir() if path not in before and (path / "study.json").exists()]
    if ending.code in REFUSED and made:
        found.append(f"{words}: refused only after a study was made: {ending.err}")
    for study in made:
        for shown in (("show",), ("report",), ("compare", "base"), ("export", "--format", "json"), ("show", "--json")):
            name, *options = shown
            found += faults_of((*words, *shown), command(name, study.name, *options), (0, 2))
        shutil.rmtree(study)
    return found


@pytest.mark.parametrize("kind", ["one", "two"])
def test_each_setting_works_or_is_refused_in_time(folder, kind):
    rng = random.Random(f"{SEED}/{kind}")
    some = chosen(list(cases()), rng) if kind == "one" else islice(pairs(rng), COUNT // 4 or 1000)
    faults = [fault for words in some for fault in tried(words, folder / "outputs")]
    assert not faults, "\n\n".join(faults)


def test_each_flag_has_a_documented_end(folder):
    faults = [
        fault
        for words in chosen(list(flags()), random.Random(SEED))
        for fault in faults_of(words, command(*words), DOCUMENTED)
    ]
    assert not faults, "\n\n".join(faults)
