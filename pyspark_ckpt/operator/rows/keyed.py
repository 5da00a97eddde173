"""The rows of a part brought into the order of their keys, with each key in all its forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.key_columns import first_places, stable_order
from pyspark_ckpt.operator.rows.sent_rows import SentRows, joined, taken
from pyspark_ckpt.operator.table.keys import PartKeys

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """All rows of a part, sorted by the stored form of their keys."""

    sent: pa.RecordBatch
    """The rows as they were sent."""
    first: pa.RecordBatch
    """One row of each key, in the order of the keys."""
    stored: PartKeys
    """The keys."""
    bounds: list[int]
    """Where each key's rows begin, and the end of the last."""


def keyed_rows(columns: InputColumns, batches: SentRows) -> KeyedRows:
    """Return rows sorted by key; the rows of a key stay in the order of their arrival."""
    sent = joined(batches)
    codes = columns.key_codes(sent)
    first_rows = taken(sent, first_places(codes))
    stored = PartKeys(columns.key_groups(first_rows), columns.encoded_keys(first_rows))
    rank = np.empty(len(stored), dtype=np.int64)
    rank[stored.order] = np.arange(len(stored))
    places = rank[codes]
    counts = np.bincount(places, minlength=len(stored))
    return KeyedRows(
        taken(sent, stable_order(places)),
        taken(first_rows, stored.order),
        stored,
        [0, *np.cumsum(counts).tolist()],
    )
