import json
import re
from dataclasses import replace

import pytest

from calibration import comparisons
from servebench.analysis.answer.build import answer_of
from servebench.analysis.answer.model import Answer, CaveatKind, Purpose
from servebench.analysis.answer.next_steps import long_command
from servebench.analysis.answer.notes import _wide
from servebench.analysis.conclude import Options, conclude
from servebench.analysis.pairing import compare_speed, engine_seconds, pair_runs, seconds_per_start
from servebench.analysis.recommendation.rules import load_rules
from servebench.analysis.verdict.reasons import ReasonKind
from servebench.analysis.warnings.catalog import EMULATED, IMPRECISE, NOT_STATIONARY
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.report.export.conclusions import as_plain
from servebench.report.wording.answer import caveat_text, lead_text, purpose_text, sentence_of
from servebench.report.wording.comparison import summary_of
from servebench.store import studies as read
from servebench.store.layout import StudyFolder
from servebench.util.plain_data import to_json
from support.conclusions import lead_of
from support.studies import SimulatedEngine, SimulatedLoad, with_columns, write_simulated_run


def load(workload="unique", **more):
    return SimulatedLoad(**{"levels": (1, 8), "requests": 80, "workload": workload, **more})


def concluded(runs, *, earlier=(), varying=None, name="last", words=()) -> Answer:
    return conclude(runs, (), Options(varying=varying, name=name, words=words), earlier=earlier).answer


def answer(path, **more) -> Answer:
    return concluded(read.load_study(path).runs, **more)


NEW_YEAR = 1_767_225_600
"""2026-01-01, in seconds since the epoch."""
FAST, SLOW = SimulatedEngine(name="fast"), SimulatedEngine(name="slow", slow=1.5)


def test_the_command_of_a_long_point_has_the_set_up_of_the_run_and_no_other_load(make_study):
    words = (
        "engine=mine",
        "+engine.env.A=1 2",
        "workload=unique",
        "load=quick",
        "load.concurrency=[1,4]",
        "study.name=a",
    )
    (run,) = read.load_study(make_study((FAST, load(overrides=words)))).runs
    assert long_command(run) == "servebench engine=mine '+engine.env.A=1 2' workload=unique load=long"
    run = replace(run, state={}, manifest={**run.manifest, "words": ["--config-dir", "my", *words, "quality=gsm8k"]})
    assert long_command(run).startswith("servebench --config-dir=my engine=mine ")


@pytest.mark.slow
def test_each_workload_has_its_table_its_leads_and_a_sentence(make_study):
    found = answer(
        make_study(*((engine, load(workload)) for workload in ("unique", "rag_prefix") for engine in (SLOW, FAST)))
    )
    assert [one.workload for one in found.workloads] == ["unique", "rag_prefix"]
    for one in found.workloads:
        assert one.levels == (Level(1), Level(8))
        assert [column.label for column in one.columns] == ["slow", "fast"]
        assert [cell.best for column in one.columns for cell in column.cells.values()] == [False, False, True, True]
        assert {(lead.best, lead.rival.label, lead.clear, lead.verdict) for lead in one.leads} == {
            ("fast", "slow", True, False)
        }
        assert all(0.0 < lead.low < 0.5 < lead.high < 1.5 for lead in one.leads)
        assert "1 to 8 users: fast leads, by 50% over slow at 8 users" in sentence_of(one)
    assert len(found.comparisons) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "best"), [(1.3, "fast"), (1.0, None)])
def test_several_starts_give_a_verdict_over_all_levels(make_study, slow, best):
    """The first question of the comparisons: who leads, or that nobody does."""
    steady = {"spread": 0.05, "drift_sd": 0.003, "run_sd": 0.002}
    names = [("fast", 1.0), ("slow", slow), ("slower", 1.5 if best else 1.0)]
    runs = [
        (SimulatedEngine(name=name, slow=by, **steady), load(requests=40, starts=5, seed=seed))
        for seed, (name, by) in enumerate(names)
    ]
    found = answer(make_study(*runs)).workloads[0]
    assert (found.overall.best, found.overall.rival) == (best, best and "slow")
    assert (found.overall.within is None) == (best is not None)
    assert best is None or found.overall.low < 0.3 < found.overall.high
    assert sentence_of(found).endswith("on average over 1 to 8 users: sure")


def test_one_start_each_gives_no_verdict_over_all_levels(make_study):
    found = answer(make_study((FAST, load()), (SLOW, load()))).workloads[0]
    assert found.overall is None
    assert sentence_of(found).endswith(": likely")


