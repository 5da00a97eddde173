"""Values of the metrics of operators, from the handles of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from pyspark_ckpt.formats.handle import EpochMetrics, EpochPhases, Handle, StateCounts
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.metrics.declared import ROCKSDB_PROPERTIES, rocksdb_metric
from pyspark_ckpt.metrics.point import Point, point

_OF_THE_EPOCH: Mapping[str, Callable[[EpochMetrics], float]] = {
    "operator_input_rows": lambda each: each.rows,
    "operator_keys": lambda each: each.keys,
    "operator_state_reads": lambda each: each.reads,
    "operator_cache_hits": lambda each: each.cache_hits,
    "operator_state_writes": lambda each: each.writes,
    "operator_timers_fired": lambda each: each.timers_fired,
    "operator_expired_entries": lambda each: each.expired,
    "operator_rebuilds": lambda each: each.rebuilds,
    "operator_requests": lambda each: each.requests or 0,
    "operator_open_duration": lambda each: each.open_ms / 1000,
    "operator_process_duration": lambda each: each.process_ms / 1000,
    "operator_barrier_duration": lambda each: each.barrier_ms / 1000,
}

_PHASES: Mapping[str, Callable[[EpochPhases], float]] = {
    "operator_read_duration": lambda each: each.read_ms / 1000,
    "operator_user_duration": lambda each: each.user_ms / 1000,
    "operator_write_duration": lambda each: each.write_ms / 1000,
}


_PARKED: Mapping[str, Callable[[EpochMetrics], float]] = {
    "operator_parked_keys": lambda each: each.parked_keys or 0,
    "operator_parked_rows": lambda each: each.parked_rows or 0,
}
"""What stays from the last epoch in which Spark called a subtask."""


def operator_values(metadata: CheckpointMetadata) -> Iterator[Point]:
    """Yield what each operator did in the epoch of a checkpoint, and the sizes of its states.

    A subtask that Spark did not call in the epoch counts as 0, as does one that Spark has never
    called, which has no handle.
    """
    for operator in metadata.operators:
        if operator.handles:
            idle = max(operator.parallelism - len(operator.handles), 0)
            yield from _of_subtasks(metadata, operator.uid, operator.handles, idle)
            yield from _of_rocksdb(operator.uid, operator.handles)


def _of_subtasks(
    metadata: CheckpointMetadata, uid: str, handles: Sequence[Handle], idle: int
) -> Iterator[Point]:
    over = partial(_over_subtasks, idle=idle, operator=uid)
    done = [
        (handle.metrics or EpochMetrics()) if handle.epoch == metadata.epoch else EpochMetrics()
        for handle in handles
    ]
    for name, value in _OF_THE_EPOCH.items():
        yield from over(name, list(map(value, done)))
    for name, parked in _PARKED.items():
        yield from over(name, [0 if h.metrics is None else parked(h.metrics) for h in handles])
    phases = [_phases_in(metadata.epoch, handle) for handle in handles]
    for name, seconds in _PHASES.items():
        yield from over(name, [0 if each is None else seconds(each) for each in phases])
    changelogs = [sum(each.size_bytes for each in handle.segments) for handle in handles]
    bases = [0 if handle.base is None else handle.base.size_bytes for handle in handles]
    stored = [base + changelog for base, changelog in zip(bases, changelogs, strict=True)]
    yield from over("operator_stored", stored)
    yield from over("operator_changelog", changelogs)
    yield from over("operator_changelog_segments", [len(handle.segments) for handle in handles])
    yield from over("operator_timer_overdue", [_overdue_s(handle, metadata) for handle in handles])
    yield from _counted(uid, handles, idle)


def _phases_in(epoch: int, handle: Handle) -> EpochPhases | None:
    """Return the phases of a subtask in an epoch, ``None`` if Spark did not call it then."""
    last = handle.phases[-1] if handle.phases else None
    return last if last is not None and last.epoch == epoch else None


def _over_subtasks(
    name: str, values: Sequence[float], *, idle: int = 0, **labels: str
) -> Iterator[Point]:
    values = [*values, *[0] * idle]
    yield point(name, min(values), subtasks="min", **labels)
    yield point(name, max(values), subtasks="max", **labels)
    yield point(name, sum(values), subtasks="sum", **labels)


def _overdue_s(handle: Handle, metadata: CheckpointMetadata) -> float:
    """Return how long a subtask should have been called again, by the clock of its timers."""
    now_ms = (
        metadata.triggered_at_ms
        if handle.time_mode is TimeMode.PROCESSING_TIME
        else metadata.watermark_ms
    )
    if handle.timeout_ms is None or now_ms is None:
        return 0
    return max(now_ms - handle.timeout_ms, 0) / 1000


def _counted(uid: str, handles: Sequence[Handle], idle: int) -> Iterator[Point]:
    """Yield the counts of keyed state, extrapolated from the key groups that were counted."""
    counts = [handle.counts for handle in handles if handle.counts and handle.counts.groups]
    if len(counts) != len(handles):
        return  # some subtask has not counted yet
    over = partial(_over_subtasks, idle=idle, operator=uid)
    yield from over("operator_timers", [_scale(each) * each.timers for each in counts])
    names = {state.name for each in counts for state in each.states}
    for name in sorted(names):
        keys, entries, sizes = [], [], []
        for each in counts:
            (of_state,) = [state for state in each.states if state.name == name] or (None,)
            scale = _scale(each)
            keys.append(0 if of_state is None else scale * of_state.keys)
            entries.append(0 if of_state is None else scale * of_state.entries)
            sizes.append(0 if of_state is None else scale * of_state.size_bytes)
        yield from over("state_keys", keys, state=name)
        yield from over("state_entries", entries, state=name)
        yield from over("state_size", sizes, state=name)


def _scale(counts: StateCounts) -> float:
    return counts.of_groups / counts.groups


def _of_rocksdb(uid: str, handles: Sequence[Handle]) -> Iterator[Point]:
    found = [handle.metrics.backend for handle in handles if handle.metrics is not None]
    known = [each for each in found if each]
    if not known:
        return
    for name in ROCKSDB_PROPERTIES:
        values = [each.get(name, 0) for each in known]
        yield from _over_subtasks(rocksdb_metric(name).name, values, operator=uid)
