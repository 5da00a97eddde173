"""The keys of a part of an epoch in their stored form, as columns and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operator.values.message_pack_columns import (
    big_endian,
    fixed_width,
    joined,
    repeated,
)

Numbers = np.ndarray[Any, Any]
StoredKey = tuple[bytes, bytes]
"""Key group and encoded key."""


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
        self._groups, self._encoded = groups.take(order), encoded.take(order)
        self.shown: pd.DataFrame | None = None
        self._pairs: list[StoredKey] | None = None
        self._below: tuple[bytes, list[bytes]] = b"", []

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
