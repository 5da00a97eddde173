"""Value state: PySpark's methods over a :class:`StateTable`, and those for many keys at once.

Values are tuples in and tuples out. All states work on the table's current key.
"""

from __future__ import annotations

import pandas as pd

from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import Aging
from pyspark_ckpt.operator.values.codec import Codec, Value
from pyspark_ckpt.operator.values.pandas import ValueColumns


class ValueState:
    """One tuple per key; the methods of ``pyspark.sql.streaming.ValueState``.

    Parameters
    ----------
    table, state_id
        The epoch's state, and which one of it this is.
    codec
        Of the state's tuples.
    aging
        How its entries grow old, ``None`` if they never carried a time.
    columns
        The state's schema as pandas columns, for :meth:`getMany` and :meth:`updateMany`.
    """

    def __init__(
        self,
        table: StateTable,
        state_id: bytes,
        codec: Codec,
        aging: Aging | None = None,
        columns: ValueColumns | None = None,
    ) -> None:
        self._table = table
        self._state_id = state_id
        self._codec = codec
        self._aging = aging
        self._columns = columns

    def exists(self) -> bool:
        """Tell whether the key has a value."""
        data = self._table.get_prefetched(self._state_id)
        return data is not None and (self._aging is None or self._aging.shown(data) is not None)

    def get(self) -> Value | None:
        """Return the key's value, ``None`` if it has none."""
        data = self._table.get_prefetched(self._state_id)
        if data is None:
            return None
        if self._aging is None:
            return self._codec.decode(data)
        shown = self._aging.shown(data)
        if shown is None:
            return None
        renewed = self._aging.renewed(data)
        if renewed is not None:
            self._table.put(self._table.stored_key(self._state_id), renewed)
        return self._codec.decode(shown)

    def update(self, newValue: Value) -> None:
        """Set the key's value."""
        data = self._codec.encode(newValue)
        if self._aging is not None:
            data = self._aging.stamp() + data
        self._table.put(self._table.stored_key(self._state_id), data)

    def clear(self) -> None:
        """Remove the key's value."""
        self._table.delete(self._table.stored_key(self._state_id))

    def getMany(self, keys: pd.DataFrame) -> pd.DataFrame:
        """Return the values of several keys as columns, a row per key in their order.

        For ``handleInputBatch``. A key without a value has nulls in all columns; numbers come as
        pandas' nullable types, which keep 64-bit integers exact.

        Parameters
        ----------
        keys
            The frame of keys that ``handleInputBatch`` got, or some of its rows.
        """
        stored_keys = self._table.stored_keys(self._state_id, keys.index.tolist())
        values: list[Value | None] = []
        for key, data in zip(stored_keys, self._table.get_many(stored_keys), strict=True):
            values.append(None if data is None else self._read(key, data))
        return self._value_columns.frame(values, keys.index)

    def updateMany(self, keys: pd.DataFrame, values: pd.DataFrame) -> None:
        """Set the values of several keys from columns, a row per key in their order.

        Parameters
        ----------
        keys
            The frame of keys that ``handleInputBatch`` got, or some of its rows.
        values
            The state's columns by name, as many rows as `keys`.
        """
        stored_keys = self._table.stored_keys(self._state_id, keys.index.tolist())
        stamp = b"" if self._aging is None else self._aging.stamp()
        rows = self._value_columns.rows(values, len(stored_keys))
        for key, row in zip(stored_keys, rows, strict=True):
            self._table.put(key, stamp + self._codec.encode(row))

    def clearMany(self, keys: pd.DataFrame) -> None:
        """Remove the values of several keys of ``handleInputBatch``."""
        for key in self._table.stored_keys(self._state_id, keys.index.tolist()):
            self._table.delete(key)

    def _read(self, key: bytes, data: bytes) -> Value | None:
        if self._aging is None:
            return self._codec.decode(data)
        shown = self._aging.shown(data)
        renewed = None if shown is None else self._aging.renewed(data)
        if renewed is not None:
            self._table.put(key, renewed)
        return None if shown is None else self._codec.decode(shown)

    @property
    def _value_columns(self) -> ValueColumns:
        assert self._columns is not None  # the processor's handle gives them
        return self._columns
