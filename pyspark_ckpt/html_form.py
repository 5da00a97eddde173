"""HTML forms of objects for notebooks; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top;overflow-wrap:anywhere;max-width:40em"
_STEP = 1024


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """Return a title and a table of names and values."""
    rows = "".join(
        f'<tr><th style="{_CELL}">{escape(name)}</th><td style="{_CELL}">{_text(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><b>{escape(title)}</b><table><tbody>{rows}</tbody></table></div>"


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a title and a table with a header."""
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_text(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f"<div><b>{escape(title)}</b><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def size_text(size_bytes: float) -> str:
    """Return a size as people read it."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= _STEP and len(units) > 1:
        size /= _STEP
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _text(value: object) -> str:
    return "" if value is None else escape(str(value))
