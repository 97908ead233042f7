"""The page of the documentation that lists the warnings.

`python -m servebench.analysis.warnings.reference > docs/warnings.md` writes it; a test fails while it is out of date.
"""

import sys

from servebench.analysis.warnings.catalog import AFFECTS_ALL, CATALOG, SPEED, WarningType

INTRODUCTION = """# Warnings

This page is generated from `servebench.analysis.warnings.catalog`: change it there, then run `make reference`.

A point carries the codes of its warnings (column `doubts`), and `servebench show` prints each with its figures. **void**: the
point says nothing. **doubtful**: the numbers named may be wrong; comparisons are wider or provisional. **mark**: worth
knowing, the verdict stays.

| code | effect | numbers | meaning | what to do |
|---|---|---|---|---|
"""


def warning_reference() -> str:
    """Return the page as Markdown."""
    return INTRODUCTION + "".join(_row(one) for one in CATALOG.values())


def _row(one: WarningType) -> str:
    effect = "void" if one.void else "mark" if one.mark else "doubtful"
    groups = {AFFECTS_ALL: "all", SPEED: "all speeds", (): "none"}
    numbers = groups.get(one.affects) or ", ".join(one.affects)
    cells = (f"`{one.code}`", effect, numbers, one.meaning, one.remedy)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    sys.stdout.write(warning_reference())
