"""When checkpoints that fail stop their query, and what it then says."""

from __future__ import annotations

from pyspark_ckpt.checkpoint.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError, FailedCheckpointsError


def why_to_stop(
    query_id: str, last: CheckpointAbortedError, tolerable: int, *, is_exceeded: bool
) -> FailedCheckpointsError | None:
    """Return why a query must not go on, ``None`` if it may; `last` is its cause.

    Parameters
    ----------
    query_id
        The query.
    last
        Why its newest checkpoint was given up.
    tolerable, is_exceeded
        How many checkpoints in a row may fail, and whether more have.
    """
    if last.reason == AbortReason.FENCED:
        # Whatever it writes from now on, another driver writes too.
        failure = FailedCheckpointsError(
            f"query {query_id} was stopped: another driver runs it ({last})"
        )
    elif is_exceeded:
        failure = FailedCheckpointsError(
            f"query {query_id} was stopped: more than {tolerable} checkpoints in a row "
            f"failed, the last one is {last}; mend that and start the query again at its "
            "checkpointLocation, or raise "
            "spark.ckpt.execution.checkpointing.tolerable-failed-checkpoints"
        )
    else:
        return None
    failure.__cause__ = last
    return failure
