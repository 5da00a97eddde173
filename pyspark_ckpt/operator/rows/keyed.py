"""The rows of a part brought into the order of their keys, with each key in all its forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from pyspark_ckpt.operator.rows.key_columns import Codes, first_places, stable_order
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.operator.values.codec import key_encoder

Key = tuple[Any, ...]


class KeyColumns(Protocol):
    """The columns that the keys of sent rows are in."""

    def key_codes(self, frame: pd.DataFrame) -> Codes:
        """Return a number for each row: equal for equal keys, and without gaps."""

    def key_groups(self, frame: pd.DataFrame) -> np.ndarray[Any, Any]:
        """Return the key group of each row."""

    def sent_keys(self, frame: pd.DataFrame) -> Sequence[Key]:
        """Return the key of each row in its shuffle form."""

    def user_keys(self, sent_keys: Sequence[Key]) -> Sequence[Key]:
        """Return keys as the user's processor sees them."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """All rows of a part, sorted by the stored form of their keys."""

    frame: pd.DataFrame
    """The rows as they were sent."""
    stored: list[tuple[bytes, bytes]]
    """Key group and encoded key of each key."""
    keys: list[Key]
    """The keys as the processor sees them."""
    bounds: list[int]
    """Where each key's rows begin, and the end of the last."""


def keyed_rows(columns: KeyColumns, frames: list[pd.DataFrame]) -> KeyedRows:
    """Return rows sorted by key; the rows of a key stay in the order of their arrival."""
    sent = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    codes = columns.key_codes(sent)
    first_rows = sent.take(first_places(codes))
    sent_keys = columns.sent_keys(first_rows)
    key_groups = list(map(encode_key_group, columns.key_groups(first_rows).tolist()))
    encoded = list(map(key_encoder(), sent_keys))
    order = _order_of(key_groups, encoded)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    places = rank[codes]
    counts = np.bincount(places, minlength=len(order))
    user_keys = columns.user_keys(sent_keys)
    return KeyedRows(
        sent.take(stable_order(places)),
        [(key_groups[at], encoded[at]) for at in order],
        [user_keys[at] for at in order],
        [0, *np.cumsum(counts).tolist()],
    )


def _order_of(key_groups: list[bytes], encoded: list[bytes]) -> list[int]:
    stored: Callable[[int], bytes] = list(
        map(bytes.__add__, key_groups, encoded)
    ).__getitem__  # key groups are all of one length
    return sorted(range(len(encoded)), key=stored)
