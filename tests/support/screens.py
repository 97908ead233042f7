"""What a terminal shows of blocks."""

from io import StringIO

from servebench.report.terminal.console import CleanConsole, print_blocks


def screen_of(blocks, width=80, *, soft_wrap=False):
    """Return blocks as a terminal of this width shows them, without colours; with `soft_wrap` as a file has them."""
    out = StringIO()
    print_blocks(blocks, CleanConsole(out, width=width, soft_wrap=soft_wrap))
    return out.getvalue()
