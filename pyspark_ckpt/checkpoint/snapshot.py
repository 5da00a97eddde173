"""A snapshot of a running query: everything a checkpoint or savepoint of an epoch consists of."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.committed_handles import committed_handles
from pyspark_ckpt.checkpoint.file_check import check_files
from pyspark_ckpt.checkpoint.native_state import keep_native_state
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import source_log_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata, Origin, SourceLog
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.operator.descriptor import schema_fingerprint
from pyspark_ckpt.spark.log import SourceLogFile
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.version import __version__


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
    triggered_at_ms = _now_ms()
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
        completed_at_ms=_now_ms(),
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
    if query.operators.native:
        native = keep_native_state(query, epoch)
        metadata = msgspec.structs.replace(metadata, native_operators=native)
        phases.end("native")
    check(query.storage, metadata.files())
    phases.end("verification")
    return msgspec.structs.replace(metadata, completed_at_ms=_now_ms(), phases_ms=phases.ended_ms)


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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
