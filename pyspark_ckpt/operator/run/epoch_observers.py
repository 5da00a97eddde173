"""What watches an epoch of a subtask from outside: its capture, times, slow keys and counters."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.counters import EpochMetrics, EpochPhases
from pyspark_ckpt.formats.handle import Handle, with_phases
from pyspark_ckpt.operator.capture.recording import NOT_RECORDED, Recording
from pyspark_ckpt.operator.capture.writing import EpochOfTask, WrittenEpoch, WrittenFailure
from pyspark_ckpt.operator.quarantine.quarantine import Releases
from pyspark_ckpt.operator.run.function import OperatorFunction
from pyspark_ckpt.operator.run.observers import KeyTimes, Phase, sampled
from pyspark_ckpt.operator.run.task_epoch import OpenEpoch, TaskEpoch


def recording_of(
    function: OperatorFunction, epoch: TaskEpoch, handle: Handle, releases: Releases
) -> Recording:
    """Return what records an epoch that starts from a handle, if that was asked for."""
    captures = epoch.runtime.captures
    wants_all = captures.wants(handle.uid, epoch.number)
    if not (wants_all or captures.on_failure):
        return NOT_RECORDED
    of_task = EpochOfTask(
        handle,
        epoch.clock,
        epoch.number,
        function.program(),
        tuple(function.columns.arrow_schema.names),
        function.mode,
        epoch.runtime,
        epoch.storage,
        releases,
    )
    return (WrittenEpoch if wants_all else WrittenFailure)(of_task, captures.limit_bytes)


class EpochObservers:
    """Watch an epoch from its begin to its handle; made before the state is opened.

    `metrics` are known once all output has left, and then have all but what the barrier counts.
    """

    def __init__(self, epoch: TaskEpoch, *, is_packed: bool) -> None:
        self._epoch = epoch
        self._is_packed = is_packed
        self._began, self._began_ms = time.monotonic(), now_ms()
        self.metrics = EpochMetrics()

    def watched(
        self, opened: OpenEpoch, output: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output of an open epoch as it is, and watch how it comes about."""
        began, processing = time.monotonic(), opened.processing
        self._laps, self._key_times = processing.laps, KeyTimes(processing.key_under_way)
        with sampled(self._key_times):
            yield from opened.recording.watched(processing, output)
        quarantine, backend = processing.quarantine, opened.copy.backend
        self.metrics = EpochMetrics(
            rows=processing.rows,
            late_rows=processing.late_rows,
            keys=processing.keys,
            reads=opened.table.reads,
            cache_hits=opened.table.cache_hits,
            timers_fired=processing.timers_fired,
            rebuilds=int(opened.copy.is_rebuilt),
            lost_attributes=processing.lost_attributes,
            open_ms=round(1000 * (began - self._began)),
            process_ms=round(1000 * (time.monotonic() - began)),
            quarantined_keys=0 if quarantine is None else quarantine.quarantined_keys,
            quarantined_rows=0 if quarantine is None else quarantine.quarantined_rows,
            packed_hand_overs=int(self._is_packed),
            backend=backend.figures() if self._epoch.runtime.measures_backend else {},
        )

    def noted(self, handle: Handle) -> Handle:
        """Return the handle of the barrier with what the epochs up to it took."""
        metrics = handle.metrics or EpochMetrics()
        phases = EpochPhases(
            epoch=self._epoch.number,
            began_ms=self._began_ms - self._epoch.clock.processing_time_ms,
            open_ms=metrics.open_ms,
            read_ms=self._laps.milliseconds(Phase.READ),
            user_ms=self._laps.milliseconds(Phase.USER),
            write_ms=self._laps.milliseconds(Phase.WRITE),
            barrier_ms=metrics.barrier_ms,
        )
        slow_keys = self._key_times.after(handle.slow_keys)
        return msgspec.structs.replace(with_phases(handle, phases), slow_keys=slow_keys)
