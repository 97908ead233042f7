import sys
from importlib.metadata import EntryPoint

import pytest

from servebench.contracts.events import RunFinished, RunStarted
from servebench.contracts.hooks import GROUP
from servebench.registry.registry import build
from servebench.registry.registry import registry as installed
from servebench.util.errors import ConfigError

STARTED = RunStarted(run_id="s/00", settings=None, folder=None)
FINISHED = RunFinished(outcome=None, settings=None, folder=None)
HEAD = "from servebench.contracts.engine import Engine\nfrom servebench.contracts.hooks import hookimpl\n"
ENGINE = """
class Mine(Engine):
    name = "{name}"

@hookimpl
def servebench_engines():
    return (Mine,)
"""
TOLD = """
told = []

@hookimpl
def servebench_run_started(event):
    told.append(event)
"""
RAISES = """
@hookimpl
def {hook}({arguments}):
    {how}
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def install(**sources):
        for name, source in sources.items():
            (tmp_path / f"sb_test_{name}.py").write_text(HEAD + source)
            made.append(f"sb_test_{name}")
        return build([EntryPoint(name, f"sb_test_{name}", GROUP) for name in sources], set())

    yield install
    for module in made:
        sys.modules.pop(module, None)


def statuses(registry):
    return {info.name: (info.status, info.error) for info in registry.plugins}


@pytest.mark.parametrize("how", ["raise RuntimeError('boom')", "1 / 0", "raise SystemExit('boom')"])
def test_a_life_cycle_hook_that_raises_is_told_and_stops_nobody(plugins, how):
    bad = RAISES.format(hook="servebench_run_started", arguments="event", how=how)
    registry = plugins(first=TOLD, bad=bad, last=TOLD)
    (fault,) = registry.notify(STARTED)
    assert fault.startswith("plugin ?:bad: servebench_run_started raised ")
    assert fault.endswith("the run continues without it")
    assert "\n" not in fault
    assert [sys.modules[f"sb_test_{name}"].told for name in ("first", "last")] == [[STARTED], [STARTED]]


def test_an_interrupt_in_a_hook_is_the_users(plugins):
    bad = RAISES.format(hook="servebench_run_finished", arguments="event", how="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        plugins(bad=bad).notify(FINISHED)


@pytest.mark.parametrize(
    ("hook", "how", "error"),
    [
        ("servebench_workloads", "raise KeyError('boom')", "KeyError: 'boom'"),
        (
            "servebench_scorers",
            "return [5]",
            "TypeError: servebench_scorers returned 5, which is not a subclass of Scorer with a name",
        ),
        ("servebench_launchers", "return [int]", "TypeError: servebench_launchers returned <class 'int'>"),
        ("servebench_launchers", "return [Mine]", "TypeError: servebench_launchers returned <class"),
        ("servebench_workloads", "return Mine", "TypeError: servebench_workloads returned <class"),
        ("servebench_workloads", "Mine", "TypeError: servebench_workloads returned None"),
        ("servebench_config_paths", "1 / 0", "ZeroDivisionError: division by zero"),
        ("servebench_config_paths", "return 'pkg://json'", "TypeError: servebench_config_paths returned 'pkg://json'"),
        ("servebench_config_paths", "return ['pkg://json.conf']", "ValueError: servebench_config_paths returned"),
        ("servebench_config_paths", "return ['pkg://no_such.conf']", "ValueError: servebench_config_paths returned"),
        ("servebench_config_paths", "return ['no/such/folder']", "ValueError: servebench_config_paths returned"),
        ("servebench_telemetry", "raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_nothing_is_taken_of_a_plugin_that_is_broken(plugins, hook, how, error):
    broken = ENGINE.format(name="mine") + TOLD + RAISES.format(hook=hook, arguments="", how=how)
    registry = plugins(broken=broken, good=ENGINE.format(name="theirs"))
    status, told = statuses(registry)["broken"]
    assert status == "broken"
    assert told.startswith(error)
    assert "mine" not in registry.kinds["engine"]
    assert "theirs" in registry.kinds["engine"]
    assert registry.notify(STARTED) == []
    assert sys.modules["sb_test_broken"].told == []


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (ENGINE.format(name="mine").replace("servebench_engines", "servebench_engine"),
         ["unknown hooks: servebench_engine;", "servebench_engines"]),
        (ENGINE.format(name="mine").replace("@hookimpl", ""), ["@hookimpl", "servebench_engines"]),
        (RAISES.format(hook="servebench_run_started", arguments="evnt", how="pass"), ["servebench_run_started", "evnt"]),
        ("requires_api = 2", ["API 2"]),
    ],
    ids=["unknown", "unmarked", "arguments", "newer"],
)  # fmt: skip
def test_a_hook_that_would_never_be_called_is_named(plugins, source, parts):
    registry = plugins(wrong=source)
    status, error = statuses(registry)["wrong"]
    assert status == "broken"
    assert all(part in error for part in parts)
    assert "\n" not in error
    assert "mine" not in registry.kinds["engine"]


def test_a_plugin_may_import_its_own_package_by_name(plugins, tmp_path):
    (tmp_path / "servebench_test_own.py").write_text("")
    registry = plugins(good="import servebench_test_own\n" + ENGINE.format(name="mine"))
    assert statuses(registry)["good"] == ("loaded", None)
    assert registry.engine("mine").name == "mine"


def test_of_two_of_one_name_the_first_is_used_and_both_are_named(plugins):
    registry = plugins(one=ENGINE.format(name="same"), two=ENGINE.format(name="same"))
    assert registry.kinds["engine"]["same"].__module__ == "sb_test_one"
    assert registry.faults == ("engine 'same' is provided by both ?:one and ?:two; the first is used",)
    assert {status for status, _ in statuses(registry).values()} == {"loaded"}


def test_a_config_file_that_a_built_in_one_hides_is_named(plugins, tmp_path):
    for name in ("vllm", "mine"):
        (tmp_path / "conf" / "engine").mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / "engine" / f"{name}.yaml").write_text("defaults: [base]\n")
    registry = plugins(one=f"@hookimpl\ndef servebench_config_paths():\n    return [{str(tmp_path / 'conf')!r}]\n")
    (fault,) = registry.faults
    assert fault.startswith(f"{tmp_path}/conf/engine/vllm.yaml is hidden by ")
    assert installed().faults == ()


PLACES = """
@hookimpl
def servebench_engines():
    return {"mine": "sb_test_heavy:Mine", "gone": "sb_test_heavy:Gone", "five": "sb_test_heavy:FIVE"}
"""


def test_a_class_that_is_named_by_its_place_is_imported_when_it_is_used(plugins, tmp_path):
    (tmp_path / "sb_test_heavy.py").write_text(
        HEAD + ENGINE.partition("@hookimpl")[0].format(name="mine") + "FIVE = 5\n"
    )
    registry = plugins(light=PLACES)
    engines = registry.kinds["engine"]
    assert "mine" in engines
    assert {"mine", "gone", "five"} <= set(engines)
    assert "sb_test_heavy" not in sys.modules
    assert registry.engine("mine").name == "mine"
    assert engines["mine"] is engines["mine"]
    for name in ("gone", "five"):
        with pytest.raises(ConfigError, match=f"engine={name} cannot be loaded"):
            registry.engine(name)
    del sys.modules["sb_test_heavy"]


def test_built_ins_are_offered_by_their_own_names():
    kinds = installed().kinds
    assert all(found.name == name for classes in kinds.values() for name, found in classes.items())
