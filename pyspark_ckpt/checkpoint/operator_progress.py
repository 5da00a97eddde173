"""What a query's operators did in an epoch, in the form of Spark's ``lastProgress``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark_ckpt.on_disk.handle import EpochMetrics, Handle

_COUNTS = {
    "numInputRows": "rows",
    "numKeysTouched": "keys",
    "numStateReads": "reads",
    "numCacheHits": "cache_hits",
    "numStateWrites": "writes",
    "numTimersFired": "timers_fired",
    "numExpired": "expired",
    "numRebuilds": "rebuilds",
}
_TIMES = {"openTimeMs": "open_ms", "processTimeMs": "process_ms", "barrierTimeMs": "barrier_ms"}


def operator_progress(
    uid: str, epoch: int, backend_type: str, handles: Sequence[Handle]
) -> dict[str, Any]:
    """Return an operator's part of an epoch; subtasks that were not called in it count as idle.

    Counts are sums over the subtasks, times those of the slowest one.

    Parameters
    ----------
    uid
        The operator.
    epoch
        The epoch, committed.
    backend_type
        Where its state lives.
    handles
        Those of the epoch, by subtask.
    """
    metrics = [handle.metrics or EpochMetrics() for handle in handles if handle.epoch == epoch]
    return {
        "operatorName": uid,
        "epoch": epoch,
        "backend": backend_type,
        "numSubtasks": len(metrics),
        **{name: sum(getattr(each, field) for each in metrics) for name, field in _COUNTS.items()},
        **{
            name: max((getattr(each, field) for each in metrics), default=0)
            for name, field in _TIMES.items()
        },
        "subtasks": [
            {"subtask": handle.subtask, "epoch": handle.epoch, **_state_size(handle)}
            for handle in handles
        ],
    }


def _state_size(handle: Handle) -> dict[str, int]:
    """Return how large what the handle names is; the base is compressed or not, as it lies."""
    return {
        "baseBytes": 0 if handle.base is None else handle.base.size_bytes,
        "changelogBytes": sum(segment.size_bytes for segment in handle.segments),
        "changelogSegments": len(handle.segments),
    }
