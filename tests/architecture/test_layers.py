"""The import contracts of pyproject.toml catch what they are for, and the package keeps its rules of layout and names."""

import ast
import os
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from support.commands import run_program

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "servebench"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of the package, of the plugins and of the contracts."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copy(ROOT / "pyproject.toml", folder)
    only_code = shutil.ignore_patterns("__pycache__", "*.md", "*.csv", "*.json", "*.txt", "*.parquet")
    for path in (ROOT / "src", *ROOT.glob("plugins/*/src")):
        shutil.copytree(path, folder / path.relative_to(ROOT), ignore=only_code)
    return folder


def broken_contracts(folder):
    """The output of lint-imports when a contract is broken, else an empty text."""
    path = os.pathsep.join(str(one) for one in (folder / "src", *folder.glob("plugins/*/src")))
    lint = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = run_program(sys.executable, "-c", lint, "--no-cache", cwd=folder, env={"PYTHONPATH": path})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.rpartition("Broken contracts")[2] if done.returncode else ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "line", "named"),
    [
        ("src/servebench/util/planted.py", "from servebench.run import execute\n", "servebench.util.planted"),
        ("src/servebench/load/planted.py", "def f():\n    import servebench.quality.ask\n", "servebench.load.planted"),
        (
            "plugins/servebench-tgi/src/servebench_tgi/planted.py",
            "import servebench.engine.launchers.process\n",
            "servebench_tgi.planted",
        ),
    ],
    ids=["upward", "sideways within a function", "a plugin around servebench.plugin"],
)
def test_a_forbidden_import_breaks_a_contract(sources, planted, line, named):
    path = sources / planted
    path.write_text(line)
    try:
        assert named in broken_contracts(sources)
    finally:
        path.unlink()


@pytest.mark.slow
def test_no_class_name_is_defined_twice():
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_only_the_entry_points_lie_at_the_top_of_the_package():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}
