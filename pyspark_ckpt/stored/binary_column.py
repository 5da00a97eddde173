"""Columns of stored keys and values, whose bytes are looked at thousands at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, Any]


class BinaryColumn:
    """The values of a column without nulls, as one piece of bytes and the places where they begin.

    `offsets` has the place where each value begins, and the end of the last one. Other columns may
    share bytes of `data`.
    """

    def __init__(self, offsets: Numbers, data: Numbers) -> None:
        self._offsets = offsets
        self._data = data

    @classmethod
    def of(cls, array: pa.Array) -> BinaryColumn:
        """Return the values of an Arrow array of type ``binary``."""
        _, offsets, data = array.buffers()
        numbers = np.zeros(1, np.int32) if offsets is None else np.frombuffer(offsets, np.int32)
        numbers = numbers[array.offset : array.offset + len(array) + 1].astype(np.int64)
        return cls(numbers, np.frombuffer(data or b"", np.uint8))

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._offsets) - 1

    @property
    def lengths(self) -> Numbers:
        """The number of bytes of each value."""
        return np.diff(self._offsets)

    @property
    def joined(self) -> memoryview:
        """All values, one after the other."""
        return self._data.data[int(self._offsets[0]) : int(self._offsets[-1])]

    def value(self, row: int) -> bytes:
        """Return one value."""
        return bytes(self._data[self._offsets[row] : self._offsets[row + 1]])

    def bytes_at(self, place: int) -> Numbers:
        """Return the byte at a place of each value; 0 for values that end before."""
        starts = self._offsets[:-1] + place
        is_there = starts < self._offsets[1:]
        found = np.zeros(len(self), np.uint8)
        found[is_there] = self._data[starts[is_there]]
        return found

    def numbers(self, width: int, *, from_start: int | None = None) -> Numbers:
        """Return big-endian numbers of so many bytes: the last bytes of each value, or at a place.

        All values must be long enough.
        """
        starts = (
            self._offsets[1:] - width if from_start is None else self._offsets[:-1] + from_start
        )
        places = starts[:, None] + np.arange(width)
        return self._data[places].reshape(-1).view(f">u{width}")

    def between(self, start: int, end: int) -> BinaryColumn:
        """Return the values from row `start` up to row `end`, without `end`."""
        return BinaryColumn(self._offsets[start : end + 1], self._data)

    def take(self, rows: Numbers) -> BinaryColumn:
        """Return some of the values; `rows` says of each whether it is wanted."""
        keep = np.repeat(rows, self.lengths)
        data = self._data[self._offsets[0] : self._offsets[-1]][keep]
        return BinaryColumn(_offsets_of(self.lengths[rows]), data)

    def cut(self, front: int | Numbers, back: int = 0, mark: int | None = None) -> BinaryColumn:
        """Return the values without some bytes at their front and back.

        `front` is one number for all values, or one for each. `mark` is a byte that is put in front
        of each value, and `front` must then be at least 1. ``ValueError`` is raised if a value is
        too short.
        """
        fronts = np.broadcast_to(np.asarray(front, np.int64), len(self))
        lengths = self.lengths - fronts - back
        if len(lengths) and lengths.min() < 0:
            raise ValueError("a stored key or value is cut short")
        start = self._offsets[0]
        is_even = len(lengths) and lengths.min() == lengths.max()
        if is_even and isinstance(front, int) and mark is None:  # a tenth of the time
            table = self._data[start : self._offsets[-1]].reshape(len(lengths), -1)
            kept = table[:, front : front + int(lengths[0])]
            return BinaryColumn(_offsets_of(lengths), kept.reshape(-1))
        data = self._data[start : self._offsets[-1]].copy()
        starts, ends = self._offsets[:-1] - start, self._offsets[1:] - start
        keep = np.ones(len(data), bool)
        for width in np.unique(fronts):
            rows = starts[fronts == width]
            keep[(rows[:, None] + np.arange(width)).reshape(-1)] = False
        if back:
            keep[(ends[:, None] - back + np.arange(back)).reshape(-1)] = False
        if mark is not None:
            data[starts + fronts - 1] = mark
            keep[starts + fronts - 1] = True
            lengths = lengths + 1
        return BinaryColumn(_offsets_of(lengths), data[keep])

    def array(self) -> pa.Array:
        """Return the values as an Arrow array."""
        start = self._offsets[0]
        offsets = pa.py_buffer((self._offsets - start).astype(np.int32))
        data = pa.py_buffer(np.ascontiguousarray(self._data[start : self._offsets[-1]]))
        return pa.Array.from_buffers(pa.binary(), len(self), [None, offsets, data])


def _offsets_of(lengths: Numbers) -> Numbers:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
