"""Records of a run: what happened for later readers, and the progress of its operators on demand.

The thread writes at most one small file in half a minute. Nothing waits for it while the query
runs, and no failure of it has an effect on the query.

Spark keeps the state of its last 100 epochs, and in it the counts of each subtask. Therefore an
epoch costs nothing until it is read. A caller that reads at least every 100 epochs misses none.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.checkpoint.contents import LostAttributesNotice
from pyspark_ckpt.checkpoint.handles import committed_handles, handles_written_in
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.clock import ms_of_text, now_ms
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.counters import OF_METRICS
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.log import sizes_of
from pyspark_ckpt.history.operator_progress import operator_progress, slowest_phases
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.history.run_log import (
    CheckpointRecord,
    EpochRecord,
    OperatorEpoch,
    OperatorRecord,
    RunEnded,
    RunLog,
    RunNote,
    RunStarted,
    SettingInForce,
    SlowKeyRecord,
    StateRecord,
    user_and_host,
    without_slow_keys,
)
from pyspark_ckpt.log_fields import library_logger, log_fields
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import INTERNAL_SETTINGS, SETTINGS, Settings
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.version import __version__

logger = library_logger(__name__)
PERIOD_S = 30.0

SLOWEST_EPOCHS = 20
"""How many epochs a note describes one by one; they are the slowest."""

_OPERATOR_EPOCHS = 40
"""How many epochs of an operator a note describes; more, because it chooses by other times."""

_SLOW_KEYS = 8
_MOST_CHECKPOINTS = 50
_MOST_OPERATOR_EPOCHS = 2000
_MOST_ERROR = 16 << 10
_PATIENCE_S = 10.0
_PASSWORD = re.compile(r"://[^/@:\s]*:[^/@\s]*@")

_URL_QUERY = re.compile(r"(://[^\s?]*\?)\S+")
"""What follows ``?`` in a URL, where some services want a key."""

KEPT_EPOCHS = 100
"""As many as Spark's ``recentProgress`` and its state store keep by default."""


