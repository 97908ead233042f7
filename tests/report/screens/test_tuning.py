"""The answer of a tune as text and as a page."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import yaml

from servebench.analysis.tuning.answer import ChangeKind, Contribution, Figures, Tried, TuneAnswer, WouldChange
from servebench.analysis.tuning.ledger import Left
from servebench.analysis.verdict.model import Difference
from servebench.analysis.verdict.reasons import Method, MethodKind
from servebench.contracts.tuning import Candidate, TuneQuestion
from servebench.report.html.page import tune_page
from servebench.report.screens.tuning import tune_blocks
from servebench.report.terminal.console import CleanConsole, console, print_blocks
from servebench.report.wording.tuning import headline
from servebench.study.stored_tune import engine_file

BLOCKS = Method(MethodKind.BLOCKS, (3, 3))
GAIN = Difference(effect=0.2, low=0.1, high=0.3, method=BLOCKS)
ANSWER = TuneAnswer(
    study="s",
    question=TuneQuestion(),
    levels=(8.0,),
    finished=True,
    verdict="better",
    best="01",
    best_name="t01",
    recommended="01",
    recommended_name="t01",
    settings={"engine.threads": 2, "engine.extra_args.n_batch": 64},
    value=120.0,
    stock_value=100.0,
    gain=GAIN,
    again=Difference(effect=0.2, low=0.05, high=0.35, method=BLOCKS),
    contributions=(
        Contribution(key="engine.threads", before="null", after="2", gain=GAIN),
        Contribution(key="engine.extra_args.n_batch", before="null", after="64", gain=None),
    ),
    as_good=("t02",),
    tried=(
        Tried(run="01", name="t01 <b>", origin="sampled", settings="threads=2", status="best", starts=4, blocks=4, value=120.0,
              from_stock=GAIN, figures=Figures(throughput=120.0, ttft_ms=5.0)),
        Tried(run="00", name="stock", origin="stock", settings="stock", status="finalist", starts=4, blocks=4, value=100.0,
              figures=Figures(throughput=100.0, ttft_ms=9.0)),
        Tried(run="02", name="t02", origin="sampled", settings="threads=9", status="left", left=Left(reason="not tried", round=0)),  # noqa: E501
    ),
    refused=(("t03", "too large"),),
    spent=600.0,
    budget=1200.0,
    space_size=1000,
    would_change=(WouldChange(kind=ChangeKind.OTHER_LOAD, levels=(32.0,)),),
    void=1,
    points=8,
    engine_command="llama-server --threads 2",
    command="servebench tune engine=llamacpp",
    next_steps=(("servebench engine=llamacpp_tuned", "the best candidate"),),
)  # fmt: skip


def shown(answer, *, complete=True):
    text = io.StringIO()
    print_blocks(tune_blocks(answer, complete=complete), console(text))
    return text.getvalue()


def test_the_screen_says_all_that_was_promised():
    text = shown(ANSWER)
    for part in (
        "t01 is best: threads=2 n_batch=64; +20.0% [+10.0, +30.0] over stock",
        "[+5.0, +35.0]",
        "120 tok/s, stock 100 tok/s",
        "engine.threads: null -> 2: +20.0%",
        "n_batch: null -> 64: not measured: too little budget left",
        "may be as good as t01: t02",
        "refused before a launch: t03: too large",
        "spent 10.0 of 20.0 engine minutes on 2 of 3 candidates",
        "the whole space has 1,000 settings",
        "1 of 8 points are void",
        "what would change the answer: another load",
        "command: servebench tune engine=llamacpp",
        "engine: llama-server --threads 2",
        "next: servebench engine=llamacpp_tuned",
    ):
        assert part in text
    assert "so far" in shown(replace(ANSWER, finished=False))


def test_the_answer_names_equals_with_higher_estimates():
    assert "t07" in shown(replace(ANSWER, equals=("t07",)))
    assert "t07" not in shown(ANSWER)


def test_candidates_that_were_not_tried_are_counted_and_what_is_not_to_be_trusted_is_named():
    lines = shown(ANSWER).splitlines()
    assert not [line for line in lines if line.startswith("t02")]
    assert "1 of 3 candidates were not tried: too little budget left" in lines
    refused = tuple((f"t{number}", "too large") for number in range(9))
    text = shown(replace(ANSWER, imitated="simulated", doubts={"too_short": 3}, refused=refused))
    assert text.count("refused before a launch") == 1
    assert "too_short" in text
    assert "Simulated engines" in text
    page = tune_page(replace(ANSWER, imitated="simulated", doubts={"too_short": 3}))
    assert "too_short" in page
    assert "Simulated engines" in page


def test_a_narrow_screen_cuts_neither_settings_nor_intervals():
    settings = "max_num_seqs=128 max-num-batched-tokens=32768 block-size=32"
    gain = Difference(effect=1.017, low=0.906, high=1.134, method=BLOCKS)
    tried = (
        replace(ANSWER.tried[0], name="longer steps on the CPU", settings=settings, from_stock=gain),
        replace(
            ANSWER.tried[2], left=Left(reason="slower", round=1, behind=0.128, low=0.04, high=0.216), from_stock=GAIN
        ),
        replace(ANSWER.tried[2], name="t05", left=Left(reason="start failed", round=1, note="CUDA out of memory")),
    )
    text = io.StringIO()
    narrow = CleanConsole(text, width=80, soft_wrap=False)
    print_blocks(tune_blocks(replace(ANSWER, tried=tried), complete=True), narrow)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "+101.7% [+90.6, +113.4]" in text.getvalue()
    assert any(line.endswith("left after round 1") for line in map(str.rstrip, lines))
    whole = " ".join(text.getvalue().split())
    assert f"longer steps on the CPU: {settings}" in whole
    assert "t05: threads=9 (did not start: CUDA out of memory)" in whole


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("open", "which is not proven"),
        ("as good", "stock is as good"),
        ("stock", "stock is as good: no other settings were better"),
        ("too little", "the budget is too small"),
        ("none", "nobody won"),
    ],
)
def test_what_else_may_be_the_answer(verdict, said):
    assert said in headline(replace(ANSWER, verdict=verdict))
    assert "its stock settings" in headline(replace(ANSWER, settings={}))


def test_the_page_is_one_file_and_takes_no_markup_from_names():
    page = tune_page(replace(ANSWER, command="servebench tune <b>"))
    assert "servebench tune &lt;b&gt;" in page
    assert page.startswith("<!doctype html>")
    assert "t01 &lt;b&gt;" in page
    assert "t01 <b>" not in page
    assert "http" not in page.replace("http-equiv", "")
    empty = replace(ANSWER, tried=(), contributions=(), as_good=(), refused=(), gain=None, void=0)
    assert "data:image" not in page + tune_page(empty)


def test_the_engine_file_inherits_the_engine():
    winner = Candidate(
        name="t01", engine="llamacpp", origin="sampled", settings={**ANSWER.settings, "engine.env.A": "x: y"}
    )
    text = engine_file(ANSWER, winner)
    assert text.startswith("# The settings that 'servebench tune' found best in s (+20.0% [+10.0, +30.0] over stock):")
    found = yaml.safe_load(text)
    assert found == {
        "defaults": ["llamacpp", "_self_"],
        "threads": 2,
        "extra_args": {"n_batch": 64},
        "env": {"A": "x: y"},
    }
