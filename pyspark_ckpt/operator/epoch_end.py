"""The barrier in a subtask: what the epoch wrote becomes durable and gets a new handle."""

from __future__ import annotations

import time

import msgspec

from pyspark_ckpt.formats.handle import EpochMetrics, Handle
from pyspark_ckpt.operator.barrier import make_segment
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state_counting import StateCounting, is_due
from pyspark_ckpt.operator.table.sweep import sweep
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.storage.base import WorkerStorage


def end_epoch(
    storage: WorkerStorage,
    handle: Handle,
    states: ProcessorHandle,
    epoch: int,
    inline_threshold_bytes: int,
    metrics: EpochMetrics | None = None,
) -> Handle:
    """End an epoch and return the handle of its version, all of which is durable.

    Called by a task on an executor, after the processor has run and its output was yielded.

    Parameters
    ----------
    storage
        The query's checkpoints directory.
    handle
        The handle that the epoch started from.
    states
        What the processor worked with; not used again.
    epoch
        The epoch that ends.
    inline_threshold_bytes
        Bytes that inline segments of a handle may take together.
    metrics
        What was counted up to the barrier; the handle has them, and what is counted here. Without
        them the state is not counted.
    """
    began = time.monotonic()
    swept = sweep(states.table, states.descriptors, states.aging, handle.sweep_from)
    earliest_timer_ms = states.timers.earliest_ms()
    changes = states.table.changes()
    now_ms = states.clock.processing_time_ms
    counting = None
    if metrics is not None and is_due(handle.counts or None, now_ms):
        counting = StateCounting(states.table, handle)
        changes = counting.through(changes)
    segment = make_segment(storage, handle, changes, epoch, inline_threshold_bytes)
    counts = handle.counts
    if counting is not None:
        counts = counting.counts(swept.states, epoch, now_ms)
    metrics = msgspec.structs.replace(
        metrics or EpochMetrics(),
        writes=0 if segment is None else segment.entries,
        expired=swept.removed,
        barrier_ms=_milliseconds(began),
    )
    return msgspec.structs.replace(
        handle,
        metrics=metrics,
        counts=counts,
        epoch=epoch,
        segments=handle.segments if segment is None else (*handle.segments, segment),
        states=swept.states,
        sweep_from=swept.sweep_from,
        time_mode=states.clock.mode.value,
        timeout_ms=_timeout_ms(states.clock, earliest_timer_ms),
    )


def _timeout_ms(clock: EpochClock, earliest_timer_ms: int | None) -> int | None:
    if earliest_timer_ms is None or clock.earliest_timeout_ms is None:
        return None
    # Spark calls when its clock has passed the timeout, a timer is due when it is reached. A timer
    # that was registered too late to fire now fires in the next epoch.
    return max(earliest_timer_ms - 1, clock.earliest_timeout_ms)


def _milliseconds(since: float) -> int:
    return round(1000 * (time.monotonic() - since))
