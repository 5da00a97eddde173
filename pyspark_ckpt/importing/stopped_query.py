"""Where a stopped query of Spark stands, and whether its state is whole.

The location is only read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.editing.position import Position
from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, CorruptFileError, RestoreError
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.damage import said
from pyspark_ckpt.spark.jobs import JOB_ERRORS
from pyspark_ckpt.spark.log import OffsetsEntry, Sources, SparkLog
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.plan import given_names, source_ids
from pyspark_ckpt.spark.state_files import missing_partitions
from pyspark_ckpt.spark.state_reader import check_state_can_be_read
from pyspark_ckpt.storage.base import Storage
from pyspark_ckpt.storage.open import open_storage

_ELSEWHERE = (
    "nothing can be imported from there: copy or rename the location of the stopped query to a "
    "path without them, and import from that path"
)

_STATE_STORE = "spark.sql.streaming.stateStore."

_ADVICE = (
    "the location was only read. Bring back what is missing, for example from a backup or an older "
    "version of the bucket, or import a complete copy of the location"
)

_SPARKS_READER = re.compile(
    r"\[(?:CANNOT_LOAD_STATE_STORE|STDS_)|\.execution\.(?:streaming|datasources\.v2)\.state\."
)
"""Names that Spark's errors have if its reader of state failed."""


@dataclass(frozen=True, slots=True)
class StoppedQuery:
    """A query of Spark at the end of its last committed epoch.

    `path` must be a path that Spark and :func:`open_storage` both understand.
    """

    path: str
    query_id: str
    epoch: int
    log: SparkLog

    def position(self, query: DataFrame | None = None) -> Position:
        """Return where a query continues that is restored from here.

        `query` shows whether one source is read at several places. Without it, each place counts as
        a separate source.
        """
        entry = self.log.offsets_entry(self.epoch)
        if query is None:
            names = entry.keys if entry.is_named and entry.keys else ()
            sources = Sources(tuple(range(len(entry.source_offsets))), names)
        else:
            sources = Sources(source_ids(query), given_names(query) if entry.is_named else ())
        offsets = entry.in_order(sources)
        watermark_ms = self.log.watermark_ms(self.epoch)
        files = self.log.source_log_files(offsets, sources)
        return Position(
            offsets_entry=_without_state_store(offsets).text(),
            epoch=self.epoch,
            watermark_ms=watermark_ms,
            commits_entry=self.log.commits_entry(self.epoch),
            source_ids=sources.ids,
            source_names=sources.names,
            location=self.path,
            location_query_id=self.query_id,
            source_files={
                (file.source_index, file.log_name): (self.log.storage, file.path) for file in files
            },
        )

    def origin(self, uids: tuple[str, ...]) -> Origin:
        """Return the query as the origin of a savepoint that has these operators."""
        return Origin(
            path=self.path,
            kind=CheckpointKind.CHECKPOINT,
            checkpoint_id=None,
            query_id=self.query_id,
            epoch=self.epoch,
            operators=uids,
        )


def stopped_query(
    spark: SparkSession, location: str, *, discard_uncommitted: bool = False
) -> StoppedQuery:
    """Open the location of a query that was stopped after an epoch, not in the middle of one.

    With `discard_uncommitted`, an epoch that began and was not committed is left out. It raises
    ``RestoreError`` if the query runs, was stopped in the middle of an epoch, or is a query of this
    library.
    """
    path = qualified_path(spark, location)
    log = SparkLog(open_storage(path, "location"))
    check_state_can_be_read(log.storage.hadoop_url, _ELSEWHERE)
    query_id, epoch, begun = log.query_id(), log.committed_epoch(), log.begun_epoch()
    if query_id is None or epoch is None:
        raise CheckpointNotFoundError(
            f"{path} has no committed epoch of a query of Spark: give the checkpointLocation of "
            "one that ran"
        )
    if session_of(spark).is_active(query_id):
        raise RestoreError(
            f"{path}: the query {query_id} runs in this application: stop it, then import"
        )
    if begun is not None and begun > epoch and not discard_uncommitted:
        raise RestoreError(
            f"{path}: epoch {begun} began and was not committed, so the query was stopped in the "
            "middle of it. Spark would run the epoch again with the same rows, and a sink may have "
            "some of its output. Start the query of Spark once more, and stop it between two "
            f"epochs; or give discard_uncommitted=True, which imports epoch {epoch} and reads the "
            "rows of the unfinished epoch again, in other epochs"
        )
    return StoppedQuery(path, query_id, epoch, log)


def _without_state_store(entry: OffsetsEntry) -> OffsetsEntry:
    """Return the entry without the settings of the state store of Spark's operator."""
    conf = entry.metadata.get("conf")
    if not isinstance(conf, dict):
        return entry
    kept = {key: value for key, value in conf.items() if not key.startswith(_STATE_STORE)}
    return OffsetsEntry({**entry.metadata, "conf": kept}, entry.source_offsets, entry.keys)


def check_partitions(storage: Storage, where: str, operator_id: int, partitions: int) -> None:
    """Check that an operator has the directory of each partition of its state."""
    missing = missing_partitions(storage, operator_id, partitions)
    if missing:
        raise CorruptFileError(
            f"{where}: the state of partition {', '.join(map(str, missing))} of {partitions} is "
            f"missing: there is no {storage.url_of(f'state/{operator_id}/{missing[0]}')}: {_ADVICE}"
        )


def check_operators(path: str, ids: set[int], known: Mapping[str, Collection[int]]) -> None:
    """Check that no operator is missing among the ids, which Spark gives from 0 on."""
    missing = sorted({*range(max(ids, default=0)), *chain(*known.values())} - ids)
    if not missing:
        return
    names = ", ".join(what for what, each in known.items() if not ids.issuperset(each))
    raise CorruptFileError(
        f"{path}: the state of operator {_list_text(missing)} is missing, Spark finds only that of "
        f"{_list_text(sorted(ids)) or 'none'}{names and f' (more have {names})'}: {_ADVICE}"
    )


def _list_text(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


@contextmanager
def reading(where: str, what: str = "its state") -> Iterator[None]:
    """Say of what Spark cannot read where it is, and what to do.

    Spark begins some reads only when their rows are asked for, so the context has to last.
    """
    try:
        yield
    except CkptError:  # some are PySpark's errors too
        raise
    except JOB_ERRORS as exc:
        raise unreadable(where, exc, what) from exc


def unreadable(where: str, error: Exception, what: str = "its state") -> CorruptFileError:
    """Return the error of what Spark cannot read."""
    return CorruptFileError(f"{where}: Spark cannot read {what}: {said(error)}: {_ADVICE}")


def failed_read(places: Mapping[str, str], uid: str, error: Exception) -> CkptError | None:
    """Return the error of a job that writes an operator and failed because of what it reads.

    It returns ``None`` if the job failed for another reason than damaged state. `places` has where
    the state of each operator comes from, by uid.
    """
    if _SPARKS_READER.search(str(error)) is None:
        return None
    return unreadable(f"{places[uid]}, as operator {uid!r}", error)
