"""Which of two runs is faster, by how much, and how sure that is: the only tests of a difference, and the only verdicts.

`questions` makes a row for each load level and metric of two runs. Its `Difference` comes from starts, by the one model of
starts (`starts`, `analysis/start_model.py`), or from blocks of a tune (`blocks`). `compare` turns the rows of all
starts into verdicts, `looks` those of the first starts, after each planned number of them. Leads, uses and tunes stand on top and
test nothing by themselves.

- The effect is the relative change of the metric from baseline to candidate. A failed request is worse than any latency: it is
  infinite in percentiles, and brings no tokens to throughput.
- The unit is the start of an engine, because two starts of one engine differ and all requests of a start share that (Georges,
  Buytaert and Eeckhout 2007; Kalibera and Jones 2013). Single starts show their difference, with an interval that allows for
  what starts differ by, and have no verdict, except where earlier starts of the same set-ups are known.
- The first question is the mean throughput over all levels. P-values are corrected for all questions (`families`).
- A row is *equal* when its 95% interval lies within the margin; *faster* or *slower* when the corrected p-value is below 5% and
  the interval excludes 0; *equal* again when the interval lies within twice the margin. Otherwise it is *open*.
"""
