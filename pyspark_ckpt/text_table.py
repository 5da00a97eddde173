"""Tables as text: aligned columns below a header, for logs, terminals and notebooks."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from io import StringIO

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_RULE_BELOW_HEADER = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_OTHER_BREAKS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
"""What Python and Rich take for line breaks, too; in a stored name it would forge a line."""

_ANY_WIDTH = 1_000_000  # a cell is wrapped at its own width, never at that of some terminal


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], cell_width: int | None = None
) -> str:
    """Return rows of text as aligned columns below a header.

    Line breaks in a text count as spaces, and the result does not end with a line break.
    `cell_width` is the number of characters after which a cell continues in the next line, or
    ``None`` for never.
    """
    table = Table(box=_RULE_BELOW_HEADER, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in header:
        table.add_column(Text(title))
    for row in rows:
        table.add_row(*(Text(_wrapped(text, cell_width or _ANY_WIDTH)) for text in row))
    return _printed(table)


def text_pairs(pairs: Mapping[str, object]) -> str:
    """Return a name and its value on each line, the values aligned; no line break at the end."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in pairs.items():
        grid.add_row(Text(name), Text(_OTHER_BREAKS.sub("?", str(value))))
    return _printed(grid)


def _wrapped(text: str, width: int) -> str:
    # Rich would make the column as wide as the limit; so its text is wrapped before.
    text = _OTHER_BREAKS.sub("?", text)
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False))


def _printed(table: Table) -> str:
    file = StringIO()
    Console(file=file, width=_ANY_WIDTH, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
