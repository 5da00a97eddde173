"""Plain-text tables for errors and terminals."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

_GAP = "  "


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Return rows of text as aligned columns below a header.

    Parameters
    ----------
    header
        One title per column.
    rows
        One text per column; line breaks in them count as spaces.
    width
        Characters after which the text of a cell goes on in the next line.
    """
    cells = [[_lines(text, width) for text in row] for row in [header, *rows]]
    widths = [
        max(len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)
    ]
    ruler = _GAP.join("-" * width for width in widths)
    first, *others = [_row_text(row, widths) for row in cells]
    return "\n".join([first, ruler, *others])


def _lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _row_text(row: Sequence[list[str]], widths: Sequence[int]) -> str:
    return "\n".join(
        _GAP.join(line.ljust(width) for line, width in zip(lines, widths, strict=True)).rstrip()
        for lines in zip_longest(*row, fillvalue="")
    )