class RunRecorder(CheckpointListener):
    """Records one run of a query.

    `progress_since` returns Spark's reports of the epochs after an epoch, oldest first.
    `metadata_of` returns the metadata of a retained checkpoint, with the counts of its handles.
    """

    def __init__(
        self,
        storage: Storage,
        started: RunStarted,
        progress_since: Callable[[int | None], Sequence[dict[str, Any]]],
        metadata_of: Callable[[int], CheckpointMetadata | None],
        period_s: float = PERIOD_S,
    ) -> None:
        self._log = RunLog(storage)
        self._started = started
        self._progress_since = progress_since
        self._metadata_of = metadata_of
        self._period_s = period_s
        self._epoch: int | None = None
        self._checkpoints: deque[CheckpointRecord] = deque(maxlen=_MOST_CHECKPOINTS)
        self._operator_epochs: dict[str, deque[OperatorEpoch]] = {}
        self._described: dict[str, int] = {}
        self._before: CheckpointMetadata | None = None
        self._ended: RunEnded | None = None
        self._asks_spark = True
        self._ending = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"pyspark_ckpt run log {started.query_id}", daemon=True
        )

    @property
    def run_id(self) -> str:
        """Spark's id of the run."""
        return self._started.run_id

    def start(self) -> None:
        """Begin to record."""
        self._thread.start()

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        """Describe a checkpoint for the next note."""
        metadata = self._metadata_of(checkpoint.checkpoint_id)
        if metadata is not None:
            self._checkpoints.append(checkpoint_record(checkpoint, metadata, self._before))
            self._before = metadata
            for operator in metadata.operators:
                self._describe(operator.uid, operator.handles)

    def _describe(self, uid: str, handles: Sequence[Handle]) -> None:
        """Keep what an operator did in the epochs since the checkpoint before."""
        after = self._described.get(uid, -1)
        found = [
            OperatorEpoch(uid=uid, **msgspec.structs.asdict(phases))
            for phases in slowest_phases(handles)
            if phases.epoch > after
        ]
        if found:
            self._described[uid] = found[-1].epoch
            kept = self._operator_epochs.setdefault(uid, deque(maxlen=_MOST_OPERATOR_EPOCHS))
            kept.extend(found)

    def _taken_operator_epochs(self) -> tuple[OperatorEpoch, ...]:
        """Return the slowest epochs of each operator that no note has described."""
        taken = []
        for kept in list(self._operator_epochs.values()):
            epochs = [kept.popleft() for _ in range(len(kept))]
            slowest = sorted(epochs, key=lambda each: each.total_ms)[-_OPERATOR_EPOCHS:]
            taken += sorted(slowest, key=lambda each: each.epoch)
        return tuple(taken)

    def end(self, error: BaseException | None, *, asks_spark: bool = True) -> None:
        """Record the end of the run, and wait for that a few seconds.

        `error` is ``None`` if the run was stopped or ended by itself. `asks_spark` says whether
        Spark can be asked for its last epochs.
        """
        self._asks_spark = asks_spark
        self._ended = self._end_record(error)
        self._ending.set()
        self._thread.join(_PATIENCE_S)

    def failed(self, error: BaseException) -> None:
        """Record that a run, whose end may be recorded, failed: as a restart that did not begin.

        Before the end, it has no effect: :meth:`end` gets the error.
        """
        if self._ended is not None and self._ended.error is None:
            self._ended = self._end_record(error)
            self._log.write(self._ended)

    def _end_record(self, error: BaseException | None) -> RunEnded:
        return RunEnded(
            run_id=self._started.run_id,
            at_ms=now_ms(),
            error=None if error is None else str(error)[:_MOST_ERROR],
            error_kind=None if error is None else type(error).__name__,
        )

    def _run(self) -> None:
        with log_fields(query=self._started.query_id):
            self._log.write(self._started)
            while not self._ending.wait(self._period_s):
                self._note()
            self._note()
            assert self._ended is not None  # set before the event
            self._log.write(self._ended)

    def _note(self) -> None:
        try:
            reports = self._progress_since(self._epoch) if self._asks_spark else []
            epochs = [epoch_record(report) for report in reports]
        except Exception as exc:  # Spark has ended, or reports what this version does not know
            logger.debug("query %s: no progress to record: %s", self._started.query_id, exc)
            epochs = []
        if epochs:
            self._epoch = epochs[-1].epoch
        slowest = sorted(epochs, key=lambda each: each.duration_ms)[-SLOWEST_EPOCHS:]
        numbers = {each.epoch for each in slowest}
        others = [each for each in epochs if each.epoch not in numbers]
        checkpoints = [self._checkpoints.popleft() for _ in range(len(self._checkpoints))]
        note = RunNote(
            run_id=self._started.run_id,
            at_ms=now_ms(),
            epoch=self._epoch,
            epochs=tuple(sorted(slowest, key=lambda each: each.epoch)),
            other_epochs=len(others),
            other_ms=sum(each.duration_ms for each in others),
            checkpoints=(*map(without_slow_keys, checkpoints[:-1]), *checkpoints[-1:]),
            operator_epochs=self._taken_operator_epochs(),
        )
        if not (note.is_empty and self._ending.is_set()):
            self._log.write(note)


def start_record(
    spark: SparkSession, query: StreamingQuery, files: QueryFiles, settings: Settings
) -> RunStarted:
    """Return the record of a query that has just started."""
    return run_started(
        run_id=query.runId,
        query_id=files.query_id,
        query_name=files.query_name,
        location=files.checkpoint_location,
        versions=(__version__, spark.version),
        operators=[operator.uid for operator in files.operators.descriptors],
        settings=settings,
        outlives_client=session_of(spark).outlives_client,
    )


def run_started(
    *,
    run_id: str,
    query_id: str,
    query_name: str | None,
    location: str,
    versions: tuple[str, str],
    operators: Sequence[str],
    settings: Settings,
    outlives_client: bool = False,
) -> RunStarted:
    """Return the record of a start."""
    return RunStarted(
        run_id=run_id,
        at_ms=now_ms(),
        query_id=query_id,
        query_name=query_name,
        started_by=user_and_host(),
        location=location,
        library_version=versions[0],
        spark_version=versions[1],
        operators=tuple(operators),
        settings=settings_in_force(settings),
        outlives_client=outlives_client,
    )


def settings_in_force(settings: Settings) -> tuple[SettingInForce, ...]:
    """Return every setting with its value and where it came from, without secrets in URLs."""
    found = []
    internal = (each for each in INTERNAL_SETTINGS if each.key in settings.given)
    for setting in (*SETTINGS, *internal):
        given = settings.given.get(setting.key)
        value, source = given or (setting.default or setting.without, "default")
        value = _URL_QUERY.sub(r"\1***", _PASSWORD.sub("://***@", value))
        found.append(SettingInForce(setting.key, value, source))
    return tuple(found)


