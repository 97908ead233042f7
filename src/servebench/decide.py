"""From stored numbers to a decision: the verbs that read outputs and need no engine.

Each verb parses its words, has `read` load what they name, `score` judge it and `report` show it. Returns an exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servebench import read
from servebench.contracts.stored import RunData, StudyData, mapping
from servebench.errors import ConfigError
from servebench.measure.columns import in_window, request_metrics, token_slices
from servebench.score.compare import Comparison, Row, Sample, Side
from servebench.score.compare import told as row_told
from servebench.score.fairness import Difference, unequal, varied
from servebench.score.recommend import Answer, Entrant, Level, Rules
from servebench.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd


def ls(words: Sequence[str]) -> int:
    """`ls [key=value ...] [--json]`: the runs that are on disk. Raises ConfigError."""
    from servebench.report.listing import list_runs

    outputs, rest = read.take_outputs(words)
    as_json, rest = read.take_flag(rest, "--json")
    read.no_options("ls", rest, ("--json", "--outputs DIR"))
    studies = read.select(outputs, rest)
    if not studies and not as_json:
        asked = f" that meet {' '.join(rest)}" if rest else ""
        sys.stdout.write(f"there are no runs{asked} in {outputs}\n")
        return 0
    list_runs(studies, as_json=as_json)
    return 0


def show(words: Sequence[str]) -> int:
    """`show RUN|STUDY [--json]`: what it was and what came of it. Raises ConfigError."""
    from servebench.report.listing import show_run, show_study
    from servebench.score.remedies import REMEDIES

    outputs, rest = read.take_outputs(words)
    as_json, rest = read.take_flag(rest, "--json")
    read.no_options("show", rest, ("--json", "--outputs DIR"))
    if len(rest) != 1:
        raise ConfigError(f"show takes one run or study, not {len(rest)}; 'servebench ls' lists them")
    found = read.find(rest[0], outputs)
    if isinstance(found, StudyData):
        if len(found.runs) != 1:
            show_study(found, as_json=as_json)
            return 0
        found = found.runs[0]
    show_run(found, REMEDIES, as_json=as_json)
    return 0


def side_of(run: RunData) -> Side:
    """A run as one side of a comparison: its points with the requests in their windows."""
    from servebench.report.figures import level
    from servebench.report.listing import rows

    metrics = request_metrics(run.requests)
    samples = []
    for row in rows(run.points):
        of_point = metrics[metrics["point"] == row.get("point")]
        start, end = row.get("window_start_ns"), row.get("window_end_ns")
        facts: dict[str, Any] = {
            "level": level(row),
            "repeat": int(row.get("repeat") or 0),
            "verdict": str(row.get("verdict")),
            "doubts": tuple(row.get("doubts") or ()),
        }
        if start is None or end is None or of_point.empty:
            samples.append(Sample(**facts))
            continue
        inside = in_window(of_point, int(start), int(end))
        failed = ~inside["ok"].to_numpy(dtype=bool)
        own = run.requests[run.requests["point"] == row.get("point")]
        latencies: dict[str, Any] = {
            name: np.where(failed, np.inf, inside[name].to_numpy(dtype=np.float64))
            for name in ("ttft_ms", "tpot_ms", "e2e_ms")
        }
        samples.append(
            Sample(
                **facts,
                request_ids=tuple(inside["request_id"]),
                sizes=np.nan_to_num(
                    inside["planned_prompt_tokens"].to_numpy(dtype=np.float64, na_value=np.nan), nan=-1
                ),
                failed=failed,
                throughput_tok_s=token_slices(own, int(start), int(end)),
                work=np.empty((0, 2)) if row.get("concurrency") is None else _work(inside, failed),
                **latencies,
            )
        )
    return Side(name=run.run_id, samples=tuple(samples))


def _work(inside: pd.DataFrame, failed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Tokens brought and seconds held by each request; nothing when an answer's length is not known."""
    tokens = np.where(failed, 0.0, inside["output_tokens"].to_numpy(dtype=np.float64, na_value=np.nan))
    if np.isnan(tokens).any():
        return np.empty((0, 2))
    held_s = (inside["ended_ns"] - inside["sent_ns"]).to_numpy(dtype=np.float64) / NS_PER_S
    return np.column_stack([tokens, np.maximum(held_s, 0.0)])


