"""A copy of a subtask's state on the driver, which follows the committed versions.

It is a backend, as executors have it, and the newest segments in memory: a dict of each, which is
also put in key order once a prefix is asked for. A new epoch costs the decoding of its segment.
Segments go into the backend when they are large, in another thread. One dict of all segments takes
five times as long to extend, because it does not fit into the processor's caches (measured).
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from operator import lt
from pathlib import Path
from typing import TypeVar

from pyspark_ckpt.formats.handle import EMPTY_VERSION, Handle
from pyspark_ckpt.operator.durable.local_copy import at_version
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshots
from pyspark_ckpt.operator.durable.stored_files import segment_changes
from pyspark_ckpt.storage.base import WorkerStorage
from state_backends import Changes, StateBackend, StateBackendError

_FOLD_BYTES = 32 << 20
"""Segments of so many bytes go into the backend; fewer stay in memory."""

_FOLD_SEGMENTS = 500
"""So many segments go into the backend even if they are small: a read by prefix looks into each."""

_STEP_ENTRIES = 1000
"""A read waits for the backend for about the time that it takes to write so many entries."""

FOLDING = "pyspark_ckpt live state"
"""The name of the threads that put segments into the backend."""

R = TypeVar("R")


class Replica:
    """One subtask's state at the version that was asked for last.

    Calls of :meth:`entries` and :meth:`value` do not overlap, and ask for one version after the
    other.
    """

    def __init__(self, backend_type: str, storage: WorkerStorage) -> None:
        self._backend_type = backend_type
        self._storage = storage
        self._directory = tempfile.TemporaryDirectory(
            prefix="pyspark_ckpt-live-", ignore_cleanup_errors=True
        )
        self._lock = threading.Lock()
        self._backend: StateBackend | None = None
        self._version = EMPTY_VERSION
        self._writes = _Writes()
        self._folded: _Writes | None = None
        self._folding: threading.Thread | None = None

    def value(self, handle: Handle, key: bytes) -> bytes | None:
        """Return the value of one stored key at a version, ``None`` if there is none."""
        return self._tried_twice(lambda: self._value(handle, key))

    def entries(self, handle: Handle, prefix: bytes) -> Changes:
        """Return the entries of a version whose stored keys begin with `prefix`, in key order."""
        return self._tried_twice(lambda: self._entries(handle, prefix))

    def close(self) -> None:
        """Remove the copy."""
        self._drop()
        self._directory.cleanup()

    def _tried_twice(self, read: Callable[[], R]) -> R:
        try:
            return read()
        except StateBackendError:  # the copy is damaged: build it again
            self._drop()
            return read()

    def _value(self, handle: Handle, key: bytes) -> bytes | None:
        self._follow(handle)
        with self._lock:
            assert self._backend is not None  # it was opened
            for writes in self._in_memory():
                for last in reversed(writes.last):
                    if key in last:
                        return last[key]
            return self._backend.get_many([key])[0]

    def _entries(self, handle: Handle, prefix: bytes) -> Changes:
        self._follow(handle)
        with self._lock:
            assert self._backend is not None  # it was opened
            found: dict[bytes, bytes | None] = dict(self._backend.scan(prefix))
            for writes in reversed(self._in_memory()):
                writes.put_into(found, prefix)
        keys = sorted(key for key, value in found.items() if value is not None)
        return Changes(keys, [found[key] for key in keys])

    def _in_memory(self) -> list[_Writes]:
        """Return the writes that the backend may lack, the newest first."""
        return [self._writes] if self._folded is None else [self._writes, self._folded]

    def _follow(self, handle: Handle) -> None:
        if self._backend is None:
            self._build(handle)
        elif handle.version != self._version:
            later = None if self._has_failed_to_fold() else handle.segments_since(self._version)
            if later is None:
                self._drop()
                self._build(handle)
            else:
                parts = [list(segment_changes(self._storage, [segment])) for segment in later]
                with self._lock:
                    for segment, of_segment in zip(later, parts, strict=True):
                        self._writes.add(segment.size_bytes, of_segment)
                self._version = handle.version
                self._fold_if_large()

    def _build(self, handle: Handle) -> None:
        root = Path(self._directory.name) / "copy"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        place, scratch = root / self._backend_type, root / "scratch"
        snapshots = LocalSnapshots(root)
        self._backend, _ = at_version(
            place, self._backend_type, self._storage, handle, snapshots, scratch
        )
        self._version = handle.version

    def _drop(self) -> None:
        with self._lock:
            backend, self._backend = self._backend, None
            self._writes, self._folded = _Writes(), None
        if self._folding is not None:
            self._folding.join()
        if backend is not None:
            with suppress(StateBackendError):
                backend.close()

    def _has_failed_to_fold(self) -> bool:
        """Return whether segments could not go into the backend, as when the disk is full.

        Then the copy is built again, which gives its disk space back or fails: memory must not grow
        with each epoch.
        """
        is_over = self._folding is not None and not self._folding.is_alive()
        return is_over and self._folded is not None

    def _fold_if_large(self) -> None:
        if self._folded is not None:
            return
        if self._writes.size_bytes < _FOLD_BYTES and self._writes.segments < _FOLD_SEGMENTS:
            return
        with self._lock:
            self._folded, self._writes = self._writes, _Writes()
        self._folding = threading.Thread(target=self._fold, name=FOLDING, daemon=True)
        self._folding.start()

    def _fold(self) -> None:
        """Put segments into the backend; until the end they also stay in memory and count."""
        backend, folded = self._backend, self._folded
        if folded is None:
            return
        merged: dict[bytes, bytes | None] = {}
        for last in folded.last:
            merged |= last
        keys = sorted(merged)
        for start in range(0, len(keys), _STEP_ENTRIES):
            step = keys[start : start + _STEP_ENTRIES]
            with self._lock:
                if backend is None or self._backend is not backend:
                    return
                try:
                    backend.apply([Changes(step, [merged[key] for key in step])], self._version)
                except StateBackendError:
                    return  # they stay in memory, and the next epoch's read builds the copy again
        with self._lock:
            if self._backend is backend:
                self._folded = None


class _Writes:
    """The writes of some segments, the newer ones last.

    `last` has the last write of each key in each part of a segment, ``None`` for a delete.
    `size_bytes` is the size of the segments as they are stored.
    """

    def __init__(self) -> None:
        self.last: list[dict[bytes, bytes | None]] = []
        self.segments = 0
        self.size_bytes = 0
        self._parts: list[Changes] = []
        self._sorted = 0

    def add(self, size_bytes: int, parts: Iterable[Changes]) -> None:
        """Add the writes of a segment."""
        for part in parts:
            self.last.append(dict(zip(part.keys, part.values, strict=True)))
            self._parts.append(part)
        self.segments += 1
        self.size_bytes += size_bytes

    def put_into(self, found: dict[bytes, bytes | None], prefix: bytes) -> None:
        """Put the writes to keys with a prefix into `found`; a delete is ``None``."""
        self._parts[self._sorted :] = map(_in_order, self._parts[self._sorted :])
        self._sorted = len(self._parts)
        for part in self._parts:
            place = bisect_left(part.keys, prefix)
            while place < len(part.keys) and part.keys[place].startswith(prefix):
                found[part.keys[place]] = part.values[place]
                place += 1


def _in_order(part: Changes) -> Changes:
    if all(map(lt, part.keys, islice(part.keys, 1, None))):
        return part
    last = dict(zip(part.keys, part.values, strict=True))
    keys = sorted(last)
    return Changes(keys, [last[key] for key in keys])
