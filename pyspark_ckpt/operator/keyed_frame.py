"""The rows of a part as one pandas frame, sorted by key: what PySpark's pandas mode would show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pyspark_ckpt.operator.codec import key_encoder
from pyspark_ckpt.operator.input_columns import InputColumns
from pyspark_ckpt.operator.input_mode import KeyRows
from pyspark_ckpt.operator.stored_keys import encode_key_group


@dataclass(frozen=True, slots=True)
class KeyedFrame:
    """All rows of a part, those of a key side by side, keys in the order of their stored form."""

    frame: pd.DataFrame
    keys: list[KeyRows]
    """The keys, without rows."""
    bounds: list[int]
    """Where each key's rows begin, and the end of the last."""


def keyed_frame(input_columns: InputColumns, frames: list[pd.DataFrame]) -> KeyedFrame:
    """Return the rows of a part in the user's columns, sorted by key, else in arrival order."""
    sent = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    codes, sent_keys = _factorized(input_columns.sent_keys(sent))
    first_rows = _first_rows(codes, len(sent_keys))
    key_groups = input_columns.key_groups(sent)[first_rows].tolist()
    keys = _keys(input_columns, sent_keys, key_groups)
    order_of_keys = sorted(
        range(len(keys)), key=lambda at: (keys[at].key_group, keys[at].encoded_key)
    )
    rank = np.empty(len(keys), dtype=np.int64)
    rank[order_of_keys] = np.arange(len(keys))
    places = rank[codes]
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], np.arange(len(keys) + 1)).tolist()
    frame = input_columns.pandas_frame(sent.take(order))
    return KeyedFrame(frame, [keys[at] for at in order_of_keys], bounds)


def _keys(
    input_columns: InputColumns, sent_keys: list[Any], key_groups: list[int]
) -> list[KeyRows]:
    encode = key_encoder()
    keys = []
    for sent_key, key_group in zip(sent_keys, key_groups, strict=True):
        sent = input_columns.key_tuple(sent_key)
        keys.append(
            KeyRows(encode_key_group(key_group), encode(sent), input_columns.user_key(sent), None)
        )
    return keys


def _factorized(sent_keys: Any) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """Return each row's key as a number, and the keys by number."""
    numbers: dict[Any, int] = {}
    codes = np.fromiter(
        (numbers.setdefault(key, len(numbers)) for key in sent_keys),
        dtype=np.int64,
        count=len(sent_keys),
    )
    return codes, list(numbers)


def _first_rows(codes: np.ndarray[Any, Any], keys: int) -> np.ndarray[Any, Any]:
    first = np.empty(keys, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first
