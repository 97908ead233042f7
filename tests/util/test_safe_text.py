import csv
import io

import pytest
from markdown_it import MarkdownIt

from servebench.util import safe_text

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = (
    *("\x1b]0;title\x07", "\x1b]52;c;aGk=\x1b\\", "\x1b[2J", "\x9b2J", "\x1b[31", "a\x08b", "a\rb", "\x00", "\x7f"),
    *("\x85", "\u2028", "\u202egpj.exe", "\u2066x\u2069", "pay\u200bpal", "pay\u200dpal", "\ufeffx", "\u00ad"),
    *("\ud800", "\U000e0041\U000e0042"),
)
ORDINARY = (
    *("Größe äöüß, naïve", "日本語\u3000クライアント 中文 한국어", "👩‍👩‍👧 👍🏽 ❤️ 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🇩🇪", "می‌خواهم", "क्‍ष", "שלום"),
    *("e\u0301", "± · → ½", "tab\tline\nnext"),
)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("around", ["{}", "before {} after", "日{}本", "{}" + "ü" * 2000])
def test_nothing_of_a_hostile_text_acts(text, around):
    shown = safe_text.clean_terminal(around.format(text))
    assert not safe_text._HARMFUL.search(shown)
    assert safe_text.clean_terminal(shown) == shown
    shown.encode()


@pytest.mark.parametrize("text", ORDINARY)
@pytest.mark.parametrize("times", [1, 300])
def test_ordinary_text_stays(text, times):
    assert safe_text.clean_terminal(text * times) == text * times
    assert safe_text.clean_csv(text) == text


def test_colours_of_a_log_go_and_leave_nothing_that_becomes_one():
    assert safe_text.clean_terminal("\x1b[31mERROR\x1b[0m x\r\n") == "ERROR x\n"
    assert "\x1b" not in safe_text.clean_terminal("\x1b[\x1b[0m31m")


@pytest.mark.parametrize(
    "text",
    [
        *("[a](javascript:x)", "![](http://x/y)", "http://x.example/", "www.x.example", "<img src=x>", "<!-- x"),
        *("&lt;b&gt;", "*a* _b_ ~~c~~", "`x`", "$x$", "a\n# b", "- a", "+ a", "12. a", "1) a", "> a", "===", "---"),
        *("| a | b |", "\\*a\\*", ":red[x]", ":material/add:", "a\r\n- b"),
    ],
)
def test_markdown_shows_the_text_itself(text):
    tokens = MARKDOWN.parse(safe_text.clean_markdown(text))
    assert [one.type for one in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    inline = tokens[1].children
    assert {one.type for one in inline} <= {"text", "text_special"}
    assert "".join(one.content for one in inline) == safe_text.clean_line(text).strip()


@pytest.mark.parametrize(
    "text",
    [
        *("=1+1", "+x", "-x", "@SUM(1)", "\tx", " =1", "'=1", "''+x", "\uff1d1", "-", "-5", "1e5", "x=1", "it's"),
        "'quoted'",
    ],
)
def test_no_text_of_a_csv_is_a_formula_and_all_is_read_back(text):
    cell = safe_text.clean_csv(text)
    assert safe_text.csv_text(cell) == text
    stripped = cell.lstrip("\t\r\n ")
    assert stripped[0] not in "=+-@\uff1d" or float(stripped) is not None
    assert cell[0] not in "\t\r"
    file = io.StringIO()
    csv.writer(file).writerow([cell])
    assert safe_text.csv_text(next(csv.reader(io.StringIO(file.getvalue(), newline="")))[0]) == text


def test_numbers_of_a_csv_stay_numbers():
    assert [safe_text.clean_csv(value) for value in (-1, -1.5, None, True)] == [-1, -1.5, None, True]
