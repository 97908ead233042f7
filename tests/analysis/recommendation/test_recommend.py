"""Winners, no winner, and what would change the answer, from simulated studies on disk."""

import json
from dataclasses import replace

import pytest

from servebench.analysis.advice import Adviser
from servebench.analysis.conclude import conclude
from servebench.analysis.recommendation.model import UseReasonKind
from servebench.analysis.recommendation.rules import load_rules, rules_text
from servebench.cli.main import dispatch
from servebench.contracts.level import Level
from servebench.contracts.results import Doubt
from servebench.contracts.settings import SloSettings
from servebench.measure import cost
from servebench.report.wording.recommendation import best_word, lead_text, reason_text, use_text
from servebench.store import studies as read
from servebench.util.errors import ConfigError
from support.studies import SimulatedEngine, SimulatedLoad, with_columns

LEVELS = (1, 4, 16)
CASES = {
    *("interactive", "batch", "rag", "multi_turn", "structured_json", "long_context", "one_user", "cold_start", "cost"),
    *("cost_good", "energy"),
}


def uses(runs, rules=None, **options):
    """The recommendations by use case."""
    return {one.use_case.name: one for one in Adviser(runs, rules or load_rules(), **options).recommendations()}


def accepted(study):
    """The runs of a study whose points are all valid."""
    return [with_columns(run, verdict="valid", doubts=()) for run in read.load_study(study).runs]


@pytest.fixture
def answers(make_study):
    """Answers by use case for engines that are given as (settings of the engine, of the shape)."""

    def make(*engines, rules=None, name="study", **options):
        shape = {"levels": LEVELS, "requests": 90}
        runs = [(SimulatedEngine(**e), SimulatedLoad(**{**shape, **s, "seed": i})) for i, (e, s) in enumerate(engines)]
        return uses(accepted(make_study(*runs, name=name)), rules, **options)

    return make


def test_every_use_case_has_an_answer(answers):
    found = answers(({"name": "alpha"}, {}), ({"name": "beta", "slow": 1.6}, {}))
    assert set(found) == CASES
    assert found["batch"].best.entrant.name == "alpha"
    assert found["batch"].lead == pytest.approx(0.6, abs=0.08)
    assert found["batch"].interval[0] < 0.6 < found["batch"].interval[1]
    assert found["one_user"].best.entrant.run.fact("engine") == "alpha"
    assert found["rag"].outcome == "not measured"
    assert "workload=rag_prefix" in reason_text(found["rag"].why)
    for case, hint in (("cost", "price_usd_per_hour"), ("cost_good", "price_usd_per_hour"), ("energy", "power")):
        assert found[case].outcome == "not measured"
        assert hint in reason_text(found[case].why)


@pytest.mark.parametrize(
    ("sources", "groups"),
    [
        (("nvml_counter", "nvml_power"), [["alpha", "beta"]]),
        (("rapl", "rapl"), [["alpha", "beta"]]),
        (("rapl", "nvml_counter"), [["alpha"], ["beta"]]),
    ],
)
def test_energy_of_a_processor_is_not_ranked_with_that_of_a_gpu(make_study, sources, groups):
    runs = [(SimulatedEngine(name=name), SimulatedLoad(levels=(1,))) for name in ("alpha", "beta")]
    metered = [
        with_columns(run, energy_j_per_token=joules, energy_source=source)
        for run, source, joules in zip(accepted(make_study(*runs)), sources, (1.0, 2.0), strict=True)
    ]
    found = [one for one in Adviser(metered, load_rules()).recommendations() if one.use_case.name == "energy"]
    assert [[score.entrant.name for score in one.ranking] for one in found] == groups


@pytest.mark.parametrize(
    ("shape", "case", "missing", "there"),
    [
        ({"gpu": "h100"}, "cost", "no run has a price of its h100", "gpu=h100"),
        ({"gpu": "none"}, "cost", "no run has a price: set one", "of its"),
        ({"gpu": "h100", "price": 2.0}, "cost_good", "no run has an SLO", "gpu.price_usd_per_hour"),
    ],
)
def test_what_is_missing_for_a_cost_is_named(answers, shape, case, missing, there):
    """With gpu=h100 set, the answer was to set gpu=h100."""
    found = answers(({"name": "alpha"}, shape), ({"name": "beta"}, shape))[case]
    assert found.outcome == "not measured"
    assert missing in reason_text(found.why)
    assert there not in reason_text(found.why)


