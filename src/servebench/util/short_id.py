"""Short ids of studies: `1122-k7x`, which people can say and type."""

import re
import time

BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"
OWN = re.compile(r"(\d{4}-[0-9a-z]{3})(?:_|$)")
LAST = re.compile(r"last(?:~(\d+))?")
"""How commands name the latest study, or the one so many before it."""
STEP_S = 2
"""A day has 43,200 steps of two seconds, which three characters of base 36 can count."""


def new_short_id(now_s: float) -> str:
    """Return the short id of a study that starts now: month, day, and the time of day in base 36, so that ids sort by time."""
    at = time.localtime(now_s)
    step = (at.tm_hour * 3600 + at.tm_min * 60 + min(at.tm_sec, 59)) // STEP_S
    digits = "".join(BASE36[step // 36**place % 36] for place in (2, 1, 0))
    return f"{at.tm_mon:02d}{at.tm_mday:02d}-{digits}"


def short_id(study_id: str) -> str:
    """Return the short id of a study by its folder's name: its own, or the name that the user chose."""
    own = OWN.match(study_id)
    return own[1] if own else study_id
