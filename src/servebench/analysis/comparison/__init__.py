"""Which of two runs is faster, by how much, and how sure that is.

For each load level that both runs have and each metric of METRICS:

- the effect is the relative change of the metric from baseline to candidate;
- a failed request is worse than any latency: it is infinite in percentiles, and brings no tokens to throughput;
- requests of one point are not independent (they share engine steps, and the engine's speed wanders), so blocks of
  consecutive requests are resampled and permuted, or of time for a throughput (batch means: Schmeiser 1982; block
  bootstrap: Künsch 1989);
- where both runs sent the same requests (ids, sizes), each request is compared with its counterpart: the effect is the median
  ratio, tested by flipping the signs of whole blocks (Good 2005, chapter 3); otherwise the ratio of the two statistics is
  tested by permuting blocks between the runs;
- with three repeats or more on both sides the repeats are compared: Welch's t-test on the logarithms (Welch 1947);
- two throughputs are compared by Welch's t-test on their logarithms, each with the error of `statistics.rate_error`, because
  neither requests nor slices of time are independent: streams in step begin and end together;
- a run is one start of an engine, and two starts differ by themselves: an allowance (START_SD) is added to every interval
  in quadrature, because no number of requests can measure it;
- p-values of all rows of all comparisons made together are corrected with Holm's method (Holm 1979).

A row is *faster* or *slower* when the corrected p-value is below 5%, the interval excludes 0, and the effect is at least the
margin. It is *no difference larger than x%* when the 95% interval lies within x, and x is at most twice the margin. Otherwise
there is *not enough data*.
"""
