"""The answer of a study as data: what the last screen, the report's first screen and MLflow's description show.

Everything here rests on the comparisons of `servebench compare`: an answer never claims more than they do.
"""

from servebench.analysis.answer.build import answer_of
from servebench.analysis.answer.model import Answer

__all__ = ["Answer", "answer_of"]
