"""Writes what was recorded of an epoch into the query's checkpoints directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CkptError, ProcessorError, StateUseError, StateValueError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import capture_path, failure_path, quarantined_failure_path
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.capture.capture_file import (
    CapturedClock,
    CapturedEpoch,
    CapturedProgram,
    Released,
    SectionName,
    encode_part,
)
from pyspark_ckpt.operator.capture.recording import (
    EpochRecorder,
    Processing,
    SeenInput,
    in_arrow,
    in_changes,
    stored_entries,
)
from pyspark_ckpt.operator.descriptor import Runtime
from pyspark_ckpt.operator.quarantine.quarantine import Releases
from pyspark_ckpt.operator.quarantine.releases import EVERY_KEY
from pyspark_ckpt.operator.rows.keyed import keyed_rows
from pyspark_ckpt.operator.rows.mode import InputMode
from pyspark_ckpt.operator.rows.sent_rows import SentRows, taken
from pyspark_ckpt.operator.table.keys import StoredKey
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.operator.task_failure import origin_of
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.storage.base import WorkerStorage
from state_backends import StateBackend

logger = library_logger(__name__)

_OF_THE_PROCESSOR = (ProcessorError, StateValueError, StateUseError)
"""Errors that the processor can repeat on another machine."""


@dataclass(frozen=True, slots=True)
class EpochOfTask:
    """What is known of an epoch before it runs."""

    handle: Handle
    clock: EpochClock
    number: int
    program: CapturedProgram
    columns: tuple[str, ...]
    mode: InputMode
    runtime: Runtime
    storage: WorkerStorage
    releases: Releases

    def header(self, processing: Processing) -> CapturedEpoch:
        """Return the header of the epoch's capture."""
        clock, runtime = self.clock, self.runtime
        released = Released()
        if processing.quarantine is not None:
            keys = self.releases.keys()
            if keys is EVERY_KEY:
                released = Released(all=True)
            else:
                assert isinstance(keys, frozenset)
                released = Released(keys=tuple(sorted(key.hex() for key in keys)))
        return CapturedEpoch(
            epoch=self.number,
            timeline=len(runtime.rolled_back),
            run=runtime.run,
            run_started_ms=runtime.captures.run_started_ms,
            written_at_ms=now_ms(),
            handle=_without_files(self.handle),
            states_after=processing.states.descriptors,
            clock=CapturedClock(
                mode=clock.mode,
                processing_time_ms=clock.processing_time_ms,
                watermark_ms=clock.watermark_ms,
                drained_at_ms=clock.drained_at_ms,
                late_ms=clock.late_ms,
            ),
            program=self.program,
            completed_checkpoint_id=processing.completed_checkpoint_id,
            released=released,
        )


