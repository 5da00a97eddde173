"""Value state: PySpark's methods over a :class:`StateTable`, and those for many keys at once.

Values are tuples in and tuples out. All states work on the table's current key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pandas as pd
import pyarrow as pa

from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import Aging
from pyspark_ckpt.values.codec import Codec, Value
from pyspark_ckpt.values.state_columns import ValueColumns

Keys = TypeVar("Keys", pd.DataFrame, pa.Table)
"""Keys of a part; what is returned for them is of the same kind."""


class ValueState:
    """One tuple per key, with the methods of ``pyspark.sql.streaming.ValueState``.

    ``handle.getValueState`` returns it in ``init``. A processor calls its methods on executors, for
    the key that it handles. Changes are durable when the epoch is committed.

    Parameters
    ----------
    table : StateTable
        The epoch's view of the state.
    state_id : bytes
        Which state of the table this is.
    codec : Codec
        Encodes and decodes the state's tuples.
    aging : Aging, optional
        How entries grow old; without it they never expire.
    columns : ValueColumns, optional
        The state's schema as pandas columns, for :meth:`getMany` and :meth:`updateMany`.

    Examples
    --------
    >>> count = handle.getValueState("count", "n long")
    >>> count.update((1,))
    >>> count.get()
    (1,)
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
        """Return whether :meth:`get` would return a value. It neither renews nor removes one.

        Returns
        -------
        bool
            False also for an expired value that ``get`` would not return.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long")
        >>> count.exists()
        False
        """
        data = self._table.get_prefetched(self._state_id)
        return data is not None and (self._aging is None or self._aging.shown(data) is not None)

    def get(self) -> Value | None:
        """Return the key's value.

        Returns
        -------
        tuple or None
            One value per field of the schema; ``None`` if the key has no value.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long")
        >>> print(count.get())
        None
        >>> count.update((3,))
        >>> count.get()
        (3,)
        """
        data = self._table.get_prefetched(self._state_id)
        if data is None:
            return None
        if self._aging is None:
            return self._codec.decode(data)
        shown, left = self._aging.read(data)
        if left is not data:
            self._table.put(self._table.stored_key(self._state_id), left)
        return None if shown is None else self._codec.decode(shown)

    def update(self, newValue: Value) -> None:
        """Set the key's value.

        Parameters
        ----------
        newValue : tuple
            One value per field of the schema.

        Raises
        ------
        StateValueError
            If the value does not fit the schema.

        Examples
        --------
        >>> place = handle.getValueState("place", "city string, visits int")
        >>> place.update(("Oslo", 2))
        >>> place.get()
        ('Oslo', 2)
        """
        data = self._codec.encode(newValue)
        if self._aging is not None:
            data = self._aging.stamp() + data
        self._table.put(self._table.stored_key(self._state_id), data)

    def clear(self) -> None:
        """Remove the key's value.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long")
        >>> count.update((1,))
        >>> count.clear()
        >>> count.exists()
        False
        """
        self._table.delete(self._table.stored_key(self._state_id))

    def getMany(self, keys: Keys) -> Keys:
        """Return the values of several keys as columns, a row per key in their order.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.

        Returns
        -------
        pandas.DataFrame or pyarrow.Table
            The same kind as `keys`: a column per field of the schema. A key without a value has
            nulls in all columns. A frame has the index of `keys`, and its numbers have pandas'
            nullable types, in which 64-bit integers stay exact.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long")
        >>> count.updateMany(keys, pd.DataFrame({"n": [4, 5]}))
        >>> count.getMany(keys)["n"].tolist()
        [4, 5]
        """
        stored_keys = self._stored_keys(keys)
        stored = self._table.get_many(stored_keys)
        if self._aging is not None:
            stored = self._read(self._aging, stored_keys, stored)
        columns, prefix = self._value_columns, self._codec.prefix
        if isinstance(keys, pd.DataFrame):
            frame = columns.stored_frame(stored, prefix, keys.index)
            if frame is None:
                frame = columns.frame(self._codec.decode_many(stored), keys.index)
            return frame
        table = columns.stored_table(stored, prefix)
        if table is None:
            # Python's times lack instants that Arrow has, and depend on the worker's time zone.
            table = columns.table(self._codec.plain.decode_many(stored))
        return table

    def updateMany(
        self, keys: pd.DataFrame | pa.Table, values: pd.DataFrame | pa.Table | pa.RecordBatch
    ) -> None:
        """Set the values of several keys from columns, a row per key in their order.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.
        values : pandas.DataFrame, pyarrow.Table or pyarrow.RecordBatch
            The state's columns by name, with as many rows as `keys`. In Arrow, columns are cast to
            the types of the schema, and a value that this would change is refused: a decimal with
            more digits after the point has to be rounded before, and integers for a decimal column
            cast to it. In a frame, decimals are rounded as in ``update``, half up.

        Raises
        ------
        StateValueError
            If a column is missing, a value does not fit, or the two differ in length.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long")
        >>> count.updateMany(keys, pd.DataFrame({"n": [1, 1]}))
        >>> count.get()
        (1,)
        """
        stored_keys = self._stored_keys(keys)
        stamp = b"" if self._aging is None else self._aging.stamp()
        prefix = stamp + self._codec.prefix
        encoded = self._value_columns.encoded(values, len(stored_keys), prefix)
        if encoded is None:
            rows = self._value_columns.rows(values, len(stored_keys))
            encoded = [stamp + self._codec.encode(row) for row in rows]
        self._table.put_many(stored_keys, encoded)

    def clearMany(self, keys: pd.DataFrame | pa.Table) -> None:
        """Remove the values of several keys.

        For ``handleInputBatch``, ``handleInputArrow`` and ``handleExpiredTimers``.

        Parameters
        ----------
        keys : pandas.DataFrame or pyarrow.Table
            The keys that the method got, or some of their rows.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long")
        >>> count.updateMany(keys, pd.DataFrame({"n": [1, 1]}))
        >>> count.clearMany(keys)
        >>> count.exists()
        False
        """
        self._table.delete_many(self._stored_keys(keys))

    def _stored_keys(self, keys: pd.DataFrame | pa.Table) -> list[bytes]:
        positions = self._table.positions_of(keys, self._value_columns.what)
        return self._table.stored_keys(self._state_id, positions)

    def _read(
        self, aging: Aging, keys: Sequence[bytes], stored: Sequence[bytes | None]
    ) -> list[bytes | None]:
        """Return what reading several entries gives, and write what reading leaves of them."""
        read = [(None, None) if data is None else aging.read(data) for data in stored]
        changed = [
            (key, left)
            for key, data, (_, left) in zip(keys, stored, read, strict=True)
            if left is not data
        ]
        if changed:
            self._table.put_many(*zip(*changed, strict=True))
        return [shown for shown, _ in read]

    @property
    def _value_columns(self) -> ValueColumns:
        assert self._columns is not None  # the processor's handle gives them
        return self._columns
