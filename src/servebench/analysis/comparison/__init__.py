"""Which of two runs is faster, by how much, and how sure that is.

For each load level that both runs have and each metric of METRICS:

- the effect is the relative change of the metric from baseline to candidate;
- a failed request is worse than any latency: it is infinite in percentiles, and brings no tokens to throughput;
- the unit is the start of an engine, because two starts of one engine differ and all requests of a start share that (`starts`:
  Georges, Buytaert and Eeckhout 2007; Kalibera and Jones 2013). Starts that sent the same requests are compared by the
  paired t-test on logarithms, others by Welch's;
- runs with a single start show their difference and what their own requests say of it (`within_run`). They get a verdict only
  where earlier starts of the same set-ups show by how much starts differ;
- p-values are corrected by families (`families`).

A row is *no difference larger than x%* when the 95% interval lies within x, and x is at most the margin; *faster* or *slower*
when the corrected p-value is below 5% and the interval excludes 0; *no difference* again when x is at most twice the margin.
Otherwise there is *not enough data*.
"""
