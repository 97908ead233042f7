"""The published set-ups, simulated: near enough with few parameters, and the conclusions that the page draws."""

import pytest

from servebench.emulator.cost import stored_profiles
from servebench.published.comparison import within, write_published
from servebench.published.setups import (
    POOL,
    Case,
    Cell,
    PublishedRow,
    Simulator,
    case_of,
    judge,
    published_cells,
    same_requests,
    sound,
    value_of,
)
from servebench.registry.registry import registry
from servebench.util.errors import StoreError
from servebench.util.proportions import wilson


@pytest.fixture(scope="module")
def simulator():
    return Simulator(registry())


def test_every_number_of_the_articles_is_shipped():
    """176 of five sources; all that were measured under load have a case, but for those whose set-up is not told."""
    cells = published_cells()
    assert len(cells) == 176
    assert len({cell.source for cell in cells}) == 5
    told = [
        cell
        for cell in cells
        if cell.metric in ("ttft", "output_throughput") and cell.statistic not in ("about", "range")
    ]
    assert all(case_of(cell) is not None for cell in told)


def test_profiles_are_few_numbers_and_no_table():
    """No profile has as many free numbers as there are published ones for its engine and GPU."""
    cells = published_cells()
    for one in stored_profiles():
        published = [
            cell for cell in cells if cell.engine == one["engine"] and cell.gpu == one["gpu"] and case_of(cell)
        ]
        assert len(one["profile"]) <= 12
        if one["gpus"] == 1 and one.get("variant") != "pytorch":
            assert len(published) > len(one["profile"]) or one["gpu"] == "rtx4090"


SAMPLE = {
    ("vllm", "baseline sweep"): 9,
    ("trtllm", "baseline sweep"): 9,
    ("sglang", "extreme overload"): 7,
    ("trtllm", "overload"): 6,
}


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "sweep"), SAMPLE)
def test_numbers_are_met_by_the_articles_method(engine, sweep, simulator):
    """Throughput within 10 %, TTFT within 30 %: most of what the whole page says for all."""
    cells = [
        cell
        for cell in published_cells()
        if cell.engine == engine and cell.workload.startswith(sweep + ",") and cell.number
    ]
    rows = [
        PublishedRow(cell=cell, ours=value_of(cell, simulator.measure(case)), comment="")
        for cell in cells
        if (case := case_of(cell)) is not None
    ]
    met = within(rows, "output_throughput")[0] + within(rows, "ttft")[0]
    assert met >= SAMPLE[(engine, sweep)]


@pytest.mark.slow
def test_what_the_method_made_is_told_apart_from_the_engine(simulator):
    """Saturation at 64 is 50 requests; the TTFT jump is the client's pool; the 100s queue is a batch of 64."""
    at = {level: sound(simulator, "vllm", level).throughput_tok_s for level in (64, 128)}
    assert at[128] > 1.5 * at[64]
    few, behind, free = (
        same_requests(simulator, "vllm", 1000, requests, pool)
        for requests, pool in ((100, POOL), (200, POOL), (200, None))
    )
    assert behind > 5 * free > few
    assert same_requests(simulator, "vllm", 5000, 200, POOL) == behind


def test_the_methods_doubts_are_told(simulator):
    """50 requests for a level of 64 are void, at 50 they are too short, at 1 nothing is wrong."""
    said = {}
    for cell in published_cells():
        if cell.engine == "trtllm" and cell.workload.startswith("fine-grained"):
            case = case_of(cell)
            assert isinstance(case, Case)
            said[cell.concurrency] = judge(case, simulator.measure(case), cell.concurrency)
    assert "level_not_reached" in said[64]
    assert "level_not_reached" in said[128]
    assert "too_short" in said[32]
    assert said[1] == ""


def test_intervals_of_eight_questions_overlap():
    """4/8 and 7/8: Wilson's interval, against a table (Newcombe 1998 gives [0.2152, 0.7848] for 4/8)."""
    assert wilson(4, 8) == pytest.approx((0.2152, 0.7848), abs=2e-4)
    assert wilson(7, 8)[0] < wilson(4, 8)[1]


def test_a_cell_that_is_no_number_has_none():
    """A range, as some are."""
    some = [cell for cell in published_cells() if cell.number is None]
    assert all(isinstance(cell, Cell) and "-" in cell.value for cell in some)
    assert some


def test_a_page_that_cannot_be_written_is_told_before_the_simulation(tmp_path, monkeypatch):
    monkeypatch.setattr("servebench.published.comparison.rows_of", lambda _: pytest.fail("simulated for nothing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"^cannot write .*file/page.md: "):
        write_published(tmp_path / "file" / "page.md", registry())