def test_a_lead_says_over_whom_and_its_interval_is_that_of_the_verdict(answers):
    engines = [({"name": name, "slow": slow}, {"starts": 3}) for name, slow in (("a", 1.0), ("b", 1.2), ("c", 1.5))]
    found = answers(*engines)["batch"]
    assert (found.outcome, found.rival) == ("best", "b")
    assert lead_text(found).endswith(" vs b")
    assert lead_text(found) in use_text(found)


def test_a_good_request_costs_more_where_fewer_are_good(answers):
    """Two engines nearly as cheap by the token; half of what one of them answers comes too late to be good."""
    slo = SloSettings(ttft_ms=130, tpot_ms=None, e2e_ms=None, attainment=0.5)
    shape = {"gpu": "h100", "price": 3.0, "slo": slo, "levels": (4,)}
    found = answers(({"name": "alpha"}, shape), ({"name": "beta", "ttft_ms": 120.0}, shape))
    answer = found["cost_good"]
    assert answer.best.entrant.run.fact("engine") == "alpha"
    assert answer.ranking[0].value < 0.7 * answer.ranking[1].value
    low, high = answer.ranking[0].interval
    assert low < answer.ranking[0].value < high
    assert answer.use_case.unit == "$/M requests within the SLO"
    assert any("would be as cheap at" in line for line in map(reason_text, answer.changes))
    assert found["cost"].ranking[0].value > 0.85 * found["cost"].ranking[1].value


def test_equal_engines_have_no_clear_difference(answers):
    found = answers(({"name": "alpha", "run_sd": 0.005}, {}), ({"name": "beta", "run_sd": 0.005}, {}))
    for name in ("batch", "interactive", "one_user"):
        assert found[name].outcome == "no clear difference", name
        assert found[name].best is None
        assert len(found[name].ranking) == 2


def test_the_slo_point_is_the_highest_load_that_meets_it_and_a_tighter_limit_may_change_the_winner(answers):
    # alpha is slow to begin and fast after; beta the other way round
    alpha = {"name": "alpha", "ttft_ms": 200, "tpot_ms": 2, "spread": 0.05}
    beta = {"name": "beta", "ttft_ms": 60, "tpot_ms": 9, "spread": 0.05}
    found = answers((alpha, {"requests": 320}), (beta, {"requests": 320}))["interactive"]
    assert found.outcome == "best", found.why
    assert found.best.entrant.run.fact("engine") == "alpha"
    assert found.best.slo_at == Level(16)
    assert any("TTFT" in line and "250 ms" in line and "beta" in line for line in map(reason_text, found.changes))
    assert any("still met the limits at its highest load" in line for line in map(reason_text, found.changes))


def test_an_engine_that_never_meets_the_limit_has_no_score(answers):
    found = answers(({"name": "alpha"}, {}), ({"name": "beta", "ttft_ms": 900}, {}))["interactive"]
    assert found.outcome == "only one"
    assert found.missing[0].name == "beta"
    assert "TTFT ≤ 500 ms" in reason_text(found.missing[0].why)
    assert use_text(found).endswith(" (the only one that qualifies)")


def test_failed_requests_do_not_meet_the_slo(answers):
    found = answers(({"name": "alpha", "fail_share": 0.05}, {}), ({"name": "beta", "slow": 1.5}, {}))["interactive"]
    assert [score.entrant.run.fact("engine") for score in found.ranking] == ["beta"]


