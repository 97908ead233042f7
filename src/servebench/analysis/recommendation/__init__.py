"""Which run is best for which use case, by rules that the user can edit, and how sure that is.

A run's score for a use case is one number at one load level. The whole rule must hold, not only its last step: whether a level
meets the SLO is *met*, *missed* or *undecided* (`objectives`), and the first of the ranking wins only if it leads with every
undecided level taken against it and for its rivals. The lead has an interval over starts of the engines, as in `comparison`;
where each was started once, only a lead beyond what starts differ by is a win. With several rivals each interval is wider
(Bonferroni), so that "best of all" is as sure as it says. Doubtful points take part and are named; a win on them is
provisional. "No clear difference" is a full answer.
"""
