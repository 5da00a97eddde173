"""The contents of an epoch: all that a checkpoint or savepoint of it consists of, gathered.

The gathering has a separate session and its own Spark jobs, which can be cancelled.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.file_check import check_files
from pyspark_ckpt.checkpoint.handles import committed_handles
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.clock import monotonic_ms, now_ms
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import SHARED, source_log_path
from pyspark_ckpt.formats.metadata import (
    CheckpointMetadata,
    EpochContents,
    OperatorMetadata,
    SourceLog,
    SparkOperatorMetadata,
    metadata_of,
)
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.run.lost_attributes import warning
from pyspark_ckpt.spark.jobs import SparkJobs
from pyspark_ckpt.spark.log import SourceLogFile, Sources
from pyspark_ckpt.spark.state_files import needed_files, operator_name
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.storage.retrying import retried
from pyspark_ckpt.version import __version__

_OF_ONE_PARTITION = "globalLimit"
logger = library_logger(__name__)

PATIENCE_EPOCHS = 3
"""How many epochs in a row have to rebuild all state. The first epoch after a start always does."""


class Gathering:
    """Gathers epochs of one query, one after the other; on the driver.

    `spark` must be a session of :func:`reading_session`.
    """

    def __init__(self, spark: SparkSession, files: QueryFiles) -> None:
        self._spark = spark
        self._files = files
        self._jobs: SparkJobs | None = None
        self._notice = LostAttributesNotice(files.query_id)
        self._rebuilds = RebuildNotice(files.query_id)

    def gather(self, epoch: int) -> EpochContents:
        """Return the contents of a committed epoch, as :func:`gather_epoch`."""
        what = f"handles of epoch {epoch}, query {self._files.query_id}"
        self._jobs = SparkJobs(self._spark, what)
        with self._jobs.running():
            contents = retried(lambda: gather_epoch(self._spark, self._files, epoch))
        for operator in contents.operators:
            self._notice.look_at(operator.uid, operator.handles)
            self._rebuilds.look_at(operator.uid, epoch, operator.handles)
        return contents

    def cancel(self) -> None:
        """Cancel the Spark jobs of the newest :meth:`gather`, from another thread."""
        if self._jobs is not None:
            self._jobs.cancel()


def metadata_at_end(
    spark: SparkSession, query: QueryFiles, epoch: int, checkpoint_id: int
) -> CheckpointMetadata:
    """Return the metadata of a checkpoint of a stopped query's last epoch, without storing it."""
    began_at_ms = now_ms()
    return metadata_of(
        gather_epoch(spark, query, epoch),
        CheckpointKind.CHECKPOINT,
        checkpoint_id=checkpoint_id,
        triggered_at_ms=began_at_ms,
        completed_at_ms=now_ms(),
    )


def gather_epoch(spark: SparkSession, query: QueryFiles, epoch: int) -> EpochContents:
    """Return the contents of a committed epoch of a running query, as :func:`gather`."""
    handles_of = partial(committed_handles, spark, query, epoch)
    return gather(query, epoch, spark.version, handles_of, partial(check_files, spark=spark))


def gather(
    query: QueryFiles,
    epoch: int,
    spark_version: str,
    handles_of: Callable[[int], tuple[Handle, ...]],
    check: Callable[[Storage, Iterable[FileReference]], None] = check_files,
) -> EpochContents:
    """Return the contents of a committed epoch, after a check that all its files exist.

    Source logs are copied into ``shared/`` of the query's checkpoints directory, durably.

    `handles_of` is called with an operator's id, and `check` raises if a file is missing. If a part
    of the epoch is missing, ``CheckpointAbortedError`` or ``CorruptFileError`` is raised.
    """
    phases, log = PhaseTimes(), query.spark_log
    operators = _operators(query, handles_of)
    phases.end("handles")
    entry = log.offsets_entry(epoch)
    sources = Sources(query.source_ids, query.given_names if entry.is_named else ())
    offsets = entry.in_order(sources)
    logs = log.source_log_files(offsets, sources)
    contents = EpochContents(
        epoch=epoch,
        query_id=query.query_id,
        query_name=query.query_name,
        parent=read_origin(query.storage),
        spark_version=spark_version,
        library_version=__version__,
        watermark_ms=log.watermark_ms(epoch),
        offsets_entry=offsets.text(),
        commits_entry=log.commits_entry(epoch),
        source_logs=_keep_source_logs(query, logs),
        operators=operators,
        source_ids=sources.ids,
        phases_ms=phases.ended_ms,
        source_names=sources.names,
        location=log.storage.url,
        location_query_id=query.query_id,
    )
    phases.end("sources")
    if query.operators.spark_operators:
        spark_operators = keep_spark_operators(query, epoch)
        contents = msgspec.structs.replace(contents, spark_operators=spark_operators)
        phases.end("spark_operators")
    check(query.storage, contents.files())
    phases.end("verification")
    return contents


