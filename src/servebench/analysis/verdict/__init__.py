"""Which of two runs is faster, by how much, and how sure that is: the only tests of a difference, and the only verdicts.

`questions` makes a row for each load level and metric of two runs. Evidence (`model.Evidence`) gives its `Difference`: fixed
starts (`starts`), a look of `study.until=decided` (`looks`), the requests of single starts (`within_run`), or blocks of a tune
(`blocks`); another model of starts is one more class. `compare` and `looks` turn rows into verdicts. Leads, uses and tunes stand
on top and test nothing by themselves.

- The effect is the relative change of the metric from baseline to candidate. A failed request is worse than any latency: it is
  infinite in percentiles, and brings no tokens to throughput.
- The unit is the start of an engine, because two starts of one engine differ and all requests of a start share that (Georges,
  Buytaert and Eeckhout 2007; Kalibera and Jones 2013). Single starts show their difference without a verdict, except where
  earlier starts of the same set-ups show by how much starts differ; `one_start` has what they are taken to differ by otherwise.
- P-values are corrected for the number of levels, metrics and pairs (`families`).
- A row is *equal* when its 95% interval lies within the margin; *faster* or *slower* when the corrected p-value is below 5% and
  the interval excludes 0; *equal* again when the interval lies within twice the margin. Otherwise it is *open*.
"""

from servebench.analysis.verdict.model import Difference, Evidence, Verdict, VerdictKind
from servebench.analysis.verdict.reasons import Method, MethodKind, Reason, ReasonKind, without_repeats

__all__ = [
    "Difference",
    "Evidence",
    "Method",
    "MethodKind",
    "Reason",
    "ReasonKind",
    "Verdict",
    "VerdictKind",
    "without_repeats",
]