@pytest.mark.parametrize("how", ["void", "missing"])
def test_nobody_wins_over_an_engine_at_a_level_that_it_has_no_point_of(make_study, how):
    """The throughput of one at 16 users was compared with that of the other at 4, and it had won by 200%."""
    runs = [
        (SimulatedEngine(name=name), SimulatedLoad(levels=LEVELS, requests=90, seed=seed))
        for seed, name in enumerate("ab")
    ]
    first, second = accepted(make_study(*runs))
    rows = [
        replace(row, verdict="void", doubts=("engine_died",)) if row.concurrency == 16 else row
        for row in second.point_rows
    ]
    kept = rows if how == "void" else [row for row in rows if row.verdict != "void"]
    found = uses([first, replace(second, rows=lambda: kept)])
    for name in ("batch", "interactive"):
        assert (found[name].outcome, found[name].lead, best_word(found[name])) == ("no clear difference", None, "")
        assert "b has no point that counts at 16 users" in reason_text(found[name].why)


def test_an_slo_that_is_missed_below_a_void_level_needs_no_point_there(make_study):
    slow = SimulatedEngine(name="b", ttft_ms=450.0, slow_per_stream=0.03, spread=0.01, drift_sd=0.003)
    runs = [
        (engine, SimulatedLoad(levels=LEVELS, requests=90, seed=seed))
        for seed, engine in enumerate((SimulatedEngine(name="a"), slow))
    ]
    first, second = accepted(make_study(*runs))
    void = [replace(row, verdict="void") if row.concurrency == 16 else row for row in second.point_rows]
    found = uses([first, replace(second, rows=lambda: void)])
    assert "no point that counts" not in reason_text(found["interactive"].why)
    assert "no point that counts" in reason_text(found["batch"].why)


def test_one_cold_start_each_is_no_verdict(answers):
    found = answers(({"name": "a"}, {}), ({"name": "b", "slow": 2.0}, {}))["cold_start"]
    assert (found.outcome, found.best, best_word(found)) == ("one start each", None, "fastest seen")
    assert found.ranking[0].entrant.run.fact("engine") == "a"
    assert use_text(found).startswith("open: a ")


@pytest.mark.parametrize("slow", [1.0, 1.2])
def test_cold_starts_that_differ_little_name_nobody(answers, slow):
    found = answers(({"name": "a"}, {}), ({"name": "b", "slow": slow}, {}))["cold_start"]
    assert (found.outcome, found.best, best_word(found)) == ("no clear difference", None, "")
    # the reason has the number of the lead
    assert f"{abs(100 * found.lead):.1f}%" in reason_text(found.why)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "outcome", "best"),
    [(1.07, "no clear difference", ""), (1.4, "best", "best, likely")],
)
def test_a_lead_of_one_start_each_is_provisional(make_study, slow, outcome, best):
    engines = (SimulatedEngine(name="fast"), SimulatedEngine(name="slow", slow=slow))
    runs = read.load_study(make_study(*((one, SimulatedLoad(levels=(8,), requests=400)) for one in engines))).runs
    answer = conclude(runs).answer
    found = uses(runs, comparisons=answer.comparisons)["batch"]
    (lead,) = answer.workloads[0].leads
    assert (found.outcome, best_word(found), lead.clear) == (outcome, best, outcome == "best")
    assert found.trust == ("provisional" if outcome == "best" else outcome)
    assert (found.lead, *found.interval) == pytest.approx((lead.size, lead.low, lead.high))
    # an interval beside "no clear winner" would look like one
    assert ("by one start each, which may be chance" in lead_text(found)) is (outcome != "best")
    assert ("[" in lead_text(found)) is (outcome == "best")


@pytest.mark.slow
@pytest.mark.parametrize(("doubts", "trust"), [([], "clear"), (["short_answers"], "provisional")])
def test_a_win_over_several_starts_on_points_without_a_doubt_is_clear(make_study, doubts, trust):
    found = [Doubt(code=code, message="", remedy="") for code in doubts]
    load = SimulatedLoad(levels=(8,), requests=100, starts=4)
    engines = ((SimulatedEngine(name="fast"), load), (SimulatedEngine(name="slow", slow=1.6), load))
    runs = read.load_study(make_study(*engines, doubts=found)).runs
    batch = uses(runs, comparisons=conclude(runs).answer.comparisons, with_doubtful=True)["batch"]
    assert (batch.outcome, batch.trust, best_word(batch)) == (
        "best",
        trust,
        "best" if trust == "clear" else "best, likely",
    )
    assert bool(batch.reservations) == (trust != "clear")


