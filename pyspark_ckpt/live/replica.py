"""A copy of a subtask's state on the driver, which follows the committed versions.

It is a backend, as executors have it, and the newest segments in memory. A new epoch costs the
decoding of its segment. Segments go into the backend when they are large, in another thread.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from operator import lt
from pathlib import Path

from pyspark_ckpt.formats.handle import EMPTY_VERSION, Handle, Segment
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshots
from pyspark_ckpt.operator.durable.local_version import at_version, segment_changes
from pyspark_ckpt.storage.base import WorkerStorage
from state_backends import Changes, StateBackend, StateBackendError

_FOLD_BYTES = 32 << 20
"""Segments of so many bytes go into the backend; fewer stay in memory."""

_FOLD_SEGMENTS = 500
"""So many segments go into the backend even if they are small: a read looks into each."""

_STEP_ENTRIES = 1000
"""A read waits for the backend for about the time that it takes to write so many entries."""


class Replica:
    """One subtask's state at the version that was asked for last.

    Calls of :meth:`entries` do not overlap, and ask for one version after the other.

    Parameters
    ----------
    backend_type
        One of :data:`state_backends.BACKEND_TYPES`.
    storage
        The query's checkpoints directory.
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
        self._writes: list[_Writes] = []
        self._folding: threading.Thread | None = None

    def entries(self, handle: Handle, prefix: bytes) -> Changes:
        """Return the entries of a version whose stored keys begin with `prefix`, in key order.

        Parameters
        ----------
        handle
            The version.
        prefix
            The beginning of the keys.

        Raises
        ------
        CorruptFileError
            If a file is missing or changed.
        """
        try:
            return self._entries(handle, prefix)
        except StateBackendError:  # the copy is damaged: build it again
            self._drop()
            return self._entries(handle, prefix)

    def close(self) -> None:
        """Remove the copy."""
        self._drop()
        self._directory.cleanup()

    def _entries(self, handle: Handle, prefix: bytes) -> Changes:
        self._follow(handle)
        with self._lock:
            assert self._backend is not None  # it was opened
            found: dict[bytes, bytes | None] = dict(self._backend.scan(prefix))
            for writes in self._writes:
                writes.put_into(found, prefix)
        keys = sorted(key for key, value in found.items() if value is not None)
        return Changes(keys, [found[key] for key in keys])

    def _follow(self, handle: Handle) -> None:
        if self._backend is None:
            self._build(handle)
        elif handle.version != self._version:
            later = handle.segments_since(self._version)
            if later is None:
                self._drop()
                self._build(handle)
            else:
                writes = [_Writes(segment, self._storage) for segment in later]
                with self._lock:
                    self._writes += writes
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
            backend, self._backend, self._writes = self._backend, None, []
        if self._folding is not None:
            self._folding.join()
        if backend is not None:
            with suppress(StateBackendError):
                backend.close()

    def _fold_if_large(self) -> None:
        size_bytes = sum(writes.size_bytes for writes in self._writes)
        is_folding = self._folding is not None and self._folding.is_alive()
        if is_folding or (size_bytes < _FOLD_BYTES and len(self._writes) < _FOLD_SEGMENTS):
            return
        name, writes = "pyspark_ckpt live state", list(self._writes)
        self._folding = threading.Thread(target=self._fold, args=(writes,), name=name, daemon=True)
        self._folding.start()

    def _fold(self, writes: Sequence[_Writes]) -> None:
        """Put segments into the backend; until the end they also stay in memory and count."""
        backend = self._backend
        merged: dict[bytes, bytes | None] = {}
        for each in writes:
            for part in each.parts:
                merged.update(zip(part.keys, part.values, strict=True))
        keys = sorted(merged)
        for start in range(0, len(keys), _STEP_ENTRIES):
            step = keys[start : start + _STEP_ENTRIES]
            with self._lock:
                if backend is None or self._backend is not backend:
                    return
                try:
                    backend.apply([Changes(step, [merged[key] for key in step])], self._version)
                except StateBackendError:
                    return  # they stay in memory, and the next read tries the backend
        with self._lock:
            if self._backend is backend:
                del self._writes[: len(writes)]


class _Writes:
    """The writes of one segment, whose parts are in key order."""

    def __init__(self, segment: Segment, storage: WorkerStorage) -> None:
        self.size_bytes = segment.size_bytes
        self.parts = [_in_order(part) for part in segment_changes(storage, [segment])]

    def put_into(self, found: dict[bytes, bytes | None], prefix: bytes) -> None:
        """Put the writes to keys with a prefix into `found`; a delete is ``None``."""
        for part in self.parts:
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
