"""Which run is best for which use case, by rules that the user can edit, and how sure that is.

A run's score for a use case is one number at one load level. The lead of the winner over each rival has an interval:
blocks of requests are resampled on both sides (a throughput from its own error), and an allowance for how much two starts of
one engine differ is added, as in `comparison`. With several rivals each interval is widened (Bonferroni), so that "best of
all" is as sure as it says. "No clear winner" is a full answer.
"""