def checkpoint_record(
    checkpoint: CompletedCheckpoint,
    metadata: CheckpointMetadata,
    before: CheckpointMetadata | None,
) -> CheckpointRecord:
    """Return the record of a completed checkpoint; `before` is the checkpoint before it."""
    return CheckpointRecord(
        checkpoint_id=checkpoint.checkpoint_id,
        epoch=checkpoint.epoch,
        triggered_at_ms=checkpoint.triggered_at_ms,
        duration_ms=checkpoint.duration_ms,
        size_bytes=checkpoint.size_bytes,
        new_bytes=None if before is None else sizes_of(metadata, before).new_bytes,
        files=len({reference.path for reference in metadata.files()}) + 1,
        phases_ms=metadata.phases_ms,
        requests=checkpoint.requests,
        operators=tuple(
            operator_record(operator.uid, metadata.epoch, operator.handles)
            for operator in metadata.operators
        ),
    )


def operator_record(uid: str, epoch: int, handles: Sequence[Handle]) -> OperatorRecord:
    """Return what an operator did in an epoch, and the sizes of its states."""
    progress = operator_progress(uid, epoch, "", handles)
    states = progress["states"]
    return OperatorRecord(
        uid=uid,
        timers=progress["numTimers"],
        states=None
        if states is None
        else tuple(
            StateRecord(
                name=state["state"],
                keys=state["numKeys"],
                entries=state["numEntries"],
                size_bytes=state["sizeBytes"],
            )
            for state in states
        ),
        is_estimated=progress["isEstimated"],
        slow_keys=slow_keys(handles),
        **{field: progress[counter.progress] for field, counter in OF_METRICS.items()},
    )


def slow_keys(handles: Sequence[Handle]) -> tuple[SlowKeyRecord, ...]:
    """Return the keys of an operator that took most time, the slowest first."""
    found = [
        SlowKeyRecord(
            key=each.key,
            subtask=handle.subtask,
            ms=each.ms,
            share=round(each.ms / max(handle.slow_keys.sampled_ms, 1), 4),
        )
        for handle in handles
        if handle.slow_keys is not None
        for each in handle.slow_keys.keys
    ]
    return tuple(sorted(found, key=lambda each: -each.ms)[:_SLOW_KEYS])


def epoch_record(report: dict[str, Any]) -> EpochRecord:
    """Return the record of an epoch that Spark has reported."""
    durations = {str(name): int(value) for name, value in report["durationMs"].items()}
    watermark = report.get("eventTime", {}).get("watermark")
    late = [each.get("numRowsDroppedByWatermark") for each in report.get("stateOperators", [])]
    return EpochRecord(
        epoch=report["batchId"],
        began_at_ms=ms_of_text(report["timestamp"]),
        duration_ms=durations.pop("triggerExecution", 0),
        rows=sum(max(source.get("numInputRows") or 0, 0) for source in report.get("sources", [])),
        phases_ms=durations,
        watermark_ms=None if watermark is None else ms_of_text(watermark),
        late_rows=sum(late) if late and None not in late else None,
    )


