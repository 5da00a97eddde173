"""Markdown tables that can be read as plain text."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as a table; the first row is the header. The first column is aligned left."""
    columns = range(len(rows[0]))
    widths = [max(3, *(len(row[column]) for row in rows)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * (width - 1) + ":" if at else "-" * width for at, width in enumerate(widths)]
    return [line(rows[0]), line(rule), *map(line, rows[1:])]
