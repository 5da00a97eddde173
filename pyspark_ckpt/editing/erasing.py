"""Erases keys from every savepoint of a directory, and scans the bytes of what replaces them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.editing.operator_job import OperatorJob
from pyspark_ckpt.editing.operators import stored_operator
from pyspark_ckpt.editing.state_edit import StateEdit
from pyspark_ckpt.errors import CheckpointNotFoundError, PlanError, RestoreError
from pyspark_ckpt.formats.handle import decode_handle, encode_handle
from pyspark_ckpt.formats.layout import IN_PROGRESS_NAME, METADATA_NAME, checkpoint_id_of
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint, format_of
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.operator.durable.merged_state import merged_state
from pyspark_ckpt.operator.table.stored_keys import KEY_GROUP_BYTES, TIME_INDEX
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.savepoint.dispose import dispose_savepoint
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.storage.open import Storage, open_storage

_FOUND_SCHEMA = "own long, others long"
_MOST_LEVELS = 10
_OF_SAVEPOINTS = {METADATA_NAME, IN_PROGRESS_NAME}
_FEWEST_BYTES = 4
"""Fewer bytes are in other entries by chance."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """What became of one savepoint; returned by :func:`erase_keys`.

    Parameters
    ----------
    replaced : str
        The savepoint that had the keys; it was disposed of.
    savepoint : Savepoint
        The savepoint that replaces it.
    mentions : int
        Entries of other keys or operators in the new savepoint that contain the bytes of an erased
        key, for example a list of friends. They are kept. Keys of fewer than four bytes are not
        searched for there, because so few bytes are in other entries by chance.
    not_scanned : tuple of str
        Files of Spark in the new savepoint, which were copied as they are: the state of Spark's own
        operators, and logs of sources.

    Examples
    --------
    >>> erasure = ckpt.Erasure("/savepoints/savepoint-1", savepoint, 0, ())
    >>> erasure.mentions
    0
    """

    replaced: str
    savepoint: Savepoint
    mentions: int
    not_scanned: tuple[str, ...]


def erase_keys(
    directory: str, keys: Mapping[str, DataFrame], *, spark: SparkSession | None = None
) -> list[Erasure]:
    """Erase keys from every savepoint in a directory.

    Each savepoint that has one of the keys is replaced by a new one without them. So is one in the
    ``NATIVE`` format, whose files may still have a key that the processor has deleted. The new ones
    are written first and read back: no entry may have an erased key. Then the old ones are disposed
    of. If the call is interrupted, the old ones may be there with the keys: call it again. If that
    names a savepoint as incomplete, damaged or being deleted, finish its end with
    ``dispose_savepoint`` first.

    Parameters
    ----------
    directory : str
        Where savepoints are, whatever their names, also in directories below it.
    keys : Mapping of str to DataFrame
        For each operator's uid the key columns of the keys.
    spark : SparkSession, optional
        The session whose executors do the work, by default the active one.

    Returns
    -------
    list of Erasure
        One for each savepoint that was replaced.

    Raises
    ------
    PlanError
        If the directory has checkpoints of a query, which only the query's retention deletes, or
        too many levels, no savepoint there has one of the operators, or there is no Spark session.
    CheckpointNotFoundError, CorruptFileError, UnsafePathError
        If there is no savepoint, or one is incomplete or damaged. It may hold the keys, so nothing
        was deleted.
    RestoreError
        If an erased key was read back from a new savepoint. Nothing was deleted.

    Examples
    --------
    >>> kept = ckpt.edit_state(savepoint.path).save(f"{directory}/private")
    >>> person = spark.createDataFrame([("bob",)], "user string")
    >>> [erasure] = ckpt.erase_keys(f"{directory}/private", {"count": person})
    >>> erasure.mentions, erasure.replaced == kept.path
    (0, True)
    """
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise PlanError("erase_keys needs a Spark session: make one, or give spark=")
    place = open_storage(qualified_path(session, str(directory)))
    found = list(_savepoints_below(place, _MOST_LEVELS))
    if not found:
        raise CheckpointNotFoundError(
            f"{place.url} has no savepoint: give the directory in which savepoint-... directories "
            "are, not one of them and not a checkpointLocation"
        )
    sources = [RestoreSource(savepoint.url) for savepoint in found]
    known = {operator.uid for source in sources for operator in source.metadata.operators}
    if unknown := keys.keys() - known:
        raise PlanError(
            f"no savepoint in {place.url} has an operator {', '.join(map(repr, sorted(unknown)))}: "
            f"they have {', '.join(map(repr, sorted(known)))}"
        )
    erasures = []
    for savepoint, source in zip(found, sources, strict=True):
        erased = {uid: _encoded(session, source, uid, rows) for uid, rows in keys.items()}
        if not _may_have(session, source, erased):
            continue
        edit = StateEdit(session, source)
        for uid, rows in keys.items():
            if erased[uid]:
                edit.erase(uid, rows)
        erasures.append(_proven(session, source, edit.save(savepoint.parent().url), erased))
    for erasure in erasures:
        dispose_savepoint(erasure.replaced)
    return erasures


def _proven(
    spark: SparkSession, source: RestoreSource, made: Savepoint, erased: dict[str, frozenset[bytes]]
) -> Erasure:
    """Return what became of a savepoint, after the new one was read back."""
    new = RestoreSource(made.path)
    own, mentions = _scanned(spark, new, erased)
    if own:
        raise RestoreError(
            f"{made.path} still has {own} entries of erased keys, so {source.path} was kept: this "
            "is a bug of the library, report it; and dispose of both savepoints by hand"
        )
    logs = [log.file.path for log in new.metadata.source_logs]
    files = [each.file.path for each in new.metadata.spark_operator_files()]
    return Erasure(source.path, made, mentions, tuple(sorted({*logs, *files})))


def _savepoints_below(place: Storage, levels: int) -> Iterator[Storage]:
    """Return the directories of savepoints below a directory, whatever their names.

    Raises
    ------
    PlanError
        If there are checkpoints too, or directories below so many levels.
    """
    names = place.list()
    if any(checkpoint_id_of(name) is not None for name in names):
        raise PlanError(
            f"{place.url} has checkpoints of a query, which only the query's retention deletes: "
            "start the query from an edited savepoint at a fresh checkpointLocation, then delete "
            "the old location"
        )
    for name in names:
        below = place.child(name)
        inside = below.list()  # nothing in a file
        if name.startswith("savepoint-") or not _OF_SAVEPOINTS.isdisjoint(inside):
            yield below
        elif inside and not levels:
            raise PlanError(
                f"{below.url} is more than {_MOST_LEVELS} levels below the directory, and may have "
                "savepoints: give a directory nearer to them"
            )
        elif inside:
            yield from _savepoints_below(below, levels - 1)


def _may_have(
    spark: SparkSession, source: RestoreSource, erased: dict[str, frozenset[bytes]]
) -> bool:
    """Return whether a savepoint has an erased key, or may have one that was deleted before.

    A native savepoint has files of the backend and of the changelog, which keep what was
    overwritten. A handle has the key at which the removal of expired entries continues.
    """
    if not any(erased.values()):
        return False
    if format_of(source.metadata) is not SavepointFormat.CANONICAL:
        return True
    for handle in source.metadata.handles():
        keys = erased.get(handle.uid, frozenset())
        if any(key[KEY_GROUP_BYTES:] in handle.sweep_from for key in keys):
            return True
    return _scanned(spark, source, erased)[0] > 0


def _encoded(
    spark: SparkSession, source: RestoreSource, uid: str, rows: DataFrame
) -> frozenset[bytes]:
    """Return the keys as an operator of a savepoint stores them, behind their key groups."""
    for stored in source.metadata.operators:
        if stored.uid == uid:
            operator = stored_operator(source, stored)
            operator.erase(rows)
            return OperatorJob(spark, operator).erased_keys()
    return frozenset()


def _scanned(
    spark: SparkSession, source: RestoreSource, erased: dict[str, frozenset[bytes]]
) -> tuple[int, int]:
    """Return how many entries have an erased key, and how many others contain one's bytes."""
    handles = source.metadata.handles()
    if not handles or not any(erased.values()):
        return 0, 0
    encoded = tuple(map(encode_handle, handles))
    places = spark.range(len(encoded), numPartitions=len(encoded))
    scan = _Scan(encoded, source.storage.url, erased)
    rows = collected(places.mapInArrow(scan, _FOUND_SCHEMA), f"scanning {source.path}")
    return sum(row.own for row in rows), sum(row.others for row in rows)


