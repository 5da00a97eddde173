"""One epoch of one subtask, from its rows to the barrier: the processor's calls and output.

``init -> initial state -> broadcast rows -> rows, key by key -> due timers -> close``

Rows are gathered over many calls. As soon as there are enough they leave, also in the middle of a
call. Only a quarantine holds what a call yields until it ends, because it may drop it.

Errors name the key of a row, and captured epochs have the key of each row.

A value that does not fit is found when many rows leave together. To note a number per call costs
far less than to note the key with each row (0.03 against 0.3 us).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyspark
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor

from pyspark_ckpt.errors import (
    CheckpointError,
    CkptError,
    CrashedError,
    InputRowsError,
    ProcessorError,
    StateError,
    StateValueError,
)
from pyspark_ckpt.operator.modes.calls import DueTimers
from pyspark_ckpt.operator.quarantine.quarantine import OnError, Quarantine
from pyspark_ckpt.operator.quarantine.quarantined_keys import RowsOfEpoch
from pyspark_ckpt.operator.rows.mode import InputMode, Output, Part, PartOfKeys
from pyspark_ckpt.operator.rows.output import CHUNK_ROWS
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.rows.sides import EpochInput
from pyspark_ckpt.operator.rows.unheld import divided
from pyspark_ckpt.operator.run.garbage import rows_are_made, rows_are_used
from pyspark_ckpt.operator.run.lost_attributes import LostAttributes
from pyspark_ckpt.operator.run.observers import Laps, Phase, in_phase, observed_by
from pyspark_ckpt.operator.run.user_sources import NO_SOURCES, UserSources
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.operator_states import RawState
from pyspark_ckpt.operator.state.timers import DueTimer
from pyspark_ckpt.operator.table.keys import StoredKey
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.task_failure import definition, user_frames
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.values.shown import ValueNotHeldError
from pyspark_ckpt.values.words import shortened, shown
from state_backends import StateBackendError

_READING = "reading the input"

TIMERS_AT_ONCE = 100_000
"""Due timers that are read together; bounds the memory they take."""

Key = tuple[Any, ...]
DecodeKey = Callable[[bytes], Key]

_in_user_code = in_phase(Phase.USER)
_making_rows = observed_by(lambda _: rows_are_made())
_using_rows = observed_by(lambda _: rows_are_used())


class EpochProcessing:
    """Runs a processor over one epoch of one subtask.

    If `completed_checkpoint_id` is set before :meth:`run`, the processor is notified of it.
    `quarantine` is opened after ``init`` and calls `on_quarantining` if that was set before; it is
    ``None`` if the operator never had one. `part_under_way` has the rows that the processor works
    on, and `timers_under_way` the stored keys of a call for several timers.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        table: StateTable,
        states: ProcessorHandle,
        clock: EpochClock,
        mode: InputMode,
        decode_key: DecodeKey,
        where: str,
        initial_mode: InputMode | None = None,
        sources: UserSources = NO_SOURCES,
        quarantine: Callable[[], Quarantine] | None = None,
    ) -> None:
        self._open_quarantine = quarantine
        self.quarantine: Quarantine | None = None
        self.on_quarantining: OnError | None = None
        self._sources = sources
        self._initial_mode = initial_mode
        self._processor = processor
        self._table = table
        self.states = states
        self._clock = clock
        self._timer_values = clock.timer_values
        self._mode = mode
        self._decode_key = decode_key
        self._where = where
        self._step = "init"
        self._key: Key | None = None
        self.part_under_way: Part | None = None
        self.timers_under_way: Sequence[StoredKey] = ()
        self._show_timers = mode.timers_shown(processor)
        self._raw = RawState(table)
        self.completed_checkpoint_id: int | None = None
        self.rows = 0
        self.late_rows = 0
        self._late_keys: set[StoredKey] = set()
        self.keys = 0
        self.timers_fired = 0
        self.laps = Laps()
        self.output = EpochOutput(mode.new_output(), self.laps, self._of_call)
        self._attributes = LostAttributes(processor)

    def key_under_way(self) -> Key | None:
        """Return the key that the processor works on now, ``None`` if it has no single key."""
        return self._key

    @property
    def lost_attributes(self) -> tuple[str, ...]:
        """The attributes that the processor has changed outside of state, once the epoch ends."""
        return self._attributes.lost

    def run(self, read: Callable[[], EpochInput], epoch: int) -> Iterator[pa.RecordBatch]:
        """Process an epoch; yield its output in batches.

        `read` reads all of the epoch's input; it is called once, after ``init``.
        """
        with self._named_errors():
            self._begin()
            rows = read()
            if rows.initial:
                self._handle_initial_state(rows.initial)
            if rows.broadcast is not None:
                yield from self._handle_broadcast_rows(rows.broadcast)
            if self.quarantine is not None:
                yield from self._release(self.quarantine)
            for batches in rows.parts:
                late, has_only_late = self._take_late(batches)
                if late:
                    yield from self._process_part(late, self._mode.late_method)
                if not has_only_late:
                    yield from self._process_part(batches, self._mode.method)
            yield from self._fire_timers()
            self._end(epoch)

    def run_initial_state(self, parts: Iterable[SentRows]) -> None:
        """Give the processor an initial state and nothing else."""
        with self._named_errors():
            self._begin()
            for batches in parts:
                self._handle_initial_state(batches)
            self._end(epoch=0)

    @_in_user_code
    @observed_by(lambda self: self._attributes.during_init())
    def _begin(self) -> None:
        self._processor.init(self.states)  # type: ignore[arg-type]  # same methods, no subclass
        self.states.end_of_init()
        self._step = "restoreState"
        self._raw.restore_into(self._processor)
        if self.completed_checkpoint_id is not None:
            self._step = "notifyCheckpointComplete"
            notified: Any = self._processor
            notified.notifyCheckpointComplete(self.completed_checkpoint_id)
        if self._open_quarantine is not None:
            opened = self._open_quarantine()
            if opened.quarantines:
                self.quarantine = opened
                opened.on_error = self.on_quarantining
            else:
                opened.end()
        self._step = _READING

    def _handle_initial_state(self, batches: SentRows) -> None:
        self._give_states(*self._initial_part(batches))

    @_making_rows
    def _initial_part(self, batches: SentRows) -> tuple[PartOfKeys, Sequence[Key]]:
        assert self._initial_mode is not None  # there are rows of an initial state
        self._step = _READING
        part = cast("PartOfKeys", self._initial_mode.part(batches))
        self._table.begin_part(part.stored)
        return part, part.keys

    @_in_user_code
    @_using_rows
    def _give_states(self, part: PartOfKeys, keys: Sequence[Key]) -> None:
        self._step = "handleInitialState"
        for position, key in enumerate(keys):
            self._key = key
            self._table.enter(position)
            for state in part.rows(position):
                self._processor.handleInitialState(key, state, self._timer_values)
        self._leave_key(_READING)

    @_in_user_code
    def _handle_broadcast_rows(self, rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        self._step = "handleBroadcastRows"
        handler: Any = self._processor
        call = _once(handler.handleBroadcastRows, rows, self._timer_values)
        yield from self.output.of_calls(self._step, call)

    def _take_late(self, batches: SentRows) -> tuple[SentRows, bool]:
        """Take the late rows out of a part of the rows; return them if the processor gets them.

        The second value says that all rows were late. A part without any row has none: a harness
        has one for keys without rows.
        """
        late_ms = self._clock.late_ms
        if late_ms is None:
            return [], False
        self._step = _READING
        late, in_time = [], []
        while batches:  # one by one, so that not all rows are held twice
            some_late, rest = self._mode.columns.divided_by_time(batches.pop(0), late_ms)
            late += [some_late] if len(some_late) else []
            in_time += [rest] if len(rest) else []
        batches += in_time
        rows = sum(map(len, late))
        self.late_rows += rows
        has_only_late = bool(late) and not batches
        if callable(getattr(self._processor, self._mode.late_method, None)):
            return late, has_only_late
        self.rows += rows  # a replay of a program without the method: dropped, as by Spark
        return [], has_only_late

    def _process_part(self, batches: SentRows, method: str) -> Iterator[pa.RecordBatch]:
        part = self._made(batches, is_late=method == self._mode.late_method)
        if part is None:
            return
        self.part_under_way = part
        at_once = self._mode.calls_once_per_part
        yield from (
            self._process_at_once(part, method)
            if at_once
            else self._process_by_key(cast("PartOfKeys", part), method)
        )
        self.part_under_way = None

    @_making_rows
    def _made(self, batches: SentRows, *, is_late: bool) -> Part | None:
        """Return a part of the rows, which the table goes on with; ``None`` if no key is left."""
        self._step = _READING
        self.rows += sum(map(len, batches))
        part = self._part_of(batches, is_late=is_late)
        if part is not None:
            self.keys += len(part.stored) - len(self._late_keys.intersection(part.stored))
            self._late_keys = set(part.stored) if is_late else set()
            batches.clear()  # the part has them now
            self._table.begin_part(part.stored)
        return part

    def _part_of(self, batches: SentRows, *, is_late: bool) -> Part | None:
        """Return a part of an epoch's rows; a quarantine takes keys that cannot be shown.

        ``None`` if it takes all keys.
        """
        try:
            return self._mode.part(batches)
        except ValueNotHeldError:
            if self.quarantine is None:
                raise
            unheld, rest = divided(self._mode, batches)
            if not unheld:
                raise
        for key in unheld:
            self._table.begin_part([key.stored])
            self._table.enter(0)
            self.quarantine.keep_unheld(_READING, key.error, key.sent, is_late=is_late)
        self._table.current.leave()
        self.keys += len(unheld)
        return self._mode.part(rest) if rest else None

    @_in_user_code
    @_using_rows
    def _process_at_once(self, part: Part, method: str) -> Iterator[pa.RecordBatch]:
        self._step = method
        current = self._table.current
        if self.states.ages_in_event_time:
            current.event_time_ms = part.newest_event_time_ms(0)
        current.is_many = True
        handle = getattr(self._processor, method)
        call = _once(part.process, handle, 0, self._timer_values)
        yield from self.output.of_calls(self._step, call)
        current.leave()

    @_in_user_code
    @_using_rows
    def _process_by_key(self, part: PartOfKeys, method: str) -> Iterator[pa.RecordBatch]:
        self._step = method
        yield from self.output.of_calls(self._step, self._calls(part), part.stored)
        self._leave_key(_READING)

    def _calls(self, part: PartOfKeys) -> Iterator[Iterable[Any] | None]:
        """Have the processor handle the rows of each key; a quarantine takes what it yields."""
        step, table, timer_values = self._step, self._table, self._timer_values
        handle, is_late = getattr(self._processor, step), step == self._mode.late_method
        needs_event_time, quarantine = self.states.ages_in_event_time, self.quarantine
        for position, key in enumerate(part.keys):
            self._key = key
            table.enter(position)
            if needs_event_time:
                table.current.event_time_ms = part.newest_event_time_ms(position)
            if quarantine is None:
                yield part.process(handle, position, timer_values)
            else:
                call = partial(part.process, handle, position, timer_values)
                sent = partial(part.sent_rows, position)
                quarantine.handle_rows(
                    step, call, sent, self.output.buffer, self._described, is_late=is_late
                )
                yield None

    @_in_user_code
    def _release(self, quarantine: Quarantine) -> Iterator[pa.RecordBatch]:
        """Give the processor the rows of released keys, in a call for each epoch they came in."""
        self._step = self._mode.method
        keys: list[StoredKey] = []
        yield from self.output.of_calls(self._step, self._released(quarantine, keys), keys)
        self._leave_key(_READING)

    def _released(self, quarantine: Quarantine, keys: list[StoredKey]) -> Iterator[None]:
        """Have the processor handle each released key, which `keys` gets before."""
        for stored, kept in quarantine.released():
            self._key = self._decode_key(stored[1])
            keys.append(stored)
            call = partial(self._process_kept, stored, kept)
            quarantine.release(self._step, call, self.output.buffer, self._described)
            yield None

    def _process_kept(self, stored: StoredKey, kept: Iterable[RowsOfEpoch]) -> Iterator[Any]:
        for rows in kept:
            part = self._mode.part([rows.sent])
            if part.stored[0][1] != stored[1]:
                raise StateError(f"{self._where}: the rows of a quarantined key have another key")
            self._table.begin_part(part.stored)
            self._table.enter(0)
            if self.states.ages_in_event_time:
                self._table.current.event_time_ms = part.newest_event_time_ms(0)
            method = self._mode.late_method if rows.is_late else self._mode.method
            handle = getattr(self._processor, method, None)
            if handle is None:
                raise StateError(
                    f"{self._where}: a quarantined key has rows that came late, and "
                    f"{type(self._processor).__name__} has no {method} any more: give it the "
                    "method, and release the key again"
                )
            output: Any = part.process(handle, 0, self._timer_values)
            if isinstance(output, Row | pd.DataFrame | pa.Table | pa.RecordBatch):
                self.output.buffer.extend(output)  # it refuses what should be yielded
            elif output is not None:
                yield from output

    def _fire_timers(self) -> Iterator[pa.RecordBatch]:
        """Fire due timers by time and then by stored key, or all in one call."""
        now_ms = self._clock.timers_now_ms
        if now_ms is None:
            return
        while due := self.states.timers.take_due(now_ms, TIMERS_AT_ONCE):
            yield from self._fire(due)

    @_in_user_code
    def _fire(self, due: list[DueTimer]) -> Iterator[pa.RecordBatch]:
        self.timers_fired += len(due)
        if self._show_timers is None:
            self._step = "handleExpiredTimer"
            keys = [timer.key for timer in due]
            self._table.begin_part(keys)
            yield from self.output.of_calls(self._step, self._fire_one_by_one(due), keys)
        else:
            yield from self._fire_together(due)
        self._leave_key("handleExpiredTimer")

    def _fire_together(self, due: list[DueTimer]) -> Iterator[pa.RecordBatch]:
        """Fire all timers in one call."""
        assert self._show_timers is not None
        self._step = "handleExpiredTimers"
        timers = DueTimers(due)
        self.timers_under_way = timers.keys
        self._table.begin_part(timers.keys)
        try:
            shown = self._show_timers(timers)
        except (ValueError, OverflowError) as exc:
            raise self._time_not_held("the processor cannot get", exc) from exc
        # Before the call, which may register one of them again, for the next epoch.
        self.states.timers.delete_many(timers.positions, timers.times_ms)
        handler: Any = self._processor
        self._table.current.is_many = True
        call = _once(handler.handleExpiredTimers, *shown, self._timer_values)
        yield from self.output.of_calls(self._step, call)
        self.timers_under_way = ()

    def _fire_one_by_one(self, due: list[DueTimer]) -> Iterator[Iterable[Any] | None]:
        """Have the processor handle each timer; the timers of quarantined keys are kept."""
        quarantine = self.quarantine
        for position, timer in enumerate(due):
            key = self._key = self._key_of_timer(timer)
            self._table.enter(position)
            call = partial(
                self._processor.handleExpiredTimer,
                key=key,
                timerValues=self._timer_values,
                expiredTimerInfo=ExpiredTimerInfo(timer.time_ms),
            )
            if quarantine is None:
                yield call()
            elif quarantine.fire_timer(self._step, call, self.output.buffer, self._described):
                yield None
            else:
                yield None
                self.timers_fired -= 1
                self.states.timers.keep(timer)
                continue
            self.states.timers.delete(timer.time_ms)

    def _key_of_timer(self, timer: DueTimer) -> Key:
        try:
            return self._decode_key(timer.key[1])
        except (ValueError, OverflowError) as exc:
            raise self._time_not_held("Python does not have", exc) from exc

    def _time_not_held(self, why: str, error: Exception) -> StateValueError:
        found: StateValueError = StateValueError(
            f"{self._where}: the key of a timer has a time that {why} ({error}): handle the timers "
            "in handleExpiredTimers of an ArrowProcessor"
        )
        return found

    @_in_user_code
    @observed_by(lambda self: self._attributes.during_end())
    def _end(self, epoch: int) -> None:
        self._leave_key("snapshotState")
        self._raw.snapshot_of(self._processor, epoch)
        if self.quarantine is not None:
            self.quarantine.end()
        self._step = "close"
        self._processor.close()

    def _leave_key(self, next_step: str) -> None:
        self._table.current.leave()
        self._key = None
        self._step = next_step

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turn an error of the processor into one that says where it was and what to do."""
        try:
            yield
        except (CheckpointError, CrashedError, StateBackendError):
            raise
        except CkptError as exc:
            exc.add_place(f"; in {_place(self._step, self._key)}{self._lines(exc)}")
            raise
        except ValueNotHeldError as exc:
            raise InputRowsError(
                f"{self._where}: {exc}; in {_place(self._step, self._key)}"
            ) from exc
        except Exception as exc:
            if self._step == _READING:
                raise InputRowsError(
                    f"{self._where}: the library could not read the epoch's rows "
                    f"({type(exc).__name__}: {exc}), the processor had no part in it; check that "
                    f"PySpark {pyspark.__version__} supports pandas {pd.__version__} and PyArrow "
                    f"{pa.__version__}"
                ) from exc
            # Indented, so that no line of the user's text looks like the name of an error.
            text = "\n  ".join(shortened(str(exc)).splitlines())
            raise ProcessorError(
                f"{self._where}, {_place(self._step, self._key)}: "
                f"{type(self._processor).__name__} raised {type(exc).__name__}: "
                f"{text}; correct the processor and start the query "
                f"again, nothing of this epoch was committed{self._lines(exc)}"
            ) from exc

    def _lines(self, error: Exception) -> str:
        """Return the user's lines in an error; without any, the line where the method begins."""
        sources = self._sources.lines()
        found = user_frames(error, sources)
        return found or definition(self._processor, self._step, sources)

    def _described(self, error: Exception) -> str:
        return f"{type(error).__name__}: {shortened(str(error))}{self._lines(error)}"

    def _of_call(self, step: str, stored: StoredKey | None) -> str:
        key = None if stored is None else self._decode_key(stored[1])
        lines = definition(self._processor, step, self._sources.lines())
        return f"; by {_place(step, key)}{lines}"


def _once(method: Callable[..., Any], *arguments: Any) -> Iterator[Iterable[Any] | None]:
    """Make one call; nobody else holds what it returns."""
    yield method(*arguments)


def _place(step: str, key: Key | None) -> str:
    if key is None:
        return step
    return f"{step}, key {shown(tuple(key))}"


class EpochOutput:
    """The output of an epoch; `origins` has the call that each row in the buffer is of."""

    def __init__(
        self, buffer: Output, laps: Laps, described: Callable[[str, StoredKey | None], str]
    ) -> None:
        self.buffer = buffer
        self.laps = laps
        self.origins = OutputOrigins()
        self._described = described

    def of_calls(
        self, step: str, calls: Iterable[Iterable[Any] | None], keys: Sequence[StoredKey] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Gather what calls of a method yield, and yield to Spark what is enough to leave.

        `keys` are those of the calls; a key may be added just before its call.
        """
        buffer, fill = self.buffer, self.buffer.fill
        ends = self.origins.begin(step, keys)
        for call in calls:
            rest = fill(call)
            del call  # it may hold many rows
            while rest is not None:
                yield from self._written()
                rest = fill(rest)
            rows = buffer.rows
            ends.append(rows)
            if rows >= CHUNK_ROWS:
                yield from self._written()
        yield from self._written()

    @in_phase(Phase.WRITE)
    def _written(self) -> Iterator[pa.RecordBatch]:
        """Yield to Spark what is there."""
        if self.buffer.rows:
            yield self._take()
            self.origins.go_on()

    def _take(self) -> pa.RecordBatch:
        """Return the output so far; an error about a row names the call that made the row."""
        try:
            return self.buffer.take()
        except StateValueError as exc:
            if exc.row is not None:
                exc.add_place(
                    self._described(self.origins.step, self.origins.stored_key_of(exc.row))
                )
            raise


class OutputOrigins:
    """The calls of one method after the buffer was empty.

    `step` is the method, `ends` has the number of rows in the buffer after each call.
    """

    def __init__(self) -> None:
        self.step = ""
        self.ends: list[int] = []
        self._keys: Sequence[StoredKey] = ()
        self._first = 0

    def begin(self, step: str, keys: Sequence[StoredKey] = ()) -> list[int]:
        """Begin with an empty buffer; return `ends`, to which the caller appends."""
        self.step, self._keys = step, keys
        self._first = 0
        self.ends = []
        return self.ends

    def go_on(self) -> None:
        """Go on with an empty buffer, between two calls or in the middle of one."""
        self._first += len(self.ends)
        self.ends.clear()

    def stored_key_of(self, row: int) -> StoredKey | None:
        """Return the stored key of the call that a row is of, ``None`` without one."""
        place = self.place_of(row)
        return self._keys[place] if place < len(self._keys) else None

    def place_of(self, row: int) -> int:
        """Return the place among the keys of the call that a row is of."""
        return self._first + bisect_right(self.ends, row)
