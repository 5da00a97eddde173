"""The handles of an epoch, read back from Spark: exactly the handles that Spark committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError
from pyspark_ckpt.formats.handle import Handle, decode_handle, not_woken, subtasks_not_woken
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.state_files import STATE, missing_partitions
from pyspark_ckpt.spark.state_reader import (
    FEW_PARTITIONS,
    STORES_WITH_CHANGES,
    encoded_handle,
    encoded_handles,
    encoded_handles_written_in,
    partitions_missing,
    written_handles,
)
from pyspark_ckpt.storage.open import Storage


def read_handles(
    spark: SparkSession, log: SparkLog, epoch: int, operator_id: int, parallelism: int | None
) -> list[Handle]:
    """Return the handles of an operator in Spark's state store at an epoch, unchecked."""
    if parallelism is not None:
        _check_names(log.storage, epoch, operator_id, parallelism)
    place = log.storage.hadoop_url, epoch, operator_id, parallelism
    return _by_subtask(encoded_handles(spark, *place))


def _check_names(location: Storage, epoch: int, operator_id: int, parallelism: int) -> None:
    """Check that each subtask has a directory: Spark names a gap badly, and an end not at all."""
    missing = missing_partitions(location, operator_id, parallelism)
    if missing:
        what = f"lacks the partitions {', '.join(map(str, missing))} of Spark's state"
        raise partitions_missing(location.url_of(f"{STATE}/{operator_id}"), epoch, what)


def all_handles(spark: SparkSession, query: QueryFiles, epoch: int) -> list[Handle]:
    """Return the handles of all operators of a query at an epoch, unchecked."""
    return [
        handle
        for operator_id, operator in query.operators.ours.items()
        for handle in read_handles(spark, query.spark_log, epoch, operator_id, operator.parallelism)
    ]


def committed_handles(
    spark: SparkSession, query: QueryFiles, epoch: int, operator_id: int
) -> tuple[Handle, ...]:
    """Return one operator's handles at a committed epoch, by subtask.

    It reads Spark's state store, and newer epochs may run at the same time. A subtask that never
    had a row has no handle.

    ``CheckpointAbortedError`` means that Spark does not hold one handle per subtask, or that a
    subtask did not start from its initial state. ``CorruptFileError`` means that Spark's offsets
    are unreadable, or that Spark has lost the state of a subtask.
    """
    operator = query.operators.ours[operator_id]
    handles = _if_all_wrote(spark, query, epoch, operator_id) or read_handles(
        spark, query.spark_log, epoch, operator_id, operator.parallelism
    )
    if operator.initial_state is not None:
        found = query.storage, operator.uid, operator.parallelism, handles
        if missing := subtasks_not_woken(*found):
            raise CheckpointAbortedError(not_woken(operator.uid, missing))
    return checked_handles(query, epoch, operator_id, handles)


def committed_handle(
    spark: SparkSession, query: QueryFiles, epoch: int, operator_id: int, subtask: int
) -> Handle | None:
    """Return the handle of one subtask at a committed epoch, ``None`` if it never had a row."""
    encoded = encoded_handle(spark, query.checkpoint_location, epoch, operator_id, subtask)
    handles = checked_handles(query, epoch, operator_id, list(map(decode_handle, encoded)))
    if any(handle.subtask != subtask for handle in handles):
        raise CheckpointAbortedError(
            f"operator {query.operators.ours[operator_id].uid!r}, epoch {epoch}: Spark's state "
            f"store at {query.checkpoint_location} holds the handle of subtask "
            f"{handles[0].subtask} in partition {subtask}; start the query at a new location"
        )
    return handles[0] if handles else None


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


def handles_written_in(
    spark: SparkSession, query: QueryFiles, epochs: range, operator_id: int
) -> list[Handle] | None:
    """Return the handles that some committed epochs wrote, ``None`` if Spark does not know.

    An epoch may have run with another state store before the query was started again.
    """
    try:
        stores = {query.spark_log.offsets_entry(epoch).state_store for epoch in epochs}
    except CkptError:
        return None  # Spark has dropped an entry
    if not stores <= STORES_WITH_CHANGES:
        return None
    if not query.spark_log.has_changes(operator_id, epochs.start):
        return None  # an error of Spark's tasks says the same, in the log of a server
    written = encoded_handles_written_in(spark, query.checkpoint_location, epochs, operator_id)
    return None if written is None else list(map(decode_handle, written))


def _if_all_wrote(
    spark: SparkSession, query: QueryFiles, epoch: int, operator_id: int
) -> list[Handle]:
    """Return the handles that the epoch wrote if every subtask wrote one, else an empty list."""
    parallelism = query.operators.ours[operator_id].parallelism
    if parallelism > FEW_PARTITIONS:
        return []
    if query.spark_log.offsets_entry(epoch).state_store not in STORES_WITH_CHANGES:
        return []
    if not query.spark_log.has_changes(operator_id, epoch):
        return []
    handles = _by_subtask(written_handles(spark, query.checkpoint_location, epoch, operator_id))
    of_all = [(subtask, epoch) for subtask in range(parallelism)]
    return handles if [(handle.subtask, handle.epoch) for handle in handles] == of_all else []


def _by_subtask(encoded: Iterable[bytes]) -> list[Handle]:
    return sorted(map(decode_handle, encoded), key=lambda handle: handle.subtask)
