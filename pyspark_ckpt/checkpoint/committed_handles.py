"""The handles of an epoch, read back from Spark: exactly those that Spark committed."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.state_rows import (
    FEW_PARTITIONS,
    encoded_handles,
    written_handles,
)
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.on_disk.handle import Handle, decode_handle
from pyspark_ckpt.operator.descriptor import OperatorDescriptor


def read_handles(
    spark: SparkSession, checkpoint_location: str, epoch: int, operator_id: int
) -> list[Handle]:
    """Return what Spark's state store holds for an operator at an epoch, by subtask, unchecked."""
    return _by_subtask(encoded_handles(spark, checkpoint_location, epoch, operator_id))


def committed_handles(
    spark: SparkSession,
    checkpoint_location: str,
    epoch: int,
    query_id: str,
    operator: OperatorDescriptor,
    operator_id: int,
) -> tuple[Handle, ...]:
    """Return one operator's handles at a committed epoch, by subtask.

    Reads Spark's state store; newer epochs may run meanwhile. A subtask that never had a row has no
    handle.

    Raises
    ------
    CheckpointAbortedError
        If what Spark holds is not one handle per subtask of this operator.
    """
    place = (spark, checkpoint_location, epoch, operator_id)
    handles = _if_all_wrote(place, operator.parallelism) or read_handles(*place)
    subtasks = [handle.subtask for handle in handles]
    fitting = all(
        handle.query_id == query_id
        and handle.uid == operator.uid
        and handle.parallelism == operator.parallelism
        and 0 <= handle.subtask < operator.parallelism
        and handle.epoch <= epoch
        for handle in handles
    )
    if not fitting or len(set(subtasks)) != len(subtasks):
        raise CheckpointAbortedError(
            f"operator {operator.uid!r}, epoch {epoch}: Spark's state store at "
            f"{checkpoint_location} holds handles of another query, operator or subtask "
            f"({[(h.query_id, h.uid, h.subtask, h.epoch) for h in handles]}); a location that was "
            "deleted and used again within one session can be mixed with its past: use a new one"
        )
    return tuple(handles)


def _if_all_wrote(place: tuple[SparkSession, str, int, int], parallelism: int) -> list[Handle]:
    """Return the handles written in the epoch itself if every subtask has one, else none."""
    if parallelism > FEW_PARTITIONS:
        return []
    handles = _by_subtask(written_handles(*place))
    return handles if [handle.subtask for handle in handles] == list(range(parallelism)) else []


def _by_subtask(encoded: Iterable[bytes]) -> list[Handle]:
    return sorted(map(decode_handle, encoded), key=lambda handle: handle.subtask)
