"""The barrier of a subtask: the writes of an epoch become durable and get a new handle."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from pyspark_ckpt.formats.change_file import EntryCount, encode_changes
from pyspark_ckpt.formats.counters import EpochMetrics
from pyspark_ckpt.formats.handle import QUARANTINED_TIMERS_MS, Handle, Segment, new_version
from pyspark_ckpt.formats.layout import segment_path
from pyspark_ckpt.operator.run.state_counting import StateCounting, is_due
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.removal import sweep
from pyspark_ckpt.operator.table.stored_keys import OPERATOR_STATE
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.storage.base import WorkerStorage
from state_backends import Changes


def make_segment(
    storage: WorkerStorage,
    handle: Handle,
    changes: Iterable[Changes],
    epoch: int,
    inline_threshold_bytes: int,
) -> Segment | None:
    """Make one epoch's changes durable.

    The changes go into the handle if all its inline segments stay below the threshold. Otherwise
    they go into a file, which is durable on return. Without changes there is no segment.

    `changes` come in key order, in frames; they are read once, and are never all in memory.
    """
    remaining = iter(changes)
    first_changes = next(remaining, None)
    if first_changes is None:
        return None
    count = EntryCount()
    encoded = encode_changes(count.through(chain([first_changes], remaining)))
    room = inline_threshold_bytes - sum(
        segment.size_bytes for segment in handle.segments if segment.inline is not None
    )
    first: list[bytes] = []
    size_bytes = 0
    while size_bytes <= room and (part := next(encoded, None)) is not None:
        first.append(part)
        size_bytes += len(part)
    if size_bytes <= room:
        inline = b"".join(first)
        return Segment(new_version(epoch), epoch, count.entries, len(inline), inline=inline)
    file = storage.write(segment_path(handle.uid, handle.subtask, epoch), chain(first, encoded))
    return Segment(new_version(epoch), epoch, count.entries, file.size_bytes, file=file)


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

    `storage` is opened for this epoch, and `states` must not be used again. The new handle has the
    counts of `metrics` and those of the barrier. Without `metrics` the state is not counted.
    """
    began = time.monotonic()
    swept = sweep(states.table, states.descriptors, states.aging, handle.sweep_from)
    earliest_timer_ms = states.timers.earliest_ms()
    last = _LastKey()
    changes = last.through(states.table.changes())
    now_ms = states.clock.processing_time_ms
    counting = None
    if metrics is not None and is_due(handle.counts, now_ms):
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
        requests=sum(storage.requests().values()),
    )
    return msgspec.structs.replace(
        handle,
        metrics=metrics,
        counts=counts,
        epoch=epoch,
        segments=handle.segments if segment is None else (*handle.segments, segment),
        states=swept.states,
        sweep_from=swept.sweep_from,
        time_mode=states.clock.mode,
        timeout_ms=_timeout_ms(states.clock, earliest_timer_ms),
        has_state_of_no_key=last.key >= OPERATOR_STATE or handle.has_state_of_no_key,
    )


class _LastKey:
    """Notes the last key of changes that pass through in key order; empty without changes."""

    def __init__(self) -> None:
        self.key = b""

    def through(self, parts: Iterable[Changes]) -> Iterator[Changes]:
        for part in parts:
            self.key = part.keys[-1]
            yield part


def _timeout_ms(clock: EpochClock, earliest_timer_ms: int | None) -> int | None:
    if earliest_timer_ms is None or clock.earliest_timeout_ms is None:
        return None
    if earliest_timer_ms == QUARANTINED_TIMERS_MS:
        return QUARANTINED_TIMERS_MS
    # Spark calls when its clock has passed the timeout; a timer is due when its time is reached.
    # A timer that was registered too late for this epoch fires in the next one.
    return max(earliest_timer_ms - 1, clock.earliest_timeout_ms)


def _milliseconds(began: float) -> int:
    return round(1000 * (time.monotonic() - began))
