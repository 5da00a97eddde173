"""The handles of an epoch, read back from Spark: exactly the handles that Spark committed.

Mostly only what an epoch changed is read, from Spark's small files, and added to the handles that
are known. Otherwise Spark reads its state store as a whole (docs/design/handles.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeVar

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.query_files import KnownHandle, QueryFiles
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, CorruptFileError
from pyspark_ckpt.formats.handle import Handle, decode_handle, not_woken, subtasks_not_woken
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.state_changes import STORES_WITH_CHANGES, handles_in_changes
from pyspark_ckpt.spark.state_files import STATE, missing_partitions
from pyspark_ckpt.spark.state_reader import encoded_handles, partitions_missing
from pyspark_ckpt.storage.base import all_of
from pyspark_ckpt.storage.open import Storage

_Place = TypeVar("_Place")

_MOST_FILES = 20
"""So many files of a partition's changes are read rather than its whole state by Spark."""


def read_handles(
    spark: SparkSession, log: SparkLog, epoch: int, operator_id: int, parallelism: int | None
) -> list[Handle]:
    """Return the handles of an operator in Spark's state store at an epoch, unchecked."""
    if parallelism is not None:
        _check_names(log.storage, epoch, operator_id, parallelism)
    place = log.storage.hadoop_url, epoch, operator_id, parallelism
    return sorted(map(decode_handle, encoded_handles(spark, *place)), key=attrgetter("subtask"))


def _check_names(location: Storage, epoch: int, operator_id: int, parallelism: int) -> None:
    """Check that each subtask has a directory: Spark names a gap badly, and an end not at all."""
    missing = missing_partitions(location, operator_id, parallelism)
    if missing:
        what = f"lacks the partitions {', '.join(map(str, missing))} of Spark's state"
        raise partitions_missing(location.url_of(f"{STATE}/{operator_id}"), epoch, what)


def all_handles(spark: SparkSession, query: QueryFiles, epoch: int) -> list[Handle]:
    """Return the handles of all operators of a query, each as :func:`committed_handles`."""
    return [
        handle
        for operator_id in query.operators.ours
        for handle in committed_handles(spark, query, epoch, operator_id)
    ]


def committed_handles(
    spark: SparkSession, query: QueryFiles, epoch: int, operator_id: int
) -> tuple[Handle, ...]:
    """Return one operator's handles at a committed epoch, by subtask.

    Newer epochs may run at the same time. A subtask that never had a row has no handle.

    ``CheckpointAbortedError`` means that Spark does not hold one handle per subtask, or that a
    subtask did not start from its initial state. ``CorruptFileError`` means that Spark's offsets
    are unreadable, or that Spark has lost the state of a subtask whose handle is not known.
    """
    operator = query.operators.ours[operator_id]
    handles = _all_from_changes(query, epoch, operator_id)
    if handles is None:
        read = read_handles(spark, query.spark_log, epoch, operator_id, operator.parallelism)
        handles = checked_handles(query, epoch, operator_id, read)
        for subtask in range(operator.parallelism):
            own = [handle for handle in handles if handle.subtask == subtask]
            query.known_handles.put(operator_id, subtask, KnownHandle(epoch, own))
    if operator.initial_state is not None:
        found = query.storage, operator.uid, operator.parallelism, handles
        if missing := subtasks_not_woken(*found):
            raise CheckpointAbortedError(not_woken(operator.uid, missing))
    return handles


def _all_from_changes(query: QueryFiles, epoch: int, operator_id: int) -> tuple[Handle, ...] | None:
    """Return an operator's handles, ``None`` if one of them has to be read by Spark."""
    subtasks = range(query.operators.ours[operator_id].parallelism)
    read = partial(_from_changes, query, epoch, operator_id)
    found = _all_known(query, read, subtasks)
    return None if found is None else tuple(found)