class WrittenEpoch:
    """Records an epoch that was asked for, and writes it when it is over.

    A capture that cannot be written is left out with a warning: the query does not need it.
    """

    def __init__(self, epoch: EpochOfTask, limit_bytes: int) -> None:
        self._epoch = epoch
        self._recorder = EpochRecorder(epoch.handle.states, epoch.columns, limit_bytes)

    @property
    def seen(self) -> SeenInput:
        """What sees the input."""
        return self._recorder

    def table(self, backend: StateBackend, writes: EpochWrites) -> StateTable:
        """Return the epoch's view of the state."""
        return self._recorder.table(backend, writes)

    def watched(
        self, processing: Processing, output: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output of the epoch as it is, and write the capture."""
        recorder, handle, epoch = self._recorder, self._epoch.handle, self._epoch.number
        try:
            yield from recorder.watched(processing, output)
        except _OF_THE_PROCESSOR as exc:
            recorder.end(processing, writes=False)
            recorder.output = []
            path = failure_path(handle.uid, handle.subtask, epoch, b"")
            _write_failure(self._epoch, path, self._header(processing), recorder.sections(), exc)
            raise
        path = capture_path(handle.uid, handle.subtask, epoch)
        _write(self._epoch, path, self._header(processing), recorder.sections())

    def _header(self, processing: Processing) -> CapturedEpoch:
        recorder = self._recorder
        return msgspec.structs.replace(
            self._epoch.header(processing),
            batches=tuple(map(len, recorder.rows)),
            left_out=recorder.left_out,
        )


class WrittenFailure:
    """Writes what a failing key saw; while nothing fails, it keeps nothing but references.

    A key that is quarantined has failed too. There may be many of them, so one capture is written
    for each kind of error: the same code, and the same lines.

    Timers fire after all rows, and a timer's key may have had some. So rows are kept until the end
    where timers fire; also for the calls of a key that has late rows, which are in event time.

    Once the rows exceed `limit_bytes`, no row is kept for timers.
    """

    def __init__(self, epoch: EpochOfTask, limit_bytes: int) -> None:
        self._epoch = epoch
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._parts: list[SentRows] = []
        self._backend: StateBackend | None = None
        self._table: StateTable | None = None
        self._broadcast: SentRows = []
        self._quarantined: dict[str, str] = {}

    @property
    def seen(self) -> SeenInput:
        """What sees the input: this object."""
        return self

    def parts(self, keyed: Iterator[SentRows]) -> Iterator[SentRows]:
        """Yield the parts of the keyed rows as they are, and keep what timers may need."""
        fires_timers = self._epoch.clock.timers_now_ms is not None
        for batches in keyed:
            if fires_timers and self._size_bytes <= self._limit_bytes:
                kept = list(map(self._sent_columns, batches))
                self._size_bytes += sum(batch.nbytes for batch in kept)
                self._parts.append(kept)
                if self._size_bytes > self._limit_bytes:
                    self._parts.clear()
            yield batches

    def broadcast(self, sent: SentRows) -> None:
        """Keep the broadcast rows, which the failing call may depend on."""
        self._broadcast = list(sent)

    def table(self, backend: StateBackend, writes: EpochWrites) -> StateTable:
        """Return the epoch's view of the state."""
        self._backend = backend
        self._table = StateTable(backend, writes=writes)
        return self._table

    def watched(
        self, processing: Processing, output: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output of the epoch as it is. If the processor raises, write why."""
        processing.on_quarantining = partial(self._on_quarantining, processing)
        try:
            yield from output
        except _OF_THE_PROCESSOR as exc:
            self._write(processing, exc)
            raise

    def _write(self, processing: Processing, error: CkptError) -> None:
        row = getattr(error, "row", None)
        header, sections, touched = self._seen_by_key(processing, row)
        handle = self._epoch.handle
        key = b"".join(chain.from_iterable(touched))
        path = failure_path(handle.uid, handle.subtask, self._epoch.number, key)
        _write_failure(self._epoch, path, header, sections, error)

    def _on_quarantining(
        self, processing: Processing, step: str, error: Exception, text: str
    ) -> str:
        """Write what a quarantined key saw, unless a capture has such an error already."""
        epoch = self._epoch
        origin = "\n".join((epoch.program.code_sha256, step, origin_of(error)))
        path = quarantined_failure_path(epoch.handle.uid, epoch.handle.subtask, origin.encode())
        if path not in self._quarantined:
            self._quarantined[path] = self._capture_quarantined(processing, path, text)
        return self._quarantined[path]

    def _capture_quarantined(self, processing: Processing, path: str, text: str) -> str:
        """Return how to run a quarantined key's failure again; write its capture if missing."""
        epoch = self._epoch
        try:
            if epoch.storage.exists(path):
                return _hint(epoch, path)
        except (OSError, CkptError) as exc:
            logger.warning("the failure of a quarantined key could not be captured: %s", exc)
            return ""
        header, sections, _ = self._seen_by_key(processing, row=None)
        size_bytes = sum(map(len, sections.values()))
        left_out = header.left_out
        if size_bytes > self._limit_bytes:
            left_out = f"it has more than {self._limit_bytes} bytes"
        if left_out is not None:  # no file: the next such error may have less
            logger.warning("%s: a quarantined key is not captured: %s", header.what, left_out)
            return ""
        header = msgspec.structs.replace(header, error=text, quarantined=True)
        return _hint(epoch, path) if _write(epoch, path, header, sections) else ""

    def _seen_by_key(
        self, processing: Processing, row: int | None
    ) -> tuple[CapturedEpoch, dict[SectionName, bytes], Iterable[StoredKey]]:
        """Return the capture of the failing call, and its keys; of the call that yielded a row."""
        assert self._backend is not None
        touched, parts = self._failing(processing, row)
        header = msgspec.structs.replace(
            self._epoch.header(processing), batches=tuple(map(len, parts))
        )
        is_after_rows = bool(touched) and (
            processing.part_under_way is None or self._has_late_calls
        )
        if is_after_rows and self._size_bytes > self._limit_bytes:
            header = msgspec.structs.replace(
                header,
                left_out=(
                    "it may have failed after some of its rows, and they are too many to be kept "
                    f"for that, more than {self._limit_bytes} bytes"
                ),
            )
        before = stored_entries(self._backend, self._epoch.handle.states, touched)
        sections = {
            SectionName.KEYS: in_changes((b"".join(each), b"") for each in touched),
            SectionName.ROWS: in_arrow([batch for batches in parts for batch in batches]),
            SectionName.BROADCAST: in_arrow(self._broadcast),
            SectionName.BEFORE: in_changes(before),
        }
        return header, {name: data for name, data in sections.items() if data}, touched

    def _failing(
        self, processing: Processing, row: int | None
    ) -> tuple[dict[StoredKey, None], list[SentRows]]:
        """Return the keys that the failing call was for, and their rows in parts."""
        assert self._table is not None
        part, current = processing.part_under_way, self._table.current
        if part is not None and self._epoch.mode.calls_once_per_part:
            if self._has_late_calls:
                return self._with_their_rows(part.stored)
            return dict.fromkeys(part.stored), [[self._sent_columns(part.sent_rows(0))]]
        if part is not None:
            place = current.position if row is None else processing.output.origins.place_of(row)
            if self._has_late_calls:
                return self._with_their_rows([part.stored[place]])
            return {part.stored[place]: None}, [[self._sent_columns(part.sent_rows(place))]]
        if processing.timers_under_way:
            return self._with_their_rows(processing.timers_under_way)
        if row is not None:
            stored = processing.output.origins.stored_key_of(row)
            return self._with_their_rows(() if stored is None else (stored,))
        if current.key_group is None:
            return {}, []
        return self._with_their_rows([(current.key_group, current.key)])

    @property
    def _has_late_calls(self) -> bool:
        """Whether a key may have had a call for its late rows before the one that failed."""
        return self._epoch.clock.late_ms is not None

    def _with_their_rows(
        self, keys: Iterable[StoredKey]
    ) -> tuple[dict[StoredKey, None], list[SentRows]]:
        """Return keys, and the rows that they had in this epoch: of all keys of such a call."""
        wanted = frozenset(keys)
        touched, parts = dict.fromkeys(keys), []
        for batches in self._parts:
            columns = self._epoch.mode.columns
            keyed = keyed_rows(columns, list(batches))  # a part may have values that none can have
            places = [place for place, key in enumerate(keyed.stored.pairs()) if key in wanted]
            if places and self._epoch.mode.calls_once_per_part:
                touched |= dict.fromkeys(keyed.stored.pairs())
                parts.append(batches)
            elif places:
                rows = [np.arange(keyed.bounds[n], keyed.bounds[n + 1]) for n in places]
                parts.append([self._sent_columns(taken(keyed.sent, each)) for each in rows])
        return touched, parts

    def _sent_columns(self, sent: pa.RecordBatch) -> pa.RecordBatch:
        return sent.select(list(self._epoch.columns))


def _write(
    epoch: EpochOfTask,
    path: str,
    header: CapturedEpoch,
    sections: dict[SectionName, bytes],
) -> bool:
    """Write a capture; return whether it is there."""
    try:
        epoch.storage.write(path, encode_part(header, sections))
    except FileExistsError:
        return True
    except (OSError, CkptError) as exc:
        logger.warning("%s could not be captured: %s", header.what, exc)
        return False
    if header.left_out is not None:
        logger.warning("%s is not captured: %s", header.what, header.left_out)
        return False
    return True


def _write_failure(
    epoch: EpochOfTask,
    path: str,
    header: CapturedEpoch,
    sections: dict[SectionName, bytes],
    error: CkptError,
) -> None:
    header = msgspec.structs.replace(header, error=f"{type(error).__name__}: {error}")
    if _write(epoch, path, header, sections):
        error.append(_hint(epoch, path))


def _hint(epoch: EpochOfTask, path: str) -> str:
    return (
        f"\n  To run it again without Spark: pyspark_ckpt.testing.replay("
        f"'{epoch.storage.url}/{path}', the processor)"
    )


def _without_files(handle: Handle) -> Handle:
    """Return a handle with the subtask and its states, and nothing that refers to a file."""
    return Handle(
        query_id=handle.query_id,
        uid=handle.uid,
        subtask=handle.subtask,
        parallelism=handle.parallelism,
        max_parallelism=handle.max_parallelism,
        epoch=handle.epoch,
        key_schema=handle.key_schema,
        states=handle.states,
        time_mode=handle.time_mode,
    )
