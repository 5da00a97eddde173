"""The rows of a part brought into the order of their keys, with each key in all its forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operator.rows.key_columns import Codes, first_places, stable_order
from pyspark_ckpt.operator.rows.sent_rows import Places
from pyspark_ckpt.operator.table.keys import PartKeys

Key = tuple[Any, ...]
Sent = TypeVar("Sent")
"""Rows as they were sent: record batches in a query, frames of any objects in a harness."""


class KeyColumns(Protocol[Sent]):
    """The columns that the keys of sent rows are in."""

    def joined(self, batches: list[Sent]) -> Sent:
        """Return several batches of rows as one."""

    def taken(self, sent: Sent, places: Places) -> Sent:
        """Return the rows at some places."""

    def key_codes(self, sent: Sent) -> Codes:
        """Return a number for each row: equal for equal keys, and without gaps."""

    def key_groups(self, sent: Sent) -> Places:
        """Return the key group of each row."""

    def encoded_keys(self, sent: Sent) -> pa.BinaryArray:
        """Return the key of each row as it is stored."""

    def keys_of(self, sent: Sent) -> list[Key]:
        """Return the keys of rows as the processor sees them."""


@dataclass(frozen=True, slots=True)
class KeyedRows(Generic[Sent]):
    """All rows of a part, sorted by the stored form of their keys."""

    sent: Sent
    """The rows as they were sent."""
    first: Sent
    """One row of each key, in the order of the keys."""
    stored: PartKeys
    """The keys."""
    bounds: list[int]
    """Where each key's rows begin, and the end of the last."""


def keyed_rows(columns: KeyColumns[Sent], batches: list[Sent]) -> KeyedRows[Sent]:
    """Return rows sorted by key; the rows of a key stay in the order of their arrival."""
    sent = columns.joined(batches)
    codes = columns.key_codes(sent)
    first_rows = columns.taken(sent, first_places(codes))
    stored = PartKeys(columns.key_groups(first_rows), columns.encoded_keys(first_rows))
    rank = np.empty(len(stored), dtype=np.int64)
    rank[stored.order] = np.arange(len(stored))
    places = rank[codes]
    counts = np.bincount(places, minlength=len(stored))
    return KeyedRows(
        columns.taken(sent, stable_order(places)),
        columns.taken(first_rows, stored.order),
        stored,
        [0, *np.cumsum(counts).tolist()],
    )


def user_keys(columns: KeyColumns[Sent], keyed: KeyedRows[Sent]) -> list[Key]:
    """Return the keys as the processor sees them."""
    return columns.keys_of(keyed.first)