def test_a_lead_over_a_run_with_equal_settings_is_not_called_one_of_different_settings(make_study):
    """Another run has other settings; no run is marked as the best then."""
    runs = [
        (FAST, load()),
        (SLOW, load()),
        (SimulatedEngine(name="third", slow=2.0), load(config={"engine.dtype": "fp8"})),
    ]
    found = answer(make_study(*runs)).workloads[0]
    assert {(lead.best, lead.rival.label, lead.unequal, lead.rival.unequal) for lead in found.leads} == {
        ("fast", "slow", ("engine.dtype",), ())
    }
    assert "different settings" not in sentence_of(found)
    assert not any(cell.best for column in found.columns for cell in column.cells.values())


def test_a_lead_says_what_the_comparison_of_the_same_pair_says(make_study):
    path = make_study((FAST, load()), (SLOW, load()))
    found = answer(path)
    row = next(row for row in found.comparisons[0].rows if row.level == Level(8))
    lead = found.workloads[0].leads[-1]
    # compare has the slow one as the candidate
    assert lead.size == pytest.approx(1 / (1 + row.effect) - 1)
    assert (lead.low, lead.high) == pytest.approx((1 / (1 + row.high) - 1, 1 / (1 + row.low) - 1))


def test_equal_engines_have_no_best(make_study):
    found = answer(make_study((FAST, load()), (replace(FAST, name="twin"), load(seed=7))))
    assert not any(lead.clear for lead in found.workloads[0].leads)
    assert not any(cell.best for column in found.workloads[0].columns for cell in column.cells.values())
    assert "no clear difference" in sentence_of(found.workloads[0])


TAKER = json.dumps({"who": "python", "pid": 4711, "took": "took 1.0 of 2 cores", "seconds": 40.0})
BUSY = {"verdict": "void", "doubts": ("machine_busy",), "disturbed_by": TAKER, "disturbed_s": 40.0, "window_s": 44.0}


def test_what_others_disturbed_has_no_ratio_anywhere_and_names_them(make_study):
    """Not even where it is nine times slower."""
    slow = replace(SLOW, slow=9.0)
    fast, slowed = read.load_study(make_study((FAST, load()), (slow, load()))).runs
    found = conclude([fast, with_columns(slowed, **BUSY)], (), Options(rules=load_rules(None)))
    (one,), (comparison,) = found.answer.workloads, found.comparisons
    assert (one.leads, one.others) == ((), ())
    assert not any(cell.best for column in one.columns for cell in column.cells.values())
    assert one.not_usable.places == {"slow": (Level(1), Level(8))}
    assert (comparison.result, {row.effect for row in comparison.rows}) == ("not enough data", {None})
    assert {row.reasons[0].taker for row in comparison.rows} == {one.not_usable.by}
    ranked = [use for use in found.recommendations if use.missing]
    assert ranked
    assert {missing.why.taker for use in ranked for missing in use.missing} == {one.not_usable.by}
    shown = to_json(as_plain(found))
    for text in (sentence_of(one), summary_of(comparison), shown):
        assert "not usable: another program (pid 4711, python) took 1.0 of 2 cores for 40 s" in text
    assert "%" not in sentence_of(one) + summary_of(comparison)
    assert "slow at 1 and 8 users" in sentence_of(one)


def test_a_level_that_nobody_disturbed_keeps_its_lead(make_study):
    fast, slow = read.load_study(make_study((FAST, load()), (SLOW, load()))).runs
    rows = [replace(row, **BUSY) if row.level == Level(1) else row for row in slow.point_rows]
    (one,) = concluded([fast, replace(slow, rows=lambda: rows)]).workloads
    assert [(lead.level, lead.best, lead.clear) for lead in one.leads] == [(Level(8), "fast", True)]
    assert one.not_usable.places == {"slow": (Level(1),)}


def test_a_few_requests_give_no_ratio_however_long_they_last(make_study):
    """Two requests of a minute have many slices of time."""
    runs = read.load_study(make_study(*((one, load(levels=(1,), requests=8)) for one in (FAST, SLOW)))).runs
    found = conclude([with_columns(run, ttft_ms_n=8) for run in runs])
    for lead in found.answer.workloads[0].leads:
        assert (lead.few.kind, lead.few.count, lead.clear, lead.low) == (ReasonKind.FEW_REQUESTS_YET, 8, False, None)
    assert {row.effect for row in found.comparisons[0].rows if row.metric.name == "output_throughput_tok_s"} == {None}
    assert "%" not in sentence_of(found.answer.workloads[0])
    assert {lead["size"] for lead in json.loads(to_json(as_plain(found)))["answer"]["workloads"][0]["leads"]} == {None}


