"""Text from elsewhere (engines, models, servers, stored files), made harmless for each medium that shows it.

Control characters move a terminal's cursor, set its title or write its clipboard; directional and invisible ones make one
text look like another. All become U+FFFD. Letters, marks and emoji of any script stay, with the joiners that they need.
"""

import re
from collections.abc import Callable

UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"
_NUMBERED = re.compile(r"^(\d{1,9})(?=[.)](\s|$))")
SHORT_CHARACTERS = 1000
_COLOUR = re.compile(r"(?:\x1b\[|\x9b)[0-9;:]*m")
"""Engines colour their logs; without the colour the line reads as it was meant."""
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e00ff]"
    # joiners make emoji of several, and words of Persian and of India; in ASCII they only hide
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
_REGIONAL_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f")
_ONLY_ASCII = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_LINE_BREAKS = re.compile(r"\r\n?|\n")
_FORMULA = re.compile(r"'*\s*[=+\-@\uff1d\uff0b\uff0d\uff20|%]|'*[\t\r\n]")
_MARKUP = {ord(sign): f"\\{sign}" for sign in "\\`*{}[]<>|#~$&"}
_MARKDOWN = re.compile(
    r"__++|(?<![^\W_])_|_(?![^\W_])|:(?=//|[\w/+-]++:)|(?<=www)\.|^[-+=](?=\s|[-+=]|$)", re.IGNORECASE
)
"""What is markup in some places only; an underscore inside a word emphasizes nothing."""


def clean_terminal(text: str) -> str:
    """Return text without anything that acts on a terminal; line feeds and tabs stay."""
    if not _suspect(text):
        return text
    return _outside_flags(lambda part: _HARMFUL.sub(UNPRINTABLE, part), _COLOUR.sub("", text.replace("\r\n", "\n")))


def _suspect(text: str) -> bool:
    """Whether text may hold a harmful character; a long one is judged by its different characters."""
    if text.isascii():
        return _ONLY_ASCII.search(text) is not None
    return _HARMFUL.search(text if len(text) < SHORT_CHARACTERS else " ".join({*text})) is not None


def _outside_flags(change: Callable[[str], str], text: str) -> str:
    """Apply a change to everything but flags of regions, which are spelled in otherwise invisible characters."""
    start, parts = 0, []
    for flag in _REGIONAL_FLAG.finditer(text):
        parts += [change(text[start : flag.start()]), flag.group()]
        start = flag.end()
    return "".join([*parts, change(text[start:])])


def clean_line(text: str) -> str:
    """Return text as one line for a terminal: line breaks and tabs become blanks."""
    return clean_terminal(_LINE_BREAKS.sub(" ", text).replace("\t", " "))


def in_one_line(text: str, length_max: int) -> str:
    """Return text from a server or tool as one line of at most `length_max` characters, without harmful ones."""
    return clean_terminal(" ".join(text[: 4 * length_max].split())[:length_max])


clean_html = clean_terminal
"""For a finished page, whose templates escape markup: characters that HTML forbids or that deceive are replaced."""
clean_xml = clean_terminal
"""For a document whose markup an XML library escaped: XML cannot hold control characters."""
clean_tracking = clean_terminal
"""For names, parameters and tags of a tracking server, which shows them as plain text."""


def clean_markdown(text: object) -> str:
    """Return text as one line of Markdown (GitHub's, MLflow's and Streamlit's) that formats, links and loads nothing."""
    plain = clean_line(str(text)).strip().translate(_MARKUP)
    return _NUMBERED.sub(r"\1\\", _MARKDOWN.sub(lambda found: "\\" + "\\".join(found[0]), plain))


def markdown_code(text: str) -> str:
    """Return text as a code span of Markdown."""
    return f"`{clean_line(text).replace('`', chr(0x2019))}`"


def clean_csv(value: object) -> object:
    """Return the value of a CSV cell: a text that a spreadsheet would calculate gets an apostrophe before it; numbers stay.
    `csv_text` takes the apostrophe off again."""
    if not isinstance(value, str):
        return value
    text = clean_terminal(value)
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def csv_text(cell: str) -> str:
    """Return the text of a CSV cell that `clean_csv` made."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) and not _is_number(cell[1:]) else cell


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) is not None