def _share(text: str, option: str) -> float:
    """`5%` or `0.05` as a share. Raises ConfigError."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise ConfigError(f"{option}={text} is no share between 0 and 1; give a percentage such as 5%")
    return value


def _compared(words: Sequence[str], baseline: str | None, outputs: Path) -> list[tuple[RunData, RunData]]:
    """(baseline, candidate) for each comparison that the words ask for. Raises ConfigError."""
    found = [read.find(word, outputs) for word in words]
    base = read.find(baseline, outputs) if baseline is not None else None
    if base is None and len(found) == 2 and all(isinstance(one, StudyData) and len(one.runs) > 1 for one in found):
        base, found = found[0], found[1:]
    if isinstance(base, StudyData) and len(base.runs) > 1:
        return [pair for one in found for pair in _by_name(base, one)]
    runs = [run for one in found for run in read.runs_of(one)]
    first = read.runs_of(base)[0] if base is not None else (runs[0] if runs else None)
    rest = [run for run in runs if first is not None and run.run_id != first.run_id]
    if first is None or not rest:
        raise ConfigError("compare takes two runs or more, or a study of several: 'servebench ls' lists them")
    return [(first, run) for run in rest]


def _by_name(base: StudyData, other: RunData | StudyData) -> list[tuple[RunData, RunData]]:
    """Runs of two studies that are the same but for the study: by what stands behind their number."""
    known = {run.name.partition("_")[2]: run for run in base.runs}
    if len(known) < len(base.runs):
        known = {run.name: run for run in base.runs}
    pairs = []
    for run in read.runs_of(other):
        twin = known.get(run.name.partition("_")[2]) or known.get(run.name)
        if twin is not None:
            pairs.append((twin, run))
    if not pairs:
        raise ConfigError(
            f"no run of {other.study_id} has a counterpart in the baseline {base.study_id}; name two runs"
        )
    return pairs


COMPARE_OPTIONS = (
    "--baseline RUN",
    "--max-regression 5%",
    "--margin 5%",
    "--varying KEY,...",
    "--with-doubtful",
    "--junit FILE",
    "--markdown FILE",
    "--json",
    "--outputs DIR",
)
EXIT_REGRESSION = 1
EXIT_NOT_JUDGED = 7


def compare(words: Sequence[str]) -> int:
    """`compare A B ...`: verdicts with intervals. Raises ConfigError, StoreError.

    With `--max-regression` it is a gate: 0 when no competing row is worse by more than that, 1 when one is, and 7 when
    nothing could be judged (unequal settings, no valid points, too little data).
    """
    from servebench.report import verdicts
    from servebench.report.listing import console
    from servebench.score.compare import MARGIN
    from servebench.score.compare import compare as judge

    outputs, rest = read.take_outputs(words)
    baseline, rest = read.take_option(rest, "--baseline")
    limit_text, rest = read.take_option(rest, "--max-regression")
    margin_text, rest = read.take_option(rest, "--margin")
    varying, rest = read.take_option(rest, "--varying")
    junit, rest = read.take_option(rest, "--junit")
    markdown, rest = read.take_option(rest, "--markdown")
    as_json, rest = read.take_flag(rest, "--json")
    with_doubtful, rest = read.take_flag(rest, "--with-doubtful")
    read.no_options("compare", rest, COMPARE_OPTIONS)
    limit = _share(limit_text, "--max-regression") if limit_text else None
    margin = _share(margin_text, "--margin") if margin_text else limit or MARGIN
    pairs = _compared(rest, baseline, outputs)
    sides = {run.run_id: side_of(run) for pair in pairs for run in pair}
    comparisons = judge(
        [(sides[a.run_id], sides[b.run_id], differences(a, b, varying)) for a, b in pairs],
        margin=margin,
        with_doubtful=with_doubtful,
    )
    failing = _beyond(comparisons, limit)
    told = [f"{name}: {row_told(row)}" for name, row in failing]
    if markdown:
        verdicts.write_page(Path(markdown), verdicts.to_markdown(comparisons, told, limit))
    if junit:
        verdicts.write_page(Path(junit), verdicts.to_junit(comparisons, failing, limit))
    if as_json:
        sys.stdout.write(verdicts.to_json(comparisons))
    else:
        out = console()
        for one in comparisons:
            verdicts.print_comparison(one, out)
    return 0 if limit is None else _gate(comparisons, told, limit)


def differences(a: RunData, b: RunData, varying: str | None = None) -> tuple[Difference, ...]:
    """What is unequal between two runs, but for what is varied on purpose."""
    on_purpose = [*varied(a.manifest, b.manifest), *(key.strip() for key in (varying or "").split(",") if key.strip())]
    return unequal(a.manifest, b.manifest, varying=on_purpose)


def _beyond(comparisons: Sequence[Comparison], limit: float | None) -> list[tuple[str, Row]]:
    """The regressions that are larger than the limit, with the candidate's name."""
    if limit is None:
        return []
    return [(one.candidate, row) for one in comparisons for row in one.regressions if abs(row.effect or 0) > limit]


