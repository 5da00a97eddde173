"""Map state: PySpark's methods and return types over a :class:`StateTable`, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import Aging
from pyspark_ckpt.values.codec import Codec, Value


class MapState:
    """A map of tuples to tuples per key, with the methods of ``pyspark.sql.streaming.MapState``.

    ``handle.getMapState`` returns it in ``init``. A processor calls its methods on executors, for
    the key that it handles. Changes are durable when the epoch is committed. Each entry is stored
    on its own: one lookup reads one entry, however wide the map is.

    Parameters
    ----------
    table : StateTable
        The epoch's view of the state.
    state_id : bytes
        Which state of the table this is.
    key_codec : Codec
        Encodes and decodes the map's keys.
    codec : Codec
        Encodes and decodes the map's values.
    aging : Aging, optional
        How entries grow old; without it they never expire.
    row_type : type of tuple
        Class of the values that :meth:`getValue` returns.

    Examples
    --------
    >>> prices = handle.getMapState("prices", "item string", "cents long")
    >>> prices.updateValue(("tea",), (250,))
    >>> prices.getValue(("tea",))
    Row(cents=250)
    """

    def __init__(
        self,
        table: StateTable,
        state_id: bytes,
        key_codec: Codec,
        codec: Codec,
        aging: Aging | None = None,
        row_type: type[tuple[Any, ...]] = tuple,
    ) -> None:
        self._row_type = row_type
        self._table = table
        self._state_id = state_id
        self._key_codec = key_codec
        self._codec = codec
        self._aging = aging

    def exists(self) -> bool:
        """Return whether :meth:`iterator` would return an entry. It renews and removes none.

        Returns
        -------
        bool
            False for an empty map.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.exists()
        False
        """
        prefix = self._prefix()
        if self._aging is None:
            return self._table.has_any_below(prefix)
        return any(self._aging.shown(data) is not None for _, data in self._table.scan(prefix))

    def getValue(self, key: Value) -> Value | None:
        """Return the value of an entry.

        Parameters
        ----------
        key : tuple
            One value per field of the map's key schema.

        Returns
        -------
        Row or None
            One value per field of the value schema; ``None`` if there is no entry.

        Raises
        ------
        StateValueError
            If the key does not fit the schema.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.updateValue(("tea",), (250,))
        >>> prices.getValue(("tea",)).cents
        250
        """
        below = self._key_codec.encode(key)
        data = self._stored(below)
        if data is not None and self._aging is not None:
            prefix = self._prefix()
            data = self._read(self._aging, prefix, prefix + below, data)
        return None if data is None else tuple.__new__(self._row_type, self._codec.decode(data))

    def containsKey(self, key: Value) -> bool:
        """Return whether :meth:`getValue` would return a value. It neither renews nor removes it.

        Parameters
        ----------
        key : tuple
            One value per field of the map's key schema.

        Returns
        -------
        bool
            False also for an expired entry that ``getValue`` would not return.

        Raises
        ------
        StateValueError
            If the key does not fit the schema.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.containsKey(("tea",))
        False
        """
        data = self._stored(self._key_codec.encode(key))
        return data is not None and (self._aging is None or self._aging.shown(data) is not None)

    def updateValue(self, key: Value, value: Value) -> None:
        """Set an entry.

        Parameters
        ----------
        key : tuple
            One value per field of the map's key schema.
        value : tuple
            One value per field of the value schema.

        Raises
        ------
        StateValueError
            If the key or value does not fit the schema.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.updateValue(("tea",), (250,))
        >>> prices.containsKey(("tea",))
        True
        """
        prefix, entry_key = self._entry_key(key)
        data = self._codec.encode(value)
        if self._aging is not None:
            data = self._aging.stamp() + data
        self._table.write_below(prefix, entry_key, data)

    def iterator(self) -> Iterator[tuple[Value, Value]]:
        """Return an iterator over all entries.

        Returns
        -------
        iterator of tuple
            Pairs of a key and a value, both tuples, in the order of the stored keys.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.updateValue(("tea",), (250,))
        >>> list(prices.iterator())
        [(('tea',), (250,))]
        """
        return self._entries(self._prefix())

    def keys(self) -> Iterator[Value]:
        """Return an iterator over the keys of all entries.

        Returns
        -------
        iterator of tuple
            Each with one value per field of the key schema.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.updateValue(("tea",), (250,))
        >>> list(prices.keys())
        [('tea',)]
        """
        return (key for key, _ in self._entries(self._prefix()))

    def values(self) -> Iterator[Value]:
        """Return an iterator over the values of all entries.

        Returns
        -------
        iterator of tuple
            Each with one value per field of the value schema.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.updateValue(("tea",), (250,))
        >>> list(prices.values())
        [(250,)]
        """
        return (value for _, value in self._entries(self._prefix()))

    def removeKey(self, key: Value) -> None:
        """Remove an entry; has no effect if there is none.

        Parameters
        ----------
        key : tuple
            One value per field of the map's key schema.

        Raises
        ------
        StateValueError
            If the key does not fit the schema.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.updateValue(("tea",), (250,))
        >>> prices.removeKey(("tea",))
        >>> prices.exists()
        False
        """
        prefix, entry_key = self._entry_key(key)
        self._table.write_below(prefix, entry_key, None)

    def clear(self) -> None:
        """Remove all entries.

        Examples
        --------
        >>> prices = handle.getMapState("prices", "item string", "cents long")
        >>> prices.updateValue(("tea",), (250,))
        >>> prices.clear()
        >>> prices.exists()
        False
        """
        prefix = self._prefix()
        keys = [key for key, _ in self._table.scan(prefix)]  # no value is kept
        for key in keys:
            self._table.write_below(prefix, key, None)

    def _entries(self, prefix: bytes) -> Iterator[tuple[Value, Value]]:
        for key, stored in self._table.scan(prefix):
            data = stored if self._aging is None else self._read(self._aging, prefix, key, stored)
            if data is not None:
                yield self._key_codec.decode(key[len(prefix) :]), self._codec.decode(data)

    def _read(self, aging: Aging, prefix: bytes, entry_key: bytes, data: bytes) -> bytes | None:
        """Return what reading an entry gives, and write what reading leaves of it."""
        shown, left = aging.read(data)
        if left is not data and self._table.is_still(entry_key, data):
            self._table.write_below(prefix, entry_key, left)
        return shown

    def _stored(self, below: bytes) -> bytes | None:
        return self._table.get_entry(self._state_id, below)

    def _prefix(self) -> bytes:
        return self._table.stored_key(self._state_id)

    def _entry_key(self, key: Value) -> tuple[bytes, bytes]:
        prefix = self._prefix()
        return prefix, prefix + self._key_codec.encode(key)
