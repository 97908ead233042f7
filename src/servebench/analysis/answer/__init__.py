"""The answer of a study as data: what the last screen, the report's first screen and MLflow's description show.

Everything here rests on the comparisons of `servebench compare`: an answer never claims more than they do.
"""