def _all_known(
    query: QueryFiles, read: Callable[[_Place], list[Handle] | None], places: Sequence[_Place]
) -> list[Handle] | None:
    """Return what `read` returns of all places, ``None`` as soon as it does not know one of them.

    Mostly the first shows whether files of changes can be read: they have one form in a run.
    """
    handles = read(places[0])
    if handles is None or len(places) == 1:
        return handles
    rest: Iterable[list[Handle] | None] = map(read, places[1:])
    if query.spark_log.storage.is_remote:
        rest = all_of(read, places[1:], at_once=True)
    found = list(handles)
    for each in rest:
        if each is None:
            return None
        found += each
    return found


def committed_handle(
    spark: SparkSession, query: QueryFiles, epoch: int, operator_id: int, subtask: int
) -> Handle | None:
    """Return the handle of one subtask at a committed epoch, ``None`` if it never had a row."""
    found = _from_changes(query, epoch, operator_id, subtask)
    if found is None:
        place = query.checkpoint_location, epoch, operator_id, None, subtask
        read = list(map(decode_handle, encoded_handles(spark, *place)))
        found = list(checked_handles(query, epoch, operator_id, read))
        if any(handle.subtask != subtask for handle in found):
            raise CheckpointAbortedError(
                f"operator {query.operators.ours[operator_id].uid!r}, epoch {epoch}: Spark's state "
                f"store at {query.checkpoint_location} holds the handle of subtask "
                f"{found[0].subtask} in partition {subtask}; start the query at a new location"
            )
        query.known_handles.put(operator_id, subtask, KnownHandle(epoch, found))
    return found[0] if found else None


def _from_changes(
    query: QueryFiles, epoch: int, operator_id: int, subtask: int
) -> list[Handle] | None:
    """Return a subtask's handle, or an empty list if it has none; ``None`` if Spark has to read it.

    It is the last one that was written after the epoch at which it is known, or the known one. If
    none is known, it has to be of this epoch: epochs before may have been put there by a restore.
    """
    known = query.known_handles.at(operator_id, subtask, epoch)
    if known is not None and known.epoch == epoch:
        return known.handles
    if not _has_changes(query, epoch):
        return None
    oldest = epoch if known is None else max(known.epoch, epoch - _MOST_FILES) + 1
    for each in range(epoch, oldest - 1, -1):
        written = _written(query, each, operator_id, subtask)
        if written is None:
            return None
        if written:
            break
    else:
        if known is None or known.epoch < oldest - 1:
            return None
        written = known.handles
    query.known_handles.put(operator_id, subtask, KnownHandle(epoch, written))
    return written


def handles_written_in(query: QueryFiles, epochs: range, operator_id: int) -> list[Handle] | None:
    """Return the handles that committed epochs of this run wrote, ``None`` if a file is unknown."""
    if not _has_changes(query, epochs[-1]):
        return None
    subtasks = range(query.operators.ours[operator_id].parallelism)
    places = [(epoch, operator_id, subtask) for epoch in epochs for subtask in subtasks]
    return _all_known(query, lambda place: _written(query, *place), places)


def _has_changes(query: QueryFiles, epoch: int) -> bool:
    """Return whether Spark's state store writes files of changes that count; one run has one."""
    known = query.known_handles
    if known.has_changes is None:
        try:
            entry = query.spark_log.offsets_entry(epoch)
        except CkptError:
            return False  # Spark has dropped the entry
        known.has_changes = entry.state_store in STORES_WITH_CHANGES
    return known.has_changes


def _written(query: QueryFiles, epoch: int, operator_id: int, subtask: int) -> list[Handle] | None:
    """Return the handle that a subtask wrote in an epoch, if any; ``None`` if it is unknown."""
    encoded = handles_in_changes(query.spark_log.storage, operator_id, subtask, epoch)
    if encoded is None or len(encoded) > 1:
        return None
    try:
        handles = checked_handles(query, epoch, operator_id, list(map(decode_handle, encoded)))
    except (CorruptFileError, CheckpointAbortedError):
        return None  # Spark's own reader decides
    is_its_own = all((each.subtask, each.epoch) == (subtask, epoch) for each in handles)
    return list(handles) if is_its_own else None


def checked_handles(
    query: QueryFiles, epoch: int, operator_id: int, handles: Sequence[Handle]
) -> tuple[Handle, ...]:
    """Return the handles that Spark holds for an operator, checked: one per subtask at most."""
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
