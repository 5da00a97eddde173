"""Keys with a row whose values Python does not have: found where a quarantine takes such keys.

It is looked for only after a part of an epoch could not be made, so that other epochs pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyspark_ckpt.operator.rows.keyed import KeyedRows, keyed_rows
from pyspark_ckpt.operator.rows.mode import InputMode
from pyspark_ckpt.operator.rows.sent_rows import taken
from pyspark_ckpt.operator.table.keys import StoredKey
from pyspark_ckpt.values.shown import ValueNotHeldError


@dataclass(frozen=True, slots=True)
class UnheldKey:
    """A key with a row that cannot be shown to the processor."""

    stored: StoredKey
    sent: Any
    error: ValueNotHeldError


def divided(mode: InputMode, batches: list[Any]) -> tuple[list[UnheldKey], list[Any]]:
    """Return the keys of a part that the processor cannot get, and the rows of all other keys.

    `batches` is not changed. ValueNotHeldError is raised if a key itself is such a value, because
    nothing of it could be shown or released.
    """
    keyed = keyed_rows(mode.columns, batches)
    found = dict(_unheld(mode, keyed, 0, len(keyed.stored)))
    pairs = keyed.stored.pairs()
    unheld = [
        UnheldKey(pairs[place], _rows_of(keyed, place, place + 1), error)
        for place, error in found.items()
    ]
    is_held = np.ones(len(keyed.stored), dtype=bool)
    is_held[list(found)] = False
    rows = np.flatnonzero(np.repeat(is_held, np.diff(keyed.bounds)))
    return unheld, [taken(keyed.sent, rows)] if len(rows) else []


def _unheld(
    mode: InputMode, keyed: KeyedRows, start: int, stop: int
) -> Iterator[tuple[int, ValueNotHeldError]]:
    """Yield the places of such keys between two places; halves without any are tried once."""
    rows = [_rows_of(keyed, start, stop)]
    try:
        mode.part(rows)
    except ValueNotHeldError as exc:
        if stop - start > 1:
            middle = (start + stop) // 2
            yield from _unheld(mode, keyed, start, middle)
            yield from _unheld(mode, keyed, middle, stop)
            return
        mode.columns.keys_of(keyed_rows(mode.columns, rows).first)
        yield start, exc


def _rows_of(keyed: KeyedRows, start: int, stop: int) -> Any:
    return taken(keyed.sent, np.arange(keyed.bounds[start], keyed.bounds[stop]))