def test_a_number_has_the_interval_that_the_tables_show(make_study):
    one = SimulatedEngine(name="a"), SimulatedLoad(levels=(8,), requests=400, gpu="h100", price=3.0)
    (run,) = read.load_study(make_study(one)).runs
    row = run.point_rows[0]
    scores = {name: one.ranking[0] for name, one in uses([run]).items() if one.ranking}
    low, high = row.output_throughput_tok_s_low, row.output_throughput_tok_s_high
    assert scores["batch"].interval == pytest.approx((low, high), rel=0.01)
    assert scores["cost"].interval == pytest.approx(
        tuple(row.cost_usd_per_mtok * row.output_throughput_tok_s / end for end in (high, low)), rel=0.01
    )


def test_cost_compares_across_gpus_and_names_the_price_that_would_change_it(answers):
    cheap = ({"name": "alpha", "slow": 2.0}, {"price": 1.0, "gpu": "l4"})
    dear = ({"name": "alpha"}, {"price": 4.0, "gpu": "h100"})
    found = answers(cheap, dear)["cost"]
    assert found.best.entrant.run.fact("gpu") == "l4"
    assert any("would be as cheap at" in line for line in map(reason_text, found.changes))
    rival = found.ranking[1]
    price = cost.break_even_price(rival.level.rows[0].output_throughput_tok_s, found.ranking[0].value, 1)
    assert cost.usd_per_million(rival.level.rows[0].output_throughput_tok_s, price, 1) == pytest.approx(
        found.ranking[0].value
    )


def test_with_unequal_settings_that_matter_the_best_is_likely_at_most_unless_varied_on_purpose(answers):
    runs = (({"name": "a"}, {}), ({"name": "a", "slow": 2}, {"config": {"engine.dtype": "fp32"}}))
    found = answers(*runs)["batch"]
    assert (found.outcome, found.sureness, found.ranking[0].entrant.name) == ("provisional", "likely", "dtype=auto")
    assert found.unequal in found.reservations
    assert "engine.dtype" in reason_text(found.unequal)
    assert answers(*runs, name="again", varying="engine.dtype")["batch"].outcome == "best"


def test_doubtful_points_take_part_and_a_win_on_them_is_provisional(make_study):
    doubt = Doubt(code="too_short", message="", remedy="")
    fast, slow = SimulatedEngine(name="fast"), SimulatedEngine(name="slow", slow=2.0)
    load = SimulatedLoad(levels=(4,))
    runs = read.load_study(make_study((fast, load), (slow, load), name="doubtful", doubts=[doubt])).runs

    found = uses(runs)["batch"]
    assert (found.outcome, found.sureness) == ("provisional", "likely")
    assert reason_text(found.why).startswith("fast leads")
    assert "too_short" in reason_text(found.why)
    assert uses(runs, with_doubtful=True)["batch"].best.entrant.run.fact("engine") == "fast"


def test_the_doubtful_point_on_which_an_answer_rests_is_named(make_study):
    fast, slow = SimulatedEngine(name="fast"), SimulatedEngine(name="slow", slow=2.0)
    runs = accepted(make_study((fast, SimulatedLoad(levels=(4,))), (slow, SimulatedLoad(levels=(4,)))))
    doubtful = with_columns(runs[0], verdict="doubtful", doubts=("not_stationary",))
    (found,) = (one for one in uses([doubtful, runs[1]])["batch"].changes if one.kind is UseReasonKind.IN_DOUBT)
    assert (found.run, found.levels, found.codes) == ("fast", (Level(4),), ("not_stationary",))
    assert not any(one.kind is UseReasonKind.IN_DOUBT for one in uses(runs)["batch"].changes)


