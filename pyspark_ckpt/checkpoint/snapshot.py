"""A snapshot of a running query: everything a checkpoint or savepoint of an epoch consists of.

The handles of an epoch, read back from Spark: exactly those that Spark committed.

Gathers a committed epoch in a session and in Spark jobs of its own, which can be cancelled.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.file_check import check_files
from pyspark_ckpt.checkpoint.lost_attributes import LostAttributesNotice
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.spark_operator_state import keep_native_state
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError
from pyspark_ckpt.formats.handle import Handle, decode_handle
from pyspark_ckpt.formats.layout import source_log_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata, Origin, SourceLog
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.operator.descriptor import schema_fingerprint
from pyspark_ckpt.spark.jobs import SparkJobs
from pyspark_ckpt.spark.log import SourceLogFile
from pyspark_ckpt.spark.state_reader import (
    FEW_PARTITIONS,
    STORES_WITH_CHANGES,
    encoded_handles,
    encoded_handles_written_in,
    written_handles,
)
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.storage.retrying import retried
from pyspark_ckpt.version import __version__


def read_handles(
    spark: SparkSession, checkpoint_location: str, epoch: int, operator_id: int
) -> list[Handle]:
    """Return what Spark's state store holds for an operator at an epoch, by subtask, unchecked."""
    return _by_subtask(encoded_handles(spark, checkpoint_location, epoch, operator_id))


def committed_handles(
    spark: SparkSession, query: QueryFiles, epoch: int, operator_id: int
) -> tuple[Handle, ...]:
    """Return one operator's handles at a committed epoch, by subtask.

    Reads Spark's state store; newer epochs may run meanwhile. A subtask that never had a row has no
    handle.

    Raises
    ------
    CheckpointAbortedError
        If what Spark holds is not one handle per subtask of this operator.
    CorruptFileError
        If Spark's entry of the epoch's offsets cannot be read.
    """
    handles = _if_all_wrote(spark, query, epoch, operator_id) or read_handles(
        spark, query.checkpoint_location, epoch, operator_id
    )
    return checked_handles(query, epoch, operator_id, handles)


def checked_handles(
    query: QueryFiles, epoch: int, operator_id: int, handles: Sequence[Handle]
) -> tuple[Handle, ...]:
    """Return what Spark holds for an operator, if it is one handle per subtask of the operator.

    Raises
    ------
    CheckpointAbortedError
        If it is not.
    """
    operator = query.operators.ours[operator_id]
    subtasks = [handle.subtask for handle in handles]
    fitting = all(
        handle.query_id == query.query_id
        and handle.uid == operator.uid
        and handle.parallelism == operator.parallelism
        and 0 <= handle.subtask < operator.parallelism
        and handle.epoch <= epoch
        for handle in handles
    )
    if not fitting or len(set(subtasks)) != len(subtasks):
        raise CheckpointAbortedError(
            f"operator {operator.uid!r}, epoch {epoch}: Spark's state store at "
            f"{query.checkpoint_location} holds handles of another query, operator or subtask "
            f"({[(h.query_id, h.uid, h.subtask, h.epoch) for h in handles]}); a location that was "
            "deleted and used again within one session can be mixed with its past: use a new one"
        )
    return tuple(handles)


def handles_written_in(
    spark: SparkSession, query: QueryFiles, epochs: range, operator_id: int
) -> list[Handle] | None:
    """Return the handles that committed epochs themselves wrote, ``None`` if Spark cannot tell.

    An epoch may have run with another state store before the query was started again.
    """
    try:
        stores = {query.spark_log.offsets_entry(epoch).state_store for epoch in epochs}
    except CkptError:
        return None  # Spark has dropped an entry
    if not stores <= STORES_WITH_CHANGES:
        return None
    written = encoded_handles_written_in(spark, query.checkpoint_location, epochs, operator_id)
    return None if written is None else list(map(decode_handle, written))


def _if_all_wrote(
    spark: SparkSession, query: QueryFiles, epoch: int, operator_id: int
) -> list[Handle]:
    """Return the handles that the epoch itself wrote if every subtask wrote one, else none."""
    parallelism = query.operators.ours[operator_id].parallelism
    if parallelism > FEW_PARTITIONS:
        return []
    if query.spark_log.offsets_entry(epoch).state_store not in STORES_WITH_CHANGES:
        return []
    handles = _by_subtask(written_handles(spark, query.checkpoint_location, epoch, operator_id))
    of_all = [(subtask, epoch) for subtask in range(parallelism)]
    return handles if [(handle.subtask, handle.epoch) for handle in handles] == of_all else []


def _by_subtask(encoded: Iterable[bytes]) -> list[Handle]:
    return sorted(map(decode_handle, encoded), key=lambda handle: handle.subtask)


def take_snapshot(spark: SparkSession, query: QueryFiles, epoch: int) -> CheckpointMetadata:
    """Gather a committed epoch of a running query, as :func:`gather` does.

    Raises
    ------
    CheckpointAbortedError, CorruptFileError
        If the epoch cannot be had complete.
    """
    handles_of = partial(committed_handles, spark, query, epoch)
    return gather(query, epoch, spark.version, handles_of, partial(check_files, spark=spark))


