"""Writes of an epoch that can be undone key by key, for keys whose processor may raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark_ckpt.operator.table.writes import (
    DEFAULT_LIMIT_BYTES,
    NOT_WRITTEN,
    EpochWrites,
    Write,
)


class UndoLog:
    """What states must take back in addition to the table if the call under way fails.

    `call` is another number for each call, so that a state notes a thing once per call.
    """

    def __init__(self) -> None:
        self.call = 0
        self._steps: list[Callable[[], None]] = []

    def add(self, step: Callable[[], None]) -> None:
        """Note what takes back a change that is about to happen."""
        self._steps.append(step)

    def begin(self) -> None:
        """Forget the steps of the last call."""
        self.call += 1
        self._steps.clear()

    def undo(self) -> None:
        """Take back what was changed since :meth:`begin`, newest first."""
        while self._steps:
            self._steps.pop()()


class UndoableWrites(EpochWrites):
    """The writes of an epoch, of which those of the call under way can be undone.

    Writes do not move to disk during a call, so the writes of one call must fit into memory next to
    the limit.

    If the writes take more than `limit_bytes` of memory, they move to a temporary store in
    `directory` after the call.
    """

    def __init__(
        self, limit_bytes: int = DEFAULT_LIMIT_BYTES, directory: Path | None = None
    ) -> None:
        super().__init__(limit_bytes, directory)
        self._in_call = False
        self._before: dict[bytes, Any] = {}
        self._below_before: dict[tuple[bytes, bytes], Any] = {}

    def begin(self) -> None:
        """Begin a call: what is written from here on can be undone."""
        self._in_call = True

    def keep(self) -> None:
        """End the call and keep its writes."""
        self._end()
        if self._bytes + self._held_back_bytes > self._limit_bytes:
            self.spill()

    def undo(self) -> None:
        """End the call as if it had written nothing."""
        for key, write in self._before.items():
            _put_back(self._memory, key, write)
        for (prefix, key), write in self._below_before.items():
            _put_back(self._below[prefix], key, write)
        self._end()

    def add(self, key: bytes, value: Write) -> None:
        """Write one entry that no scan has to see."""
        if self._in_call:
            self._note(key)
        super().add(key, value)

    def add_many(self, keys: Sequence[bytes], values: Sequence[Write]) -> None:
        """Write several entries that no scan has to see."""
        if self._in_call:
            for key in keys:
                self._note(key)
        super().add_many(keys, values)

    def add_below(self, prefix: bytes, key: bytes, value: Write) -> None:
        """Write one entry that :meth:`scan` of `prefix` must see."""
        if self._in_call:
            self._note(key)
            if (prefix, key) not in self._below_before:
                below = self._written_below(prefix)
                self._below_before[prefix, key] = below.get(key, NOT_WRITTEN)
        super().add_below(prefix, key, value)

    def add_many_below(self, prefix: bytes, keys: Sequence[bytes], value: Write) -> None:
        """Write one value to several entries that :meth:`scan` of `prefix` must see."""
        if not self._in_call:
            super().add_many_below(prefix, keys, value)
            return
        for key in keys:
            self.add_below(prefix, key, value)

    def add_below_each(
        self, prefixes: Sequence[bytes], keys: Sequence[bytes], value: Write
    ) -> None:
        """Write one value to several entries, each of which :meth:`scan` of its prefix must see."""
        if not self._in_call:
            super().add_below_each(prefixes, keys, value)
            return
        for prefix, key in zip(prefixes, keys, strict=True):
            self.add_below(prefix, key, value)

    def spill(self) -> None:
        """Move all writes in memory to disk, but not during a call."""
        if not self._in_call:
            super().spill()

    def _note(self, key: bytes) -> None:
        if key not in self._before:
            self._before[key] = self._memory.get(key, NOT_WRITTEN)

    def _end(self) -> None:
        self._in_call = False
        self._before.clear()
        self._below_before.clear()


def _put_back(entries: dict[bytes, Write], key: bytes, write: Any) -> None:
    if write is NOT_WRITTEN:
        del entries[key]
    else:
        entries[key] = write