@pytest.mark.slow
def test_equal_engines_near_the_slo_have_no_winner(answers):
    """A level at which about 99% of requests meet the limit decides nothing, whichever side of 99% each engine falls on."""
    rules = load_rules()
    outcomes = []
    for seed in range(8):
        shape = {"levels": (4, 16), "requests": 160, "seed": seed}
        near = SloSettings(ttft_ms=155, tpot_ms=None, e2e_ms=None, attainment=0.99)
        found = answers(
            ({"name": "alpha"}, {**shape, "slo": near, "model": f"m{seed}"}),
            ({"name": "beta"}, {**shape, "slo": near, "model": f"m{seed}"}),
            rules=rules, name=f"near{seed}",
        )  # fmt: skip
        outcomes.append(found["interactive"].outcome)
    assert "best" not in outcomes


def test_rules_are_the_users_to_edit(answers, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("use_cases:\n  mine:\n    measure: lowest_load\n    metric: ttft_ms_p99\n    workloads: [uni*]\n")
    found = answers(({"name": "a"}, {}), ({"name": "b", "slow": 2}, {}), rules=load_rules(path))
    assert list(found) == ["mine"]
    assert found["mine"].best.at == Level(1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not valid YAML"),
        ("a: 1", "has no use_cases"),
        ("use_cases: {x: 3}", r"use_cases\.x: .* \(got 3\)"),
        ("use_cases: {x: {measure: worst, metric: a}}", r"use_cases\.x\.measure: .*within_slo.* \(got 'worst'\)"),
        ("use_cases: {x: {measure: best}}", "metric must name a column"),
        (
            "use_cases: {x: {measure: best, metric: a, slo: {tfft_ms: 1}}}",
            r"slo\.tfft_ms: unknown key; known keys are ttft_ms",
        ),
        ("use_cases: {x: {measure: within_slo, metric: a}}", "needs a limit in slo"),
        ("use_cases: {x: {measure: best, metric: a, colour: red}}", r"x\.colour: unknown key; known keys are title"),
        ("use_cases: {x: {measure: best, metric: a, workloads: unique}}", r"x\.workloads: .* \(got 'unique'\)"),
        ("use_cases: {x: {measure: best, metric: a, max_load: abc}}", r"x\.max_load: .* \(got 'abc'\)"),
        ("use_cases: {x: {measure: best, metric: a, max_load: .nan}}", r"x\.max_load"),
        ("use_cases: {x: {measure: best, metric: a, require: {json_compliance: 1}}}", r"require\.json_compliance"),
        ("use_cases: {x: {measure: best, metric: a, across: 3}}", r"across"),
        ("use_cases: {1: {measure: best, metric: a}}\nmargins: 1", "margins: unknown key; known keys are margin"),
        ("margin: 7\nuse_cases: {}", r"margin: .* \(got 7\)"),
    ],
)
def test_a_mistake_in_the_rules_is_an_error(tmp_path, text, told):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_rules(tmp_path / "r.yaml")


def test_the_verb_writes_text_and_json(make_study, capsys):
    study = make_study((SimulatedEngine(), SimulatedLoad()), (SimulatedEngine(name="beta"), SimulatedLoad()))
    asked = ["--outputs", str(study.parent), "study", "--with-doubtful"]
    assert dispatch(["recommend", *asked]) == 0
    assert "Most output" in capsys.readouterr().out
    assert dispatch(["recommend", *asked, "--json"]) == 0
    assert {one["use_case"] for one in json.loads(capsys.readouterr().out)["recommendations"]} == CASES
    assert dispatch(["recommend", "--show-rules"]) == 0
    assert capsys.readouterr().out == rules_text()
    with pytest.raises(ConfigError, match="recommend needs a study"):
        dispatch(["recommend"])


@pytest.mark.slow
@pytest.mark.parametrize(("count", "sureness"), [(2, "sure"), (3, "open")])
def test_only_two_equal_runs_are_surely_equal(make_study, count, sureness):
    """The reason is that of the first two: a third may be open."""
    steady = {"spread": 0.05, "drift_sd": 0.003, "run_sd": 0.002}
    runs = [
        (SimulatedEngine(name=f"e{n}", **steady), SimulatedLoad(levels=(4,), requests=40, starts=5, seed=n))
        for n in range(count)
    ]
    found = read.load_study(make_study(*runs)).runs
    batch = uses(found, comparisons=conclude(found).answer.comparisons)["batch"]
    assert (batch.outcome, batch.sureness) == ("no clear difference", sureness)
