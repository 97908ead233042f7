"""Earlier starts of one set-up."""

import json
from dataclasses import replace

import numpy as np
import pytest

from servebench.analysis.setups import EARLIER_MAX, circumstances, newest_alike, pairs_in_turns, starts_of
from servebench.analysis.verdict.slices import ASSUMED_SD
from servebench.store import studies as read
from support.studies import SimulatedEngine, SimulatedLoad, with_columns


@pytest.fixture
def run(make_study):
    load = SimulatedLoad(levels=(1,), requests=40)
    (found,) = read.load_study(make_study((SimulatedEngine(name="a"), load))).runs
    return found


def copies(run, count, tok_s, began_s):
    """Runs of the same set-up whose throughput alternates by a factor of 1.1 around a value."""
    for number in range(count):
        value = tok_s * (1.1 if number % 2 else 1 / 1.1)
        changes = {"output_throughput_tok_s": value, "start_id": f"{began_s}-{number}"}
        state = {**run.state, "started_s": began_s + number}
        yield replace(with_columns(run, **changes), name=f"{began_s}-{number}", state=state)


def test_only_the_newest_runs_of_a_setup_count(run):
    """Old runs that were twice as fast would make the spread large."""
    value = run.point_rows[0].output_throughput_tok_s
    earlier = [*copies(run, 40, 2 * value, 1000), *copies(run, EARLIER_MAX, value, 5000)]
    found = starts_of(newest_alike(run, earlier))["output_throughput_tok_s"]
    assert found.values.shape == (EARLIER_MAX, 1)
    assert found.values.std() == pytest.approx(0.095, rel=0.05)
    assert 0 < found.errors[0] < 0.1
    without = starts_of(newest_alike(run, earlier, without=[one.run_id for one in earlier[-10:]]))
    assert without["output_throughput_tok_s"].values.mean() > found.values.mean()


def test_a_run_of_another_engine_does_not_count(run):
    others = [replace(one, manifest={"config": {"engine": {"name": "other"}}}) for one in copies(run, 9, 100.0, 1)]
    assert starts_of(newest_alike(run, others)) == {}


def test_what_a_study_sweeps_makes_another_setup(run):
    """The runs of a sweep are no starts of one engine: taken for such, their differences would hide one another."""

    def swept(one, value):
        manifest = {
            **one.manifest,
            "study_id": "sweep",
            "overrides": [f"engine.max_num_seqs={value}"],
            "config": {**one.manifest["config"], "engine": {**one.manifest["config"]["engine"], "max_num_seqs": value}},
        }
        return replace(one, manifest=manifest)

    others = [swept(one, 2**number) for number, one in enumerate(copies(run, 5, 100.0, 1))]
    assert starts_of(newest_alike(swept(run, 64), others)) == {}
    same = [swept(one, 64) for one in copies(run, 5, 100.0, 1)]
    assert starts_of(newest_alike(swept(run, 64), same))["output_throughput_tok_s"].values.size == 5


def in_turns(run, name, tok_s, users=(1,), **changes):
    """A run of starts that took turns with others of its study, with these rates in the slices of each, at levels of `users`."""
    base = run.point_rows[0]
    rows = [
        replace(
            base,
            concurrency=level,
            slice_group=f"{start}/c{level}",
            start_id=f"{start}",
            slice_values=json.dumps({"output_throughput_tok_s": values}),
            **changes,
        )
        for start, values in enumerate(tok_s)
        for level in users
    ]
    return replace(run, name=name, rows=lambda: rows)


def test_pairs_that_took_turns_give_the_differences_of_their_starts(run):
    steady = [100.0, 101.0, 99.0, 100.0]
    a = in_turns(run, "a", [steady] * 3)
    b = in_turns(run, "b", [[one * by for one in steady] for by in (1.0, 1.1, 0.9)])
    (found,) = pairs_in_turns([a, b])["output_throughput_tok_s"]
    assert found.values[:, 0] == pytest.approx(np.log([1.0, 1.1, 0.9]))
    assert found.differences
    assert pairs_in_turns([a]) == pairs_in_turns([a, replace(b, study_id="other")]) == {}
    assert pairs_in_turns([a, in_turns(run, "b", [steady] * 3, verdict="void")]) == {}


def test_pairs_with_one_slice_of_each_level_count_from_the_second_start_on(run):
    """With the error that is assumed of a slice: the levels of several starts say by how much it is larger or smaller."""
    users = (1, 2, 4)
    runs = [in_turns(run, name, [[100.0]] * 2, users) for name in "ab"]
    (found,) = pairs_in_turns(runs)["output_throughput_tok_s"]
    assert found.errors == pytest.approx(np.full((2, 3), ASSUMED_SD))
    assert found.freedom == 0
    assert pairs_in_turns([in_turns(run, name, [[100.0]], users) for name in "ab"]) == {}


def test_what_starts_have_in_common_is_engine_work_and_machine_and_not_the_version(run):
    machine = {"cpu_model": "x", "cpu_threads_usable": 2, "memory_bytes": 1}
    own = circumstances(run.config, machine)
    assert own == circumstances(
        {**run.config, "engine": {"name": "a", "env": {"B": "1"}}}, {**machine, "memory_bytes": 2}
    )
    for config, place in (
        ({**run.config, "workload": {"name": "other"}}, machine),
        ({**run.config, "load": {"concurrency": [9]}}, machine),
        (run.config, {**machine, "cpu_model": "y"}),
    ):
        assert circumstances(config, place) != own
