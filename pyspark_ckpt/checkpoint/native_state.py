"""The state of Spark's own stateful operators in a checkpoint: copies of Spark's files."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from pyspark_ckpt.checkpoint.spark_state import STATE, chunks_of, operator_name
from pyspark_ckpt.checkpoint.spark_state_files import needed_files
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.on_disk.handle import FileReference
from pyspark_ckpt.on_disk.layout import native_path
from pyspark_ckpt.on_disk.metadata import NativeFile, NativeOperatorMetadata
from pyspark_ckpt.on_disk.storage import LocalStorage, Storage

if TYPE_CHECKING:
    from pyspark_ckpt.checkpoint.snapshot import QueryFiles


_OF_ONE_PARTITION = "globalLimit"


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


def keep_native_state(query: QueryFiles, epoch: int) -> tuple[NativeOperatorMetadata, ...]:
    """Copy the state of Spark's own operators at a committed epoch; durable on return.

    Raises
    ------
    CheckpointAbortedError
        If it cannot be had complete.
    """
    location = query.spark_log.storage
    parallelism = query.operators.descriptors[0].parallelism
    return tuple(
        NativeOperatorMetadata(
            operator_id=operator_id,
            name=_checked_name(location, operator_id, operator.name),
            files=tuple(
                query.native_copies.keep(operator_id, name)
                for name in needed_files(
                    location,
                    operator_id,
                    epoch + 1,
                    1 if operator.name == _OF_ONE_PARTITION else parallelism,
                )
            ),
        )
        for operator_id, operator in query.operators.native.items()
    )


def _checked_name(location: LocalStorage, operator_id: int, wanted: str) -> str:
    found = operator_name(location, operator_id)
    if found != wanted:
        raise CheckpointAbortedError(
            f"{location.url}: Spark's operator {operator_id} is {found!r}, the query's plan has "
            f"{wanted!r}: report the query's plan"
        )
    return found
