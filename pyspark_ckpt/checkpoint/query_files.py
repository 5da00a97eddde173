"""The directories and operators of a running query, and its copies of Spark's state files."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import spark_operator_path
from pyspark_ckpt.formats.metadata import SparkOperatorFile
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.spark.state_files import STATE
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import Storage


class CopyNames:
    """What distinguishes the names of one driver's copies from those of other drivers.

    Another driver of the query may be about to delete copies that it found. It shares none with
    this one. When this driver takes over again, it shares none with its time before either.
    """

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)

    def renew(self) -> None:
        """Name the next copies as no copy before them."""
        self.mark = secrets.token_hex(8)


class SparkStateCopies:
    """Copies of the files of Spark's own state in a checkpoints directory, one per file.

    Spark writes a file under another name and renames it. Therefore a file is identified by its
    fingerprint in the storage: number, size and time, or an object's tag. Checkpoints and
    savepoints use the copies at the same time.
    """

    def __init__(self, location: Storage, checkpoints: Storage, names: CopyNames) -> None:
        self._location = location
        self._checkpoints = checkpoints
        self._names = names
        self._lock = threading.Lock()
        self._copied: dict[str, FileReference] = {}

    def keep(self, operator_id: int, name: str) -> SparkOperatorFile:
        """Return a durable copy of a file."""
        source = f"{STATE}/{operator_id}/{name}"
        try:
            known = f"{self._names.mark} {source} {self._location.fingerprint(source)}"
            path = spark_operator_path(operator_id, hashlib.sha256(known.encode()).hexdigest())
            return SparkOperatorFile(name, self._copy(source, path))
        except FileNotFoundError as exc:
            raise CheckpointAbortedError(
                f"{self._location.url}/{source} is missing, because Spark has deleted it. The next "
                "checkpoint is of a newer epoch; if it fails too, raise "
                "spark.sql.streaming.minBatchesToRetain"
            ) from exc

    @property
    def remembered(self) -> int:
        """The number of copies that are not made again."""
        return len(self._copied)

    def forget(self, paths: Iterable[str]) -> None:
        """Forget copies that were deleted; a query makes new ones for as long as it runs."""
        with self._lock:
            for path in paths:
                self._copied.pop(path, None)

    def _copy(self, source: str, path: str) -> FileReference:
        with self._lock:
            reference = self._copied.get(path)
            if reference is None or not self._checkpoints.exists(path):
                self._checkpoints.delete([path])  # a write may have failed at its very end
                reference = self._checkpoints.write(path, self._location.chunks(source))
                self._copied[path] = reference
            return reference


@dataclass(frozen=True, slots=True)
class KnownHandle:
    """The handle of a subtask at a committed epoch, in a list; empty if the subtask has none."""

    epoch: int
    handles: list[Handle]


class KnownHandles:
    """The newest handles that a run of a query has read, for all threads that read some.

    `has_changes` says whether Spark's state store writes files of changes; ``None`` if nobody has
    looked.
    """

    def __init__(self) -> None:
        self.has_changes: bool | None = None
        self._lock = threading.Lock()
        self._newest: dict[tuple[int, int], KnownHandle] = {}

    def at(self, operator_id: int, subtask: int, epoch: int) -> KnownHandle | None:
        """Return what is known of a subtask at an epoch or before it."""
        known = self._newest.get((operator_id, subtask))
        return None if known is None or known.epoch > epoch else known

    def put(self, operator_id: int, subtask: int, found: KnownHandle) -> None:
        """Remember a subtask's handle at a committed epoch, unless a newer one is known."""
        with self._lock:
            known = self._newest.get((operator_id, subtask))
            if known is None or known.epoch < found.epoch:
                self._newest[operator_id, subtask] = found


@dataclass(frozen=True, slots=True)
class QueryFiles:
    """The directories and operators of a running query.

    `source_ids` has for each of Spark's source offsets the source that it belongs to, and
    `given_names` has the names that the user gave the sources. `run` is a name that no other start
    of the query has. `copy_names` distinguishes its copies of Spark's files.
    `spark_state_copies` has the copies of the state of Spark's own operators, and `known_handles`
    the handles that were read last.
    """

    checkpoint_location: str
    spark_log: SparkLog
    storage: Storage
    query_id: str
    query_name: str | None
    backend_type: str
    operators: StatefulOperators
    source_ids: tuple[int, ...]
    given_names: tuple[str, ...] = ()
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    copy_names: CopyNames = field(default_factory=CopyNames)
    known_handles: KnownHandles = field(default_factory=KnownHandles)
    spark_state_copies: SparkStateCopies = field(init=False)

    def __post_init__(self) -> None:
        copies = SparkStateCopies(self.spark_log.storage, self.storage, self.copy_names)
        object.__setattr__(self, "spark_state_copies", copies)

    def through(self, storage: Storage) -> QueryFiles:
        """Return the same files of the same run, reached through another storage."""
        files = replace(self, storage=storage)
        object.__setattr__(files, "spark_state_copies", self.spark_state_copies)
        return files
