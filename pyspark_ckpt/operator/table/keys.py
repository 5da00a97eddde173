"""The keys of a part of an epoch in their stored form, and where a given key is among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.values.encoded import big_endian, fixed_width, joined, repeated
from pyspark_ckpt.values.words import shown as shown_key

Numbers = np.ndarray[Any, Any]

StoredKey = tuple[bytes, bytes]
"""Key group and encoded key."""

KEY_POSITION = "key_position"
"""The column of Arrow tables that says which key of the part a row belongs to."""


class PartKeys(Sequence[StoredKey]):
    """Key group and encoded key of each key, in the order of their bytes.

    `key_groups` may have any order, and `encoded` is aligned with it. `order` has, for each place
    of this sequence, the place that its key had. `shown` is the frame of these keys that the
    processor got, if it got one.
    """

    def __init__(self, key_groups: Numbers, encoded: pa.BinaryArray) -> None:
        groups = fixed_width(big_endian(key_groups.astype(np.uint16)))
        order = pc.array_sort_indices(joined(groups, encoded))
        self.order: Numbers = order.to_numpy().astype(np.int64)
        self._set(groups.take(order), encoded.take(order))

    def _set(self, groups: pa.BinaryArray, encoded: pa.BinaryArray) -> None:
        self._groups, self._encoded = groups, encoded
        self.shown: pd.DataFrame | None = None
        self._pairs: list[StoredKey] | None = None
        self._below: tuple[bytes, list[bytes]] = b"", []

    @classmethod
    def in_given_order(cls, pairs: Sequence[StoredKey]) -> PartKeys:
        """Return keys in the order in which they are given, rather than in that of their bytes."""
        keys = cls.__new__(cls)
        keys.order = np.arange(len(pairs))
        keys._set(  # noqa: SLF001  # of this class
            pa.array([group for group, _ in pairs], pa.binary()),
            pa.array([encoded for _, encoded in pairs], pa.binary()),
        )
        return keys

    @property
    def encoded(self) -> list[bytes]:
        """The encoded keys, without their groups."""
        return [encoded for _, encoded in self.pairs()]

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._encoded)

    @overload
    def __getitem__(self, place: int) -> StoredKey: ...
    @overload
    def __getitem__(self, place: slice) -> list[StoredKey]: ...
    def __getitem__(self, place: int | slice) -> StoredKey | list[StoredKey]:
        """Return one key, or several."""
        return self.pairs()[place]

    def pairs(self) -> list[StoredKey]:
        """Return all keys as a list, which is faster than this object where each is looked at."""
        if self._pairs is None:
            self._pairs = list(zip(_as_list(self._groups), _as_list(self._encoded), strict=True))
        return self._pairs

    def below(self, state_id: bytes, places: Numbers) -> list[bytes]:
        """Return the stored keys of a state for the keys at some places, not to be changed."""
        groups, encoded = self._groups, self._encoded
        if not np.array_equal(places, np.arange(len(self))):
            wanted = pa.array(places, pa.int64())
            groups, encoded = groups.take(wanted), encoded.take(wanted)
            return _as_list(joined(groups, repeated(state_id, len(groups)), encoded))
        if self._below[0] != state_id:  # a state is most often read, then written
            keys = _as_list(joined(groups, repeated(state_id, len(groups)), encoded))
            self._below = state_id, keys
        return self._below[1]


def _as_list(column: pa.Array) -> list[bytes]:
    return list(column.to_numpy(zero_copy_only=False).tolist())


def positions_of(
    keys: pd.DataFrame | pa.Table, part: Sequence[StoredKey], where: str
) -> np.ndarray[Any, Any]:
    """Return the positions of keys in their part.

    The index of a frame says which keys its rows are; an Arrow table needs a column
    ``key_position``.
    """
    if isinstance(keys, pd.DataFrame):
        positions = keys.index.to_numpy()
        given_by = "the index of the given keys"
    elif not isinstance(keys, pa.Table) or KEY_POSITION not in keys.column_names:
        given = keys.column_names if isinstance(keys, pa.Table) else type(keys).__name__
        raise StateValueError(
            f"{where}: the given keys are {given}: give the table of keys that handleInputArrow "
            f"got, or some of its rows, with its column {KEY_POSITION!r}"
        )
    else:
        positions = keys.column(KEY_POSITION).to_numpy()
        given_by = f"the column {KEY_POSITION!r} of the given keys"
    found = _whole_numbers(positions)
    if found is None or (len(found) and not (found.min() >= 0 and found.max() < len(part))):
        raise StateValueError(
            f"{where}: {given_by} has other values than the positions 0 to {len(part) - 1} of the "
            "keys that the method got: give these keys, or some of their rows, as they are"
        )
    if isinstance(keys, pd.DataFrame) and isinstance(part, PartKeys) and part.shown is not None:
        _check_index(keys, part.shown, where)
    return found


def _whole_numbers(positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return positions, which joins may have changed to floats, as integers.

    ``None`` if one is null or not whole.
    """
    if positions.dtype.kind in "iu" or not len(positions):
        return positions.astype(np.int64)
    try:
        numbers = pa.array(positions, pa.int64())
    except (pa.ArrowException, TypeError):
        return None
    whole: np.ndarray[Any, Any] = numbers.to_numpy(zero_copy_only=False)
    return None if numbers.null_count else whole


def _check_index(keys: pd.DataFrame, shown: pd.DataFrame, where: str) -> None:
    """Raise if keys were numbered anew, as by ``reset_index``: their state would be that of others.

    A processor may change the key columns for its output, and give the frame all the same. So this
    counts only if the index is 0, 1, 2 and so on, and the rows are other keys of the part.
    """
    names, rows = list(shown.columns), len(keys)
    if not rows or not {*names} <= {*keys.columns}:
        return
    if not np.array_equal(keys.index.to_numpy(), np.arange(rows)):
        return
    if all(keys[name].equals(shown[name].iloc[:rows]) for name in names):
        return
    if not _is_a_key(keys[names].iloc[0], shown):  # nearly always so if columns were changed
        return
    given, known = _tuples(keys[names]), _tuples(shown)
    try:
        position_of = {key: position for position, key in enumerate(known)}
        positions = [position_of.get(key) for key in given]
    except TypeError:  # nested keys
        return
    if None in positions or len({*positions}) < rows or positions == list(range(rows)):
        return
    row = next(row for row, position in enumerate(positions) if row != position)
    raise StateValueError(
        f"{where}: row {row} of the given keys is {shown_key(given[row])}, but its index is that "
        f"of {shown_key(known[row])}: the index says which key a row is, so keep it (no "
        "reset_index, ignore_index=True or merge), and the key columns as they are"
    )


def _is_a_key(row: pd.Series[Any], shown: pd.DataFrame) -> bool:
    """Return whether a row is one of the keys."""
    is_it: Any = np.ones(len(shown), np.bool_)
    for name, value in row.items():
        if not pd.api.types.is_scalar(value):  # a nested key
            return False
        column = shown[name]
        is_it = is_it & np.asarray(_equals(column, value), np.bool_)
    return bool(is_it.any())


def _equals(column: pd.Series[Any], value: Any) -> Any:
    if pd.isna(value):
        return column.isna()
    return (column == value).fillna(False)  # noqa: FBT003  # a null of a nullable type


def _tuples(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return rows as tuples; every kind of null is ``None``."""
    columns = (
        [None if is_null else value for value, is_null in zip(column, column.isna(), strict=True)]
        for _, column in frame.items()
    )
    return list(zip(*columns, strict=True))
