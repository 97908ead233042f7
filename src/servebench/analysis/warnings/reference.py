"""The page of the documentation that lists the warnings.

`python -m servebench.analysis.warnings.reference > docs/warnings.md` writes it; a test fails while it is out of date.
"""

import sys

from servebench.analysis.warnings.catalog import AFFECTS_ALL, CATALOG, SPEED, WarningType
from servebench.util.markdown import table

INTRODUCTION = """# Warnings

This page is generated from `servebench.analysis.warnings.catalog`: change it there, then run `make reference`.

A point carries the codes of its warnings (column `doubts`), and `servebench show` prints each with its figures. **void**: the
point says nothing. **doubtful**: the numbers named may be wrong; comparisons are wider or provisional. **mark**: worth
knowing, the verdict stays.
"""


def warning_reference() -> str:
    """Return the page as Markdown."""
    head = ("code", "effect", "numbers", "meaning", "what to do")
    return "\n".join([INTRODUCTION, *table(head, map(_row, CATALOG.values()), left=range(5), escaped=True)]) + "\n"


def _row(one: WarningType) -> tuple[str, ...]:
    effect = "void" if one.void else "mark" if one.mark else "doubtful"
    groups = {AFFECTS_ALL: "all", SPEED: "all speeds", (): "none"}
    numbers = groups.get(one.affects) or ", ".join(one.affects)
    return f"`{one.code}`", effect, numbers, one.meaning, one.remedy


if __name__ == "__main__":
    sys.stdout.write(warning_reference())