class RecentProgress(CheckpointListener):
    """The operators' progress in the last epochs of one run of a query; on the driver.

    It listens to the checkpoints because it reports their age.

    `spark` is a session of :func:`reading_session`.
    """

    def __init__(self, spark: SparkSession, query: StreamingQuery, files: QueryFiles) -> None:
        self._spark = spark
        self._query = query
        self._files = files
        committed = files.spark_log.committed_epoch()
        self._next = 0 if committed is None else committed + 1
        self._handles: dict[int, dict[int, Handle]] = {}
        self._epochs: deque[list[dict[str, Any]]] = deque(maxlen=KEPT_EPOCHS)
        self._checkpointed_at_ms: deque[int] = deque(maxlen=2 * KEPT_EPOCHS)
        self._notice = LostAttributesNotice(files.query_id)
        self._reading = threading.Lock()

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        """Remember when it was complete."""
        self._checkpointed_at_ms.append(checkpoint.triggered_at_ms + checkpoint.duration_ms)

    def last(self) -> list[dict[str, Any]]:
        """Return the progress of each operator in the newest committed epoch, of any run."""
        epoch = self._files.spark_log.committed_epoch()
        if epoch is None:
            return []
        of_spark = _by_epoch(self._query).get(epoch)
        return [
            self._progress(
                number, epoch, committed_handles(self._spark, self._files, epoch, number), of_spark
            )
            for number in self._files.operators.ours
        ]

    def recent(self) -> list[dict[str, Any]]:
        """Return each operator's progress in the last epochs of this run, oldest first."""
        with self._reading:
            committed = self._files.spark_log.committed_epoch()
            if committed is not None and committed >= self._next:
                first = max(self._next, committed + 1 - KEPT_EPOCHS)
                self._epochs.extend(self._read(range(first, committed + 1)))
                self._next = committed + 1
            return [dict(operator) for epoch in self._epochs for operator in epoch]

    def _read(self, epochs: range) -> list[list[dict[str, Any]]]:
        of_spark = _by_epoch(self._query)
        by_epoch: dict[int, list[dict[str, Any]]] = {epoch: [] for epoch in epochs}
        for number in self._files.operators.ours:
            for epoch, handles in self._handles_of(number, epochs):
                progress = self._progress(number, epoch, handles, of_spark.get(epoch))
                by_epoch[epoch].append(progress)
        return [by_epoch[epoch] for epoch in epochs if by_epoch[epoch]]

    def _handles_of(self, number: int, epochs: range) -> Iterator[tuple[int, list[Handle]]]:
        """Yield an operator's handles after each epoch that can be read."""
        written = handles_written_in(self._files, epochs, number)
        if written is None:
            for epoch in epochs:
                handles = self._all_handles(number, epoch)
                if handles is not None:
                    yield epoch, handles
            return
        known = self._handles.get(number)
        if known is None or epochs.start != self._next:
            before = self._all_handles(number, epochs.start - 1) if epochs.start else []
            known = {handle.subtask: handle for handle in before or ()}
        for epoch in epochs:
            known.update({handle.subtask: handle for handle in written if handle.epoch == epoch})
            yield epoch, [known[subtask] for subtask in sorted(known)]
        self._handles[number] = known

    def _all_handles(self, number: int, epoch: int) -> list[Handle] | None:
        try:
            return list(committed_handles(self._spark, self._files, epoch, number))
        except (CkptError, PySparkException) as exc:  # Spark has deleted the epoch
            logger.debug("query %s: no progress of epoch %s: %s", self._files.query_id, epoch, exc)
            return None

    def _progress(
        self, number: int, epoch: int, handles: Any, of_spark: dict[str, Any] | None
    ) -> dict[str, Any]:
        uid = self._files.operators.ours[number].uid
        self._notice.look_at(uid, handles)
        progress = operator_progress(uid, epoch, self._files.backend_type, handles)
        progress.update(self._of_the_epoch(number, of_spark))
        return progress

    def _of_the_epoch(self, number: int, of_spark: dict[str, Any] | None) -> dict[str, Any]:
        """Return the values from Spark's own progress of the epoch, ``None`` for unknown ones."""
        found: dict[str, Any] = dict.fromkeys(
            ("timestamp", "watermarkLagMs", "numRowsDroppedByWatermark", "lastCheckpointAgeMs")
        )
        if of_spark is None:
            return found
        found["timestamp"] = of_spark["timestamp"]
        began_ms = ms_of_text(of_spark["timestamp"])
        watermark = of_spark.get("eventTime", {}).get("watermark")
        if watermark is not None and ms_of_text(watermark) > 0:
            found["watermarkLagMs"] = began_ms - ms_of_text(watermark)
        operators = of_spark.get("stateOperators", [])
        if number < len(operators):
            found["numRowsDroppedByWatermark"] = operators[number]["numRowsDroppedByWatermark"]
        ended_ms = began_ms + of_spark["durationMs"].get("triggerExecution", 0)
        before = [at_ms for at_ms in list(self._checkpointed_at_ms) if at_ms <= ended_ms]
        if before:
            found["lastCheckpointAgeMs"] = ended_ms - max(before)
        return found


def _by_epoch(query: StreamingQuery) -> dict[int, dict[str, Any]]:
    """Return Spark's progress by epoch, without reports that Spark makes while it is idle."""
    return {
        each["batchId"]: each for each in query.recentProgress if "addBatch" in each["durationMs"]
    }
