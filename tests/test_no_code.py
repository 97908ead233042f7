"""No call in the source can run code that comes from a file, an override or a server."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from support.commands import run_servebench

PACKAGE = Path(importlib.util.find_spec("servebench").origin).parent
CODE_RUNNERS = {
    *("eval", "exec", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "os.system", "os.popen"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "hydra.utils.instantiate", "instantiate", "joblib.load"),
    *("cloudpickle.loads", "shelve.open", "pandas.read_pickle", "pd.read_pickle", "torch.load"),
}


def calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}


@pytest.mark.slow
def test_no_call_runs_data_as_code():
    found = [
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        for name, words in calls(path)
        if name in CODE_RUNNERS or words.get("shell") == "True" or words.get("allow_pickle") == "True"
    ]
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["+engine._target_=os.system"],
        ["++engine.extra_args._target_=os.system", "engine=nothere"],
        ["hydra/launcher._target_=os.system"],
        ["+x='${oc.eval:1}'"],
        ["workload.seed='!!python/object/apply:os.system [\"touch gone\"]'"],
        ["model.name='!!python/object/apply:os.system [\"touch gone\"]'", "engine=nothere"],
    ],
)
def test_an_override_runs_nothing(tmp_path, words):
    done = run_servebench(tmp_path, *words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "gone").exists()


@pytest.mark.slow
def test_a_yaml_file_of_ones_own_runs_nothing(tmp_path):
    (tmp_path / "conf" / "workload").mkdir(parents=True)
    (tmp_path / "conf" / "workload" / "evil.yaml").write_text('name: !!python/object/apply:os.system ["touch gone"]\n')
    done = run_servebench(tmp_path, "--config-dir", "conf", "workload=evil")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "gone").exists()