class _Scan:
    """The function given to ``mapInArrow`` over the places of handles: counts entries with keys."""

    def __init__(
        self, handles: tuple[bytes, ...], source: str, erased: dict[str, frozenset[bytes]]
    ) -> None:
        self._handles = handles
        self._source = source
        self._erased = erased

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self._source)
        for batch in batches:
            for place in batch.column(0).to_pylist():
                own, others = self._counted(storage, self._handles[place])
                columns = [pa.array([own], pa.int64()), pa.array([others], pa.int64())]
                yield pa.RecordBatch.from_arrays(columns, names=["own", "others"])

    def _counted(self, storage: Storage, data: bytes) -> tuple[int, int]:
        handle = decode_handle(data)
        patterns = {
            # Without the head of the tuple, which other tuples do not have.
            key[KEY_GROUP_BYTES + 1 :]
            for keys in self._erased.values()
            for key in keys
        }
        own = others = 0
        root = executor_local_root(handle.subtask)
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-scan-", dir=root) as scratch:
            for part in merged_state(storage, handle, Path(scratch)):
                keys = pa.array(part.keys, pa.binary())
                values = pa.array(part.values, pa.binary())
                is_own = _has_key(keys, self._erased.get(handle.uid, frozenset()))
                own += pc.sum(is_own).as_py() or 0
                others += _with_bytes(keys.filter(pc.invert(is_own)), patterns)
                others += _with_bytes(values.filter(pc.invert(is_own)), patterns)
        return own, others


def _has_key(keys: pa.BinaryArray, erased: frozenset[bytes]) -> pa.BooleanArray:
    """Return whether each entry is state or a timer of an erased key."""
    found = pa.array([False] * len(keys))
    for key in erased:
        group, user_key = key[:KEY_GROUP_BYTES], key[KEY_GROUP_BYTES:]
        same_group = pc.starts_with(keys, group)
        start = KEY_GROUP_BYTES + 1
        of_key = pc.equal(pc.binary_slice(keys, start, start + len(user_key)), user_key)
        by_time = pc.and_(pc.starts_with(keys, TIME_INDEX), pc.ends_with(keys, key))
        found = pc.or_(found, pc.or_(pc.and_(same_group, of_key), by_time))
    return found


def _with_bytes(data: pa.BinaryArray, patterns: set[bytes]) -> int:
    found = 0
    for pattern in patterns:
        if len(pattern) >= _FEWEST_BYTES:
            found += pc.sum(pc.match_substring(data, pattern)).as_py() or 0
    return found