def _operators(
    query: QueryFiles, handles_of: Callable[[int], tuple[Handle, ...]]
) -> tuple[OperatorMetadata, ...]:
    return tuple(
        operator.stored(operator_id, query.backend_type, handles_of(operator_id))
        for operator_id, operator in query.operators.ours.items()
    )


class PhaseTimes:
    """Milliseconds of the phases that follow each other from now on.

    `ended_ms` has the phases that have ended, by name.
    """

    def __init__(self) -> None:
        self.ended_ms: dict[str, int] = {}
        self._began_ms = monotonic_ms()

    def end(self, name: str) -> None:
        """End a phase, and begin the next one."""
        now_ms = monotonic_ms()
        self.ended_ms[name] = now_ms - self._began_ms
        self._began_ms = now_ms


def _keep_source_logs(query: QueryFiles, files: Iterable[SourceLogFile]) -> tuple[SourceLog, ...]:
    kept = [_keep_source_log(query, file) for file in files]
    if not all(is_written for _, is_written in kept):
        # Another thread may have named such a copy just now, or have failed to sync its name.
        query.storage.make_durable(SHARED)
    return tuple(log for log, _ in kept)


def _keep_source_log(query: QueryFiles, file: SourceLogFile) -> tuple[SourceLog, bool]:
    """Return the copy of a source log, and whether it was written now."""
    content = query.spark_log.storage.read(file.path)
    sha256 = hashlib.sha256(content).hexdigest()
    own = hashlib.sha256(f"{query.copy_names.mark} {sha256}".encode()).hexdigest()
    path = source_log_path(file.source_index, file.log_name, own)
    reference = FileReference(path, len(content), sha256)
    is_written = False
    if not query.storage.exists(path):
        with suppress(FileExistsError):  # of a checkpoint or savepoint at the same time
            query.storage.write(path, [content])
            is_written = True
    return SourceLog(file.source_index, file.log_name, reference), is_written


def keep_spark_operators(query: QueryFiles, epoch: int) -> tuple[SparkOperatorMetadata, ...]:
    """Return durable copies of the state of Spark's own operators at a committed epoch."""
    location = query.spark_log.storage
    parallelism = query.operators.descriptors[0].parallelism
    return tuple(
        SparkOperatorMetadata(
            operator_id=operator_id,
            name=_checked_name(location, operator_id, operator.name),
            files=tuple(
                query.spark_state_copies.keep(operator_id, name)
                for name in needed_files(
                    location,
                    operator_id,
                    epoch + 1,
                    1 if operator.name == _OF_ONE_PARTITION else parallelism,
                )
            ),
        )
        for operator_id, operator in query.operators.spark_operators.items()
    )


def _checked_name(location: Storage, operator_id: int, wanted: str) -> str:
    found = operator_name(location, operator_id)
    if found != wanted:
        raise CheckpointAbortedError(
            f"{location.url}: Spark's operator {operator_id} is {found!r}, but the query's plan "
            f"has {wanted!r}: report the query's plan to the authors of pyspark_ckpt"
        )
    return found


class RebuildNotice:
    """The warnings of one run of a query; on the driver."""

    def __init__(self, query_id: str) -> None:
        self._query_id = query_id
        self._newest: dict[str, int] = {}
        self._in_a_row: Counter[str] = Counter()
        self._warned: set[str] = set()

    def look_at(self, uid: str, epoch: int, handles: Iterable[Handle]) -> None:
        """Look at the handles of an operator after an epoch, and warn once per operator."""
        if uid in self._warned or epoch <= self._newest.get(uid, -1):
            return
        self._newest[uid] = epoch
        rebuilds = [
            each.metrics.rebuilds
            for each in handles
            if each.epoch == epoch and each.metrics is not None
        ]
        if not rebuilds:
            return  # no subtask had rows, and a copy that is not used is not rebuilt
        self._in_a_row[uid] = self._in_a_row[uid] + 1 if all(rebuilds) else 0
        if self._in_a_row[uid] == PATIENCE_EPOCHS:
            self._warned.add(uid)
            logger.warning(
                "query %s, operator %r: its whole state was rebuilt from durable files in %s "
                "epochs in a row, because no executor had its local copy. Keep executors longer "
                "than the time between triggers: raise "
                "spark.dynamicAllocation.executorIdleTimeout, or set "
                "spark.dynamicAllocation.minExecutors (docs/clusters.md)",
                self._query_id,
                uid,
                PATIENCE_EPOCHS,
            )


class LostAttributesNotice:
    """The warnings of one run of a query; on the driver."""

    def __init__(self, query_id: str) -> None:
        self._query_id = query_id
        self._warned: set[str] = set()

    def look_at(self, uid: str, handles: Iterable[Handle]) -> None:
        """Warn of the attributes in the handles of an operator, once per operator."""
        if uid in self._warned:
            return
        names = {
            name
            for handle in handles
            if handle.metrics is not None
            for name in handle.metrics.lost_attributes
        }
        if names:
            self._warned.add(uid)
            logger.warning(
                "%s", warning(f"query {self._query_id}, operator {uid!r}", sorted(names))
            )