def gather(
    query: QueryFiles,
    epoch: int,
    spark_version: str,
    handles_of: Callable[[int], tuple[Handle, ...]],
    check: Callable[[Storage, Iterable[FileReference]], None] = check_files,
) -> CheckpointMetadata:
    """Gather a committed epoch and check that every file it refers to is there.

    Source logs are copied into ``shared/`` of the query's checkpoints directory, durably. The
    result is a checkpoint's metadata with no id yet.

    Parameters
    ----------
    query
        Its directories and operators.
    epoch
        The epoch.
    spark_version
        The version of Spark that runs the query.
    handles_of
        Returns the handles that Spark committed for an operator, by its id.
    check
        Raises if one of the files is not there.

    Raises
    ------
    CheckpointAbortedError, CorruptFileError
        If the epoch cannot be had complete.
    """
    phases = PhaseTimes()
    triggered_at_ms = now_ms()
    operators = _operators(query, handles_of)
    phases.end("handles")
    offsets = query.spark_log.offsets_entry(epoch)
    metadata = CheckpointMetadata(
        checkpoint_id=None,
        kind="checkpoint",
        root="..",
        epoch=epoch,
        query_id=query.query_id,
        query_name=query.query_name,
        parent=_parent(query.storage),
        spark_version=spark_version,
        library_version=__version__,
        triggered_at_ms=triggered_at_ms,
        completed_at_ms=now_ms(),
        watermark_ms=query.spark_log.watermark_ms(epoch),
        offsets_entry=offsets.text(),
        commits_entry=query.spark_log.commits_entry(epoch),
        source_logs=tuple(
            _keep_source_log(query, file)
            for file in query.spark_log.source_log_files(offsets, query.source_ids)
        ),
        operators=operators,
        source_ids=query.source_ids,
    )
    phases.end("sources")
    if query.operators.spark_operators:
        native = keep_native_state(query, epoch)
        metadata = msgspec.structs.replace(metadata, native_operators=native)
        phases.end("native")
    check(query.storage, metadata.files())
    phases.end("verification")
    return msgspec.structs.replace(metadata, completed_at_ms=now_ms(), phases_ms=phases.ended_ms)


def _operators(
    query: QueryFiles, handles_of: Callable[[int], tuple[Handle, ...]]
) -> tuple[OperatorMetadata, ...]:
    return tuple(
        OperatorMetadata(
            operator_id=operator_id,
            uid=operator.uid,
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            key_schema=operator.key_schema,
            backend=query.backend_type,
            time_mode=operator.time_mode,
            handles=handles_of(operator_id),
            processor=operator.processor,
            code_sha256=operator.code_sha256,
            schema_sha256=schema_fingerprint(operator.key_schema, operator.states),
        )
        for operator_id, operator in query.operators.ours.items()
    )


class PhaseTimes:
    """Milliseconds of the phases that follow each other from now on."""

    def __init__(self) -> None:
        self.ended_ms: dict[str, int] = {}
        self._began = time.monotonic()

    def end(self, name: str) -> None:
        """End a phase; the next one begins."""
        now = time.monotonic()
        self.ended_ms[name] = round(1000 * (now - self._began))
        self._began = now


def _keep_source_log(query: QueryFiles, file: SourceLogFile) -> SourceLog:
    content = query.spark_log.storage.read(file.path)
    sha256 = hashlib.sha256(content).hexdigest()
    # A driver before this one, which may be about to clean up, shares no copy with it.
    own = hashlib.sha256(f"{query.run} {sha256}".encode()).hexdigest()
    path = source_log_path(file.source_index, file.log_name, own)
    reference = FileReference(path, len(content), sha256)
    if not query.storage.exists(path):
        with suppress(FileExistsError):  # of a checkpoint or savepoint at the same time
            query.storage.write(path, [content])
    return SourceLog(file.source_index, file.log_name, reference)


def _parent(storage: Storage) -> Origin | None:
    return read_origin(storage)


class SnapshotJob:
    """Takes the snapshots of one query, one after the other; on the driver.

    Parameters
    ----------
    spark
        A session of :func:`reading_session`.
    files
        The query's directories and operators.
    """

    def __init__(self, spark: SparkSession, files: QueryFiles) -> None:
        self._spark = spark
        self._files = files
        self._jobs: SparkJobs | None = None
        self._notice = LostAttributesNotice(files.query_id)

    def take(self, epoch: int) -> CheckpointMetadata:
        """Gather a committed epoch; as :func:`take_snapshot`."""
        what = f"handles of epoch {epoch}, query {self._files.query_id}"
        self._jobs = SparkJobs(self._spark.sparkContext, what)
        with self._jobs.running():
            snapshot = retried(lambda: take_snapshot(self._spark, self._files, epoch))
        for operator in snapshot.operators:
            self._notice.look_at(operator.uid, operator.handles)
        return snapshot

    def cancel(self) -> None:
        """Cancel the Spark jobs of the newest :meth:`take`, from another thread."""
        if self._jobs is not None:
            self._jobs.cancel()
