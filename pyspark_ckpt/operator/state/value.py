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
        """Return whether the key has a value that has not expired.

        Returns
        -------
        bool
            False also for an expired value.

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
        shown = self._aging.shown(data)
        if shown is None:
            return None
        renewed = self._aging.renewed(data)
        if renewed is not None:
            self._table.put(self._table.stored_key(self._state_id), renewed)
        return self._codec.decode(shown)

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

    def getMany(self, keys: pd.DataFrame) -> pd.DataFrame:
        """Return the values of several keys as columns, a row per key in their order.

        For ``handleInputBatch``.

        Parameters
        ----------
        keys : pandas.DataFrame
            The frame of keys that ``handleInputBatch`` got, or some of its rows.

        Returns
        -------
        pandas.DataFrame
            A column per field of the schema, with the index of `keys`. A key without a value has
            nulls in all columns. Numbers have pandas' nullable types: 64-bit integers stay exact.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long")
        >>> count.updateMany(keys, pd.DataFrame({"n": [4, 5]}))
        >>> count.getMany(keys)["n"].tolist()
        [4, 5]
        """
        stored_keys = self._table.stored_keys(self._state_id, keys.index.tolist())
        values: list[Value | None] = []
        for key, data in zip(stored_keys, self._table.get_many(stored_keys), strict=True):
            values.append(None if data is None else self._read(key, data))
        return self._value_columns.frame(values, keys.index)

    def updateMany(self, keys: pd.DataFrame, values: pd.DataFrame) -> None:
        """Set the values of several keys from columns, a row per key in their order.

        For ``handleInputBatch``.

        Parameters
        ----------
        keys : pandas.DataFrame
            The frame of keys that ``handleInputBatch`` got, or some of its rows.
        values : pandas.DataFrame
            The state's columns by name, with as many rows as `keys`.

        Raises
        ------
        StateValueError
            If a column is missing, a value does not fit, or the frames differ in length.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long")
        >>> count.updateMany(keys, pd.DataFrame({"n": [1, 1]}))
        >>> count.get()
        (1,)
        """
        stored_keys = self._table.stored_keys(self._state_id, keys.index.tolist())
        stamp = b"" if self._aging is None else self._aging.stamp()
        rows = self._value_columns.rows(values, len(stored_keys))
        for key, row in zip(stored_keys, rows, strict=True):
            self._table.put(key, stamp + self._codec.encode(row))

    def clearMany(self, keys: pd.DataFrame) -> None:
        """Remove the values of several keys.

        For ``handleInputBatch``.

        Parameters
        ----------
        keys : pandas.DataFrame
            The frame of keys that ``handleInputBatch`` got, or some of its rows.

        Examples
        --------
        >>> count = handle.getValueState("count", "n long")
        >>> count.updateMany(keys, pd.DataFrame({"n": [1, 1]}))
        >>> count.clearMany(keys)
        >>> count.exists()
        False
        """
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
