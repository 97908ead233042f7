"""The fleet on paper, and the page that shows it."""

from pathlib import Path

import pytest

from servebench.published.fleet import Demand, Node, fleet, table

PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"


def test_the_page_has_the_table_that_the_command_prints():
    assert table([100_000, 10_000_000]) in PAGE.read_text(encoding="utf-8")


def test_streams_and_rates_follow_from_the_demand():
    found = fleet(Demand(tokens_s=100_000, itl_ms=20, output_tokens=200, tokens_per_event=4), Node())
    assert (found.streams, found.events_s, found.requests_s) == (2_000, 25_000, 500)
    assert found.workers == 2


@pytest.mark.parametrize(
    ("demand", "node", "bound_by", "nodes"),
    [
        (Demand(tokens_s=10), Node(), "cores", 1),
        # a worker for each 20,000 events/s, 4 a node
        (Demand(tokens_s=1_000_000), Node(cores=4, network_gbit_s=100), "cores", 13),
        # 2.24 Gbit/s against half of 1
        (Demand(tokens_s=1_000_000), Node(cores=64, network_gbit_s=1), "network", 5),
        # 250,000 slow streams
        (Demand(tokens_s=1_000_000, itl_ms=250, tokens_per_event=50), Node(cores=64, network_gbit_s=400), "ports", 9),
        (Demand(tokens_s=1_000_000, itl_ms=250, tokens_per_event=50), Node(cores=64, addresses=4), "ports", 3),
    ],
)
def test_what_runs_out_first_decides(demand, node, bound_by, nodes):
    found = fleet(demand, node)
    assert (found.bound_by, found.nodes) == (bound_by, nodes)
