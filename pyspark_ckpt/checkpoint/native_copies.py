"""Copies of the files of Spark's own state, which checkpoints and savepoints share."""

from __future__ import annotations

import hashlib
import threading

from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.layout import native_path
from pyspark_ckpt.formats.metadata import NativeFile
from pyspark_ckpt.spark.state_files import STATE, chunks_of
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage


class NativeCopies:
    """Copies of Spark's files in a query's checkpoints directory; each is copied once.

    Spark writes a file under another name and renames it, so what a path has is known by the
    file's number, size and time. Used by checkpoints and savepoints at the same time.

    Parameters
    ----------
    location
        The ``checkpointLocation``.
    checkpoints
        The checkpoints directory.
    run
        A name that no other start of the query has: a driver before this one, which may be about
        to clean up, shares no copy with it.
    """

    def __init__(self, location: LocalStorage, checkpoints: Storage, run: str) -> None:
        self._location = location
        self._checkpoints = checkpoints
        self._run = run
        self._lock = threading.Lock()
        self._copied: dict[str, FileReference] = {}

    def keep(self, operator_id: int, name: str) -> NativeFile:
        """Return a copy of a file, durable.

        Raises
        ------
        CheckpointAbortedError
            If Spark has deleted it.
        """
        source = f"{STATE}/{operator_id}/{name}"
        try:
            status = self._location.path(source).stat()
            known = f"{self._run} {source} {status.st_ino} {status.st_mtime_ns} {status.st_size}"
            path = native_path(operator_id, hashlib.sha256(known.encode()).hexdigest())
            return NativeFile(name, self._copy(source, path))
        except FileNotFoundError as exc:
            raise CheckpointAbortedError(
                f"{self._location.url}/{source} is not there any more: Spark has cleaned it away; "
                "the next checkpoint of a newer epoch will find its own, or raise "
                "spark.sql.streaming.minBatchesToRetain"
            ) from exc

    def _copy(self, source: str, path: str) -> FileReference:
        with self._lock:
            reference = self._copied.get(path)
            if reference is None or not self._checkpoints.exists(path):
                self._checkpoints.delete([path])  # of a write that failed at its very end
                reference = self._checkpoints.write(path, chunks_of(self._location, source))
                self._copied[path] = reference
            return reference