def _gate(comparisons: Sequence[Comparison], told: Sequence[str], limit: float) -> int:
    for line in told:
        sys.stderr.write(f"servebench: regression beyond {100 * limit:g} %: {line}\n")
    if told:
        return EXIT_REGRESSION
    unjudged = [one for one in comparisons if one.result in ("not enough data", "unequal_settings")]
    for one in unjudged:
        sys.stderr.write(f"servebench: {one.candidate} cannot be judged: {one.summary}\n")
    return EXIT_NOT_JUDGED if unjudged else 0


def entrant_of(run: RunData) -> Entrant:
    """A run as it takes part in a recommendation: its levels, repeats pooled."""
    from servebench.report.listing import rows

    side = side_of(run)
    levels: dict[str, list[tuple[dict[str, Any], Sample]]] = {}
    for row, sample in zip(rows(run.points), side.samples, strict=True):
        levels.setdefault(sample.level, []).append((row, sample))
    start = mapping(run.manifest.get("cold_start"))
    gpu = mapping(run.config.get("gpu"))
    return Entrant(
        name=run.run_id,
        engine=run.fact("engine") or "",
        model=run.fact("model") or "",
        gpu=run.fact("gpu") or "",
        workload=run.fact("workload") or "",
        levels=tuple(_level(label, parts) for label, parts in levels.items()),
        cold_start_s=None if start.get("shared") else start.get("seconds"),
        price_usd_per_hour=gpu.get("price_usd_per_hour"),
        gpu_count=int(gpu.get("count") or 0),
        manifest=run.manifest,
    )


WORST_LAST = ("valid", "doubtful", "void")


def _level(label: str, parts: Sequence[tuple[dict[str, Any], Sample]]) -> Level:
    row = parts[0][0]
    # a verdict that is not known counts as the worst
    verdicts = [s.verdict if s.verdict in WORST_LAST else "void" for _, s in parts]
    load = row.get("rate") if row.get("rate") is not None else row.get("concurrency")
    return Level(
        row=row,
        label=label,
        load=float(load or 0),
        verdict=max(verdicts, key=WORST_LAST.index),
        doubts=tuple(dict.fromkeys(code for _, s in parts for code in s.doubts)),
        samples=tuple(s for _, s in parts),
    )


def recommend(words: Sequence[str]) -> int:
    """`recommend STUDY|RUN ...`: which run for which use, and how sure that is. Raises ConfigError."""
    from servebench.report.advice import print_answers, to_json
    from servebench.report.listing import console
    from servebench.score.recommend import load_rules, rules_text

    outputs, rest = read.take_outputs(words)
    rules_path, rest = read.take_option(rest, "--rules")
    varying, rest = read.take_option(rest, "--varying")
    show_rules, rest = read.take_flag(rest, "--show-rules")
    as_json, rest = read.take_flag(rest, "--json")
    with_doubtful, rest = read.take_flag(rest, "--with-doubtful")
    options = ("--rules FILE", "--show-rules", "--varying KEY,...", "--with-doubtful", "--json", "--outputs DIR")
    read.no_options("recommend", rest, options)
    if show_rules:
        sys.stdout.write(rules_text())
        return 0
    rules = load_rules(Path(rules_path) if rules_path else None)
    if not rest:
        raise ConfigError(
            "recommend takes a study, or runs to choose among; 'servebench ls' lists them, 'last' is the latest"
        )
    runs = [run for word in rest for run in read.runs_of(read.find(word, outputs))]
    answers = advise(runs, rules, with_doubtful=with_doubtful, varying=varying)
    if as_json:
        sys.stdout.write(to_json(answers))
    else:
        print_answers(answers, console())
    return 0


def advise(
    runs: Sequence[RunData], rules: Rules, *, with_doubtful: bool = False, varying: str | None = None
) -> list[Answer]:
    """The answers of the rules for these runs."""
    from servebench.score.recommend import recommend as judge

    by_name = {run.run_id: run for run in runs}

    def unfair(a: Entrant, b: Entrant, across: Sequence[str]) -> Sequence[Difference]:
        more = [f"{group}.*" for group in across] + (["machine.*"] if "gpu" in across else [])
        told = ",".join([*more, *([varying] if varying else [])])
        return differences(by_name[a.name], by_name[b.name], told)

    return judge([entrant_of(run) for run in runs], rules, unfair=unfair, with_doubtful=with_doubtful)