def test_who_is_clearly_behind_is_named_where_the_first_two_do_not_differ(make_study):
    third = SimulatedEngine(name="third", slow=2.0)
    found = answer(make_study((FAST, load()), (replace(FAST, name="twin"), load(seed=7)), (third, load())))
    for lead in found.workloads[0].leads:
        assert not lead.clear
        assert {lead.best, *lead.tied} == {"fast", "twin"}
        ((name, share),) = lead.behind
        assert (name, share) == ("third", pytest.approx(-0.5, abs=0.1))
    assert f"behind {found.workloads[0].leads[-1].best}" in sentence_of(found.workloads[0])


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_engines_that_are_shown_to_be_equal_are_not_only_not_clearly_different(make_study, count):
    steady = {"spread": 0.05, "drift_sd": 0.003, "run_sd": 0.002}
    runs = [
        (replace(FAST, name=f"e{i}", **steady), load(levels=(4,), requests=40, starts=5, seed=i)) for i in range(count)
    ]
    found = answer(make_study(*runs))
    (lead,) = found.workloads[0].leads
    bounds = [
        next(row.bound for row in one.rows if row.metric.name == "output_throughput_tok_s") for one in found.comparisons
    ]
    assert (len(bounds), lead.clear) == (count * (count - 1) // 2, False)
    assert lead.within == pytest.approx(max(bounds), rel=0.01)
    assert "differ by at most" in sentence_of(found.workloads[0])


def test_what_differs_in_latency_only_is_said_where_throughput_does_not(make_study):
    """At a rate of arrivals all engines complete what is sent."""
    steady = {"spread": 0.05, "drift_sd": 0.003, "run_sd": 0.002}
    runs = [(replace(FAST, name=name, ttft_ms=ttft, tpot_ms=tpot, **steady), load(levels=(4,), requests=40, starts=4, seed=seed))
            for name, ttft, tpot, seed in (("a", 40.0, 8.0, 0), ("b", 80.0, 7.0, 1))]  # fmt: skip
    found = answer(make_study(*runs))
    (workload,) = found.workloads
    assert not workload.leads[0].clear
    assert found.comparisons[0].result in ("slower", "mixed")
    assert "b is slower than a: TTFT p50 " in sentence_of(workload)


def test_one_start_each_may_lead_by_what_starts_differ(make_study):
    """A lead of 7% whose own interval leaves no doubt is no lead of the engine: another start may be as much slower."""
    steady = {"spread": 0.05, "drift_sd": 0.003, "run_sd": 0.002}
    long = load(requests=400)
    path = make_study((replace(FAST, **steady), long), (replace(SLOW, slow=1.07, **steady), long))
    (workload,) = answer(path).workloads
    for lead in workload.leads:
        assert (lead.low < 0, lead.high > 0.05) == (True, True)
        assert (lead.clear, lead.rival.tested) == (False, False)
        assert 0.1 < lead.rival.bound < 0.25
    assert "(fast is 7.0% ahead at 8 users; up to " in sentence_of(workload)
    assert not any(cell.best for column in workload.columns for cell in column.cells.values())


def test_numbers_of_wide_intervals_have_no_best(make_study):
    """Points that are known badly, because the machine wandered, allow for larger differences."""
    runs = read.load_study(make_study((FAST, load()), (SLOW, load()))).runs
    assert all(lead.clear for lead in concluded(runs).workloads[0].leads)
    wide = [
        replace(run, rows=lambda rows=run.point_rows: [
            replace(row, output_throughput_tok_s_low=0.4 * row.output_throughput_tok_s) for row in rows
        ])
        for run in runs
    ]  # fmt: skip
    (found,) = concluded(wide).workloads
    assert not any(lead.clear for lead in found.leads)
    assert "fast is 50% ahead at 8 users; up to " in sentence_of(found)


@pytest.mark.slow
def test_equal_simulated_engines_have_no_best():
    """With starts that differ by 1% and the points that the default command makes: it named one in half of the studies."""
    plant = comparisons.UNTIL.planted(start_sd=0.01)
    called = [comparisons._best(seed, None, plant=plant, starts=1) for seed in range(6)]
    assert sum(next(iter(one.values())) for one in called) == 0


def test_a_warning_is_told_once_with_its_points_and_what_settles_it(make_study):
    doubts = [NOT_STATIONARY.issue("x"), IMPRECISE.issue("y"), EMULATED.issue("z")]
    found = answer(make_study((FAST, load()), (SLOW, load()), doubts=doubts))
    assert [(one.code, one.mark) for one in found.remarks] == [("not_stationary", False), ("imprecise", True)]
    assert found.remarks[0].where == "all points"
    step = found.next_steps[0]
    assert step.command == "servebench resume last --better"
    assert step.seconds > 0
    assert found.workloads[0].leads[0].codes == ("not_stationary",)


@pytest.mark.slow
def test_one_run_a_failed_run_and_a_missing_one(make_study, tmp_path):
    path = make_study((FAST, load()))
    (alone,) = answer(path).workloads
    assert (len(alone.leads), sentence_of(alone).count("tok/s")) == (0, 1)
    path = make_study((FAST, load()), (SLOW, load()), name="two")
    for name in ("points.parquet", "points.csv", "manifest.json"):
        (path / "01_slow_unique" / name).unlink()
    state = path / "01_slow_unique" / "run.json"
    state.write_text(state.read_text().replace('"finished"', '"failed"'))
    found = answer(path, name="two")
    assert [one.label.startswith("01_slow_unique") for one in found.failures] == [True]
    assert "servebench resume two --failed" in [step.command for step in found.next_steps]
    path = make_study((FAST, load()), (SLOW, load()), name="three")
    for name in ("points.parquet", "points.csv"):
        (path / "01_slow_unique" / name).unlink()
    (measured,) = answer(path, name="three").workloads
    assert sentence_of(measured).startswith("only fast was measured: ")


@pytest.mark.parametrize(
    ("status", "failure", "command"),
    [
        ("interrupted", None, "servebench resume last"),
        ("failed", "endpoint", "servebench resume last"),
        ("failed", "died", "servebench resume last --failed"),
    ],
)
def test_a_study_that_is_not_whole_is_continued_before_anything_is_measured_longer(
    make_study, status, failure, command
):
    path = make_study((FAST, load()), (SLOW, load()), doubts=[NOT_STATIONARY.issue("x")])
    state = path / "01_slow_unique" / "run.json"
    ended = {"status": status, "error": status, "failure": failure}
    state.write_text(json.dumps({**json.loads(state.read_text()), **ended}))
    found = answer(path)
    assert [(one.label, one.error) for one in found.failures] == [("slow", "")]
    assert [one.command for one in found.next_steps if "resume" in one.command] == [command]


def test_what_differs_is_listed_with_the_runs_that_have_it(make_study):
    found = answer(make_study((FAST, load()), (SLOW, load(config={"engine.dtype": "fp8"}))))
    (dtype,) = [one for one in found.inequalities if one.key == "engine.dtype"]
    assert (dict(dtype.values), dtype.matters) == ({"auto": ("fast",), "fp8": ("slow",)}, True)
    assert found.workloads[0].leads[0].unequal == ("engine.dtype",)
    assert dtype.text == "engine.dtype: auto (fast), fp8 (slow)"
    assert "(different settings)" in sentence_of(found.workloads[0])
    # `compare` refuses a verdict
    assert not any(cell.best for column in found.workloads[0].columns for cell in column.cells.values())


def test_other_weights_are_one_difference(make_study):
    """A format that differs between the same runs implies another file and another digest; one that is unknown does not."""
    runs = read.load_study(make_study((FAST, load()), (SLOW, load()))).runs

    def keys(*values):
        known = zip(runs, values, strict=True)
        with_weights = [replace(run, manifest={**run.manifest, "weights": weights}) for run, weights in known]
        return {one.key for one in concluded(with_weights).inequalities if one.key.startswith("weights")}

    gguf = {"format": "gguf", "digest": "sha256:1", "quantization": "unknown"}
    folder = {"format": "safetensors", "digest": "sha256:2", "quantization": "bfloat16"}
    assert keys(gguf, folder) == {"weights.format", "weights.quantization"}
    assert keys({**gguf, "quantization": "Q4_1"}, folder) == {"weights.quantization"}
    assert keys(folder, {**folder, "digest": "sha256:3"}) == {"weights.digest"}


def test_a_lead_matters_by_the_margin_of_its_comparison(make_study):
    """`compare --margin 1%` must not say that an engine is faster and below it that there is no clear difference."""
    steady = {"spread": 0.05, "drift_sd": 0.003, "run_sd": 0.001}
    runs = [(replace(FAST, name=name, slow=slow, **steady), load(levels=(4,), requests=40, starts=4, seed=seed))
            for name, slow, seed in (("fast", 1.0, 0), ("slow", 1.03, 1))]  # fmt: skip
    pairs = pair_runs([read.load_study(make_study(*runs))], None)
    for margin, result, clear in ((0.01, "slower", True), (0.12, "no difference", False)):
        compared = compare_speed(pairs, margin=margin)
        (lead,) = answer_of([run for pair in pairs for run in pair], compared).workloads[0].leads
        assert (compared[0].result, lead.clear) == (result, clear)


@pytest.mark.slow
def test_prompts_of_different_length_are_listed_in_words_by_workload(make_study):
    path = make_study(*((engine, load(workload)) for workload in ("unique", "rag_prefix") for engine in (FAST, SLOW)))
    tokens = (319.0, 311.0, 100.0, 101.0)
    runs = [
        with_columns(run, input_tokens_mean=mean) for run, mean in zip(read.load_study(path).runs, tokens, strict=True)
    ]
    (found,) = [one for one in concluded(runs).inequalities if one.key == "input_tokens_mean"]
    assert (found.name, dict(found.values)) == (
        "mean prompt, in tokens (unique at 1 user)",
        {"319": ("fast",), "311": ("slow",)},
    )


def test_a_wide_interval_is_said_with_what_narrows_it(make_study):
    found = answer(make_study((FAST, load()), (SLOW, load()), doubts=[IMPRECISE.issue("y")]))
    cells = [cell for column in found.workloads[0].columns for cell in column.cells.values()]
    assert {(cell.verdict, cell.wide) for cell in cells} == {("valid", True)}
    assert [one for one in found.caveats if one.kind is CaveatKind.WIDE and one.limits == ("±25%",)]


def test_void_points_are_not_wide(make_study):
    runs = read.load_study(make_study((FAST, load()), (SLOW, load()), doubts=[IMPRECISE.issue("y", void=True)])).runs
    assert {row.verdict for run in runs for row in run.point_rows} == {"void"}
    assert not [one for one in concluded(runs).caveats if one.kind is CaveatKind.WIDE]


@pytest.mark.parametrize(
    ("own", "keys"),
    [
        ({"load": {"until": "5%", "max_duration_s": 60.0}}, ["load.max_duration_s from 60 to 240", "study.starts"]),
        ({"load": {"duration_s": 4.0}}, ["load.duration_s from 4 to 16", "study.starts"]),
        ({"load": {"requests": "auto"}}, ["load.duration_s or load.requests", "study.starts"]),
        ({"load": {"duration_s": 4.0}, "study": {"until": "decided"}}, ["load.duration_s from 4 to 16"]),
    ],
)
def test_what_narrows_an_interval_has_its_value_and_one_that_halves_it(make_study, own, keys):
    runs = read.load_study(
        make_study((FAST, load(starts=2)), (SLOW, load(starts=2)), doubts=[IMPRECISE.issue("y")])
    ).runs
    (caveat,) = list(_wide([replace(run, manifest={**run.manifest, "config": {**run.config, **own}}) for run in runs]))
    assert list(caveat.keys) == keys


@pytest.mark.parametrize(
    ("own", "words", "command", "times"),
    [
        ({"duration_s": 4.0}, ["engine=fast", "duration=4"], "servebench engine=fast load.duration_s=16", 4),
        ({"until": "5%", "max_duration_s": 60.0}, ["engine=fast"], "servebench engine=fast load.max_duration_s=240", 4),
        ({"requests": 20}, ["load.requests=20", "study.name=x"], "servebench load.requests=80", 4),
        ({"until": "5%", "max_duration_s": 20}, [], "servebench load.max_duration_s=80", 4),
        ({"requests": "auto"}, ["engine=fast"], None, 0),
        ({"requests": 20}, ["-m", "engine=fast,slow"], None, 0),
    ],
)
def test_a_single_run_that_is_wide_says_what_narrows_it(make_study, own, words, command, times):
    (run,) = read.load_study(make_study((FAST, load()), doubts=[IMPRECISE.issue("y")])).runs
    manifest = {**run.manifest, "words": words, "config": {**run.config, "load": own}}
    run = replace(run, state={**run.state, "words": words}, manifest=manifest)
    steps = [one for one in concluded([run]).next_steps if Purpose.NARROWER in one.purposes]
    assert [one.command for one in steps] == ([] if command is None else [command])
    windows_s = sum(row.window_s for row in run.point_rows)
    assert all(times * windows_s <= one.seconds <= times * (windows_s + seconds_per_start(run)) for one in steps)
    # two runs have a comparison that more starts decide, and a narrow one needs nothing
    others = read.load_study(make_study((FAST, load()), (SLOW, load()), doubts=[IMPRECISE.issue("y")], name="b")).runs
    narrow = read.load_study(make_study((FAST, load()), name="c")).runs
    for runs in (others, narrow):
        assert not [one for one in concluded(runs).next_steps if Purpose.NARROWER in one.purposes]


def test_a_void_point_is_in_no_mean_as_on_other_screens(make_study):
    (run,) = read.load_study(make_study((FAST, load(levels=(4,), starts=3)))).runs
    first, *others = run.point_rows
    void = replace(first, verdict="void", output_throughput_tok_s=1.0)
    cells = [
        next(iter(concluded([replace(run, rows=lambda rows=rows: rows)]).workloads[0].columns[0].cells.values()))
        for rows in ([void, *others], others)
    ]
    assert cells[0].verdict == "void"
    assert (cells[0].value, cells[0].low) == (cells[1].value, cells[1].low)


@pytest.mark.parametrize(
    ("lives", "apart", "seconds"),
    [
        # one after another: each its own
        ([[(0, 10)], [(10, 30)]], False, [[10], [20]]),
        # at once from 10 to 20, in slices or not: that is shared
        ([[(0, 20)], [(10, 40)]], False, [[15], [25]]),
        ([[(0, 20)], [(10, 40)]], True, [[20], [30]]),
        ([[(0, 9), (20, 29)], [(0, 9), (20, 29)], [(0, 9)]], False, [[3, 4.5], [3, 4.5], [3]]),
        ([[], [(5, 5)]], False, [[], [0]]),
    ],
)
def test_engines_that_are_alive_at_once_share_the_time(lives, apart, seconds):
    runs = [
        [
            PointRow(start_id=f"2026-01-01T00:00:{begins:02d}+00:00", window_end_ns=(NEW_YEAR + ends) * 10**9)
            for begins, ends in own
        ]
        for own in lives
    ]
    assert engine_seconds([*runs, [PointRow(start_id="attached", window_end_ns=1)]], apart=apart) == [*seconds, []]


def test_the_mean_of_points_with_wide_intervals_is_wide_only_if_its_own_interval_is(make_study):
    steady = replace(FAST, spread=0.05, drift_sd=0.003, run_sd=0.002)
    runs = read.load_study(make_study((steady, load(levels=(4,), starts=5)), doubts=[IMPRECISE.issue("y")])).runs
    found = concluded(runs)
    (cell,) = found.workloads[0].columns[0].cells.values()
    assert not cell.wide
    assert not [one for one in found.caveats if one.kind is CaveatKind.WIDE]
    asked = {"load": {"until": "0.01%"}}
    wanted = [replace(run, manifest={**run.manifest, "config": {**run.config, **asked}}) for run in runs]
    found = concluded(wanted)
    ((cell,),) = (one.columns[0].cells.values() for one in found.workloads)
    assert cell.wide
    assert [one for one in found.caveats if one.kind is CaveatKind.WIDE and one.keys[-1] == "study.starts"]


def test_times_of_the_next_steps_rest_on_what_the_study_took(make_study):
    path = make_study((FAST, load()), (SLOW, load()), doubts=[NOT_STATIONARY.issue("x")])
    steps = {one.command.split()[1]: one for one in answer(path, words=("-m", "engine=fast,slow")).next_steps}
    assert {"recommend", "report"} <= steps.keys()
    took_s = sum(seconds_per_start(run) for run in read.load_study(path).runs)
    assert steps["-m"].seconds == pytest.approx(5 * took_s)
    assert 1.5 * took_s < steps["resume"].seconds <= 2 * took_s
    assert purpose_text(steps["resume"]) == "the 4 points in doubt, twice as long"


@pytest.mark.parametrize(
    ("requests", "levels", "wanted"),
    [(20, [2, 64], 640), (640, [2, 64], None), (20, [16], None), ("auto", [64], None), (20, None, None)],
)
def test_what_is_measured_again_with_many_more_requests_is_not_said_to_take_twice_as_long(
    make_study, requests, levels, wanted
):
    runs = read.load_study(make_study((FAST, load(levels=(64,))), doubts=[NOT_STATIONARY.issue("x")])).runs
    settings = {"load": {"requests": requests, "concurrency": levels}}
    runs = [replace(run, manifest={**run.manifest, "config": {**run.config, **settings}}) for run in runs]
    (step,) = (one for one in concluded(runs).next_steps if "--better" in one.command)
    assert step.requests == wanted
    assert ("twice as long" in purpose_text(step)) is (wanted is None)
    assert ("640 requests" in purpose_text(step)) is (wanted is not None)


def test_a_comparison_of_one_start_each_says_what_a_verdict_takes(make_study):
    found = answer(make_study((FAST, load()), (SLOW, load())))
    assert re.search(r"gives a verdict \(about \d+ (s|min) for these two\)", summary_of(found.comparisons[0]))


def test_the_start_of_a_simulated_engine_takes_no_longer_than_its_run(make_study):
    """It is on a virtual clock, and the estimate on that of the user."""
    path = make_study((FAST, load()), (SLOW, load()), doubts=[NOT_STATIONARY.issue("x")])
    runs = [
        replace(one, manifest={**one.manifest, "cold_start": {"seconds": 3600.0}}) for one in read.load_study(path).runs
    ]
    (again,) = [one for one in concluded(runs, name="x").next_steps if "--better" in one.command]
    windows_s = sum(row.window_s for run in runs for row in run.point_rows)
    assert again.seconds <= sum(seconds_per_start(run) for run in runs) + 2 * windows_s


def test_a_level_that_is_slower_than_a_heavier_one_is_told(make_study):
    path = make_study((FAST, load(levels=(1, 2, 8))))
    runs = read.load_study(path).runs
    assert not [one for one in concluded(runs).caveats if one.kind is CaveatKind.OUT_OF_LINE]
    first, *others = runs[0].point_rows
    slow = replace(first, output_throughput_tok_s=first.output_throughput_tok_s / 20)
    run = replace(runs[0], rows=lambda: [slow, *others])
    (told,) = [one for one in concluded([run]).caveats if one.kind is CaveatKind.OUT_OF_LINE]
    assert (told.label, told.level, told.heavier) == ("fast", Level(1), Level(2))


def test_pairs_are_within_a_workload_and_all_of_them(make_study):
    third = SimulatedEngine(name="third")
    path = make_study(
        *((one, load(workload, levels=(1,), requests=9)) for workload in ("u", "v") for one in (FAST, SLOW, third))
    )
    study = read.load_study(path)
    names = [(a.name[3:], b.name[3:]) for a, b in pair_runs([study], None)]
    expected = [("fast", "slow"), ("fast", "third"), ("slow", "third")]
    assert names == [(f"{a}_{w}", f"{b}_{w}") for w in "uv" for a, b in expected]
    assert len(pair_runs([study], None, to_first=True)) == 4
    # a baseline is compared with the runs of its own workload
    assert [b.name for _, b in pair_runs([study], study.runs[3])] == ["04_slow_v", "05_third_v"]


@pytest.mark.parametrize(
    ("lead", "text"),
    [
        ((0.41, 0.35, 0.48), "41% [35, 48] more tok/s than b"),
        ((0.052, 0.01, 0.1), "5.2% [1.0, 10.0] more tok/s than b"),
        ((1.3, 1.1, 1.6), "2.3 times [2.1, 2.6] the tok/s of b"),
        ((0.4,), "40% more tok/s than b"),
    ],
)
def test_leads_in_words(lead, text):
    assert lead_text(lead_of(*lead)) == text


def test_a_lead_over_several_says_over_whom(make_study):
    slow = {"a": 1.0, "b": 1.06, "c": 1.07}
    runs = [(replace(FAST, name=name, slow=slow[name]), load(levels=(8,))) for name in slow]
    (workload,) = answer(make_study(*runs)).workloads
    (lead,) = workload.leads
    assert len(lead.tied) == 2
    assert f"a is {lead.size:.1%} ahead of {lead.rival.label}; up to " in sentence_of(workload)


def test_nothing_is_the_best_of_a_level_at_which_another_is_void(make_study):
    """`recommend` names no winner there, either."""
    runs = list(read.load_study(make_study((FAST, load()), (SLOW, load()), (replace(SLOW, name="c"), load()))).runs)
    rows = [replace(row, verdict="void") if row.concurrency == 8 else row for row in runs[2].point_rows]
    runs[2] = replace(runs[2], rows=lambda: rows)
    (workload,) = concluded(runs).workloads
    assert [lead.clear for lead in workload.leads] == [True, True]
    assert {level: cell.best for level, cell in workload.columns[0].cells.items()} == {Level(1): True, Level(8): False}


@pytest.mark.parametrize(
    ("slow", "starts", "word"), [((1.0, 1.07, 1.0), 1, "study.starts=5"), ((1.0, 1.04, 1.02), 2, "study.until=decided")]
)
def test_more_starts_are_proposed_where_a_verdict_takes_them(make_study, slow, starts, word):
    """Three engines of which two are tied had no such command: the lead that was named was not above 0."""
    runs = [
        (SimulatedEngine(name=name, slow=one, run_sd=0.01), load(levels=(8,), starts=starts, seed=seed))
        for seed, (name, one) in enumerate(zip("abc", slow, strict=True))
    ]
    found = answer(make_study(*runs), words=["-m", "engine=a,b,c", "study.starts=1", "starts=1", "study.name=x"])
    (step,) = [one.command for one in found.next_steps if "study." in one.command]
    assert step == f"servebench -m engine=a,b,c {word}"


def test_what_is_decided_needs_no_more_starts(make_study):
    runs = [(replace(FAST, name=name, slow=slow, run_sd=0.002), load(levels=(8,), starts=4, seed=seed))
            for seed, (name, slow) in enumerate((("a", 1.0), ("b", 1.5)))]  # fmt: skip
    found = answer(make_study(*runs), words=["-m", "engine=a,b"])
    assert found.workloads[0].leads[0].verdict
    assert not [one for one in found.next_steps if "study." in one.command]


def test_what_makes_a_lead_provisional_is_said_with_its_level(make_study):
    fast, slow = read.load_study(make_study((FAST, load()), (SLOW, load()))).runs
    doubtful = {"verdict": "doubtful", "doubts": ("not_stationary",)}
    rows = [replace(row, **(doubtful if row.concurrency == 8 else {})) for row in fast.point_rows]
    (found,) = concluded([replace(fast, rows=lambda: rows), slow]).workloads
    assert "(provisional at 8 users)" in sentence_of(found)


def test_a_warning_of_some_starts_says_of_how_many(make_study):
    """One doubtful point of nine was "1 of 3 points" in one line and "8/9 valid" in the next."""
    (run,) = read.load_study(make_study((FAST, load(starts=3)))).runs
    doubtful = {"verdict": "doubtful", "doubts": ("not_stationary",)}
    rows = [replace(row, **(doubtful if (row.concurrency, row.repeat) == (8, 1) else {})) for row in run.point_rows]
    (found,) = [one for one in concluded([replace(run, rows=lambda: rows)]).remarks if one.code == "not_stationary"]
    assert (found.points, found.of, found.where) == (1, 6, "fast at 8 users (1 of 3 points)")


def test_levels_are_shown_by_load_however_they_were_measured(make_study):
    """A search measures them in its own order."""
    (found,) = answer(make_study((FAST, load(levels=(8, 16, 4))))).workloads
    assert found.levels == (Level(4), Level(8), Level(16))
    assert list(found.columns[0].cells) == [Level(4), Level(8), Level(16)]


def test_a_lead_that_rests_on_earlier_starts_says_so(make_study):
    base = SimulatedEngine(name="base", run_sd=0.005)
    make_study((base, load(starts=8, seed=5)), name="earlier")
    path = make_study((base, load(seed=1)), (replace(base, slow=1.8), load(seed=2, version="2.0")), name="later")
    study = read.load_study(path)
    text = "rests on how much earlier starts of the same set-ups differed"
    for earlier, said in ([], False), (read.runs_beside(study), True):
        found = concluded(study.runs, earlier=earlier)
        assert any(lead.by_earlier for lead in found.workloads[0].leads) == said
        assert any(text in caveat_text(one) for one in found.caveats) == said


@pytest.mark.parametrize(
    ("length", "exact", "level", "named"),
    [(40, True, 4, True), ("20..60", True, 4, False), (40, False, 4, False), (40, True, 1, False)],
)
def test_answers_of_one_length_are_named(tmp_path, length, exact, level, named):
    """Where users share the engine: their phases never mix."""
    settings = {"workload.output_tokens": length, "workload.exact_output": exact}
    folder = StudyFolder(tmp_path / "study").run("run")
    write_simulated_run(folder, SimulatedEngine(), SimulatedLoad(levels=(level,), config=settings))
    caveats = conclude([read.load_run(folder.path)]).answer.caveats
    assert [one.tokens for one in caveats if one.kind is CaveatKind.ONE_LENGTH] == [40] * named
    assert ("output_tokens=20..60" in " ".join(map(caveat_text, caveats))) is named
