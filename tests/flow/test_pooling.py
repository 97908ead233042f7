"""Embeddings and rankings measured from start to report: rates of texts, and no columns of streams."""

import pandas as pd
import pytest

from servebench.protocol.kinds.table import KINDS
from support.results import requests, run_of

CARD = ("launch=emulated", "launch.time_scale=0.002", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "tracking=none")
SMALL = ("load.concurrency=[4]", "load.requests=24", "load.warmup_requests=4", "load.hold_level=false", "study.name=s")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["embeddings", "rerank"])
def test_texts_are_counted_and_nothing_is_streamed(name, servebench, tmp_path):
    words = (f"workload={name}", "workload.batch_size=3", "workload.input_tokens=40", "study.starts=1")
    done = servebench("engine=vllm", *words, *CARD, *SMALL, code=0)
    sent = requests(run_of(tmp_path))
    assert (set(sent.outcome), len(sent)) == ({"ok"}, 24)
    point = pd.read_csv(run_of(tmp_path) / "points.csv").iloc[0]
    lacked = [column for column in point.index if column.startswith(KINDS[name].lacks)]
    assert {"ttft_ms_p50", "itl_ms_mean", "output_throughput_tok_s"} <= set(lacked)
    assert point[lacked].isna().all()
    assert point.e2e_ms_p50 > 0
    assert point.input_throughput_texts_s == pytest.approx(3 * point.request_throughput_req_s)
    each = 3 * 40 if name == "embeddings" else 3 * (40 + 16)
    assert point.input_tokens_mean == each
    assert point.input_throughput_tok_s == pytest.approx(each * point.request_throughput_req_s)
    assert "tokens_disagree" not in point.doubts
    assert "texts/s" in done.stdout
    assert not any(name in done.stdout for name in ("TTFT p50", "ITL mean", "tok/s"))
