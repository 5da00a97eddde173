"""An epoch of one subtask, from its rows to the barrier, whatever calls it.

``init -> broadcast rows -> rows, key by key -> due timers -> close``
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor

from pyspark_ckpt.errors import CkptError, ProcessorError
from pyspark_ckpt.operator import garbage_collection
from pyspark_ckpt.operator.broadcast_rows import BroadcastRows
from pyspark_ckpt.operator.epoch_clock import EpochClock
from pyspark_ckpt.operator.initial_rows import InitialRows
from pyspark_ckpt.operator.input_mode import InputMode, Part
from pyspark_ckpt.operator.operator_states import RawState
from pyspark_ckpt.operator.output_rows import CHUNK_ROWS
from pyspark_ckpt.operator.processor_handle import ProcessorHandle
from pyspark_ckpt.operator.state_table import StateTable
from state_backends import StateBackendError

TIMERS_AT_ONCE = 100_000
"""Due timers that are read together; bounds the memory they take."""

DecodeKey = Callable[[bytes], tuple[Any, ...]]


class EpochProcessing:
    """Runs a processor over one epoch of one subtask.

    Parameters
    ----------
    processor
        The user's processor, a fresh copy.
    table, states
        The epoch's state, and the handle that ``init`` gets.
    clock
        The epoch's times.
    mode
        How the processor receives its rows.
    decode_key
        From a stored key's bytes to the key that the processor sees.
    where
        Operator, subtask and epoch, for errors.
    broadcast
        Where the epoch's broadcast rows are, if there is a broadcast stream.

    Set `completed_checkpoint_id` before :meth:`run` to have the processor told of it. `rows`,
    `keys` and `timers_fired` count what was processed.
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
        broadcast: BroadcastRows | None = None,
    ) -> None:
        self._broadcast = broadcast
        self._processor = processor
        self._table = table
        self.states = states
        self._clock = clock
        self._timer_values = clock.timer_values
        self._mode = mode
        self._decode_key = decode_key
        self._where = where
        self._step = "init"
        self._key: tuple[Any, ...] | None = None
        self._output = mode.new_output()
        self._raw = RawState(table)
        self.completed_checkpoint_id: int | None = None
        self.rows = 0
        self.keys = 0
        self.timers_fired = 0

    def run(
        self,
        parts: Iterable[list[pd.DataFrame]],
        epoch: int,
        initial: InitialRows | None = None,
    ) -> Iterator[pd.DataFrame]:
        """Process an epoch; yield its output in frames.

        Parameters
        ----------
        parts
            The keyed rows; asking for the first part reads all of the input. Lists are emptied.
        epoch
            Its number.
        initial
            The initial state, in a run that begins with one.

        Raises
        ------
        ProcessorError
            If the processor raises; names the step and the key.
        """
        with self._named_errors():
            self._begin()
            remaining = iter(parts)
            # Reads all of the input, so that the other sides are there too.
            first = next(remaining, None)
            if initial is not None:
                for frames in initial.parts():
                    self._handle_initial_state(initial, frames)
            self._handle_broadcast_rows()
            for frames in () if first is None else chain([first], remaining):
                yield from self._process_part(frames)
            yield from self._fire_timers()
            if self._output.rows:
                yield self._output.take()
            self._end(epoch)

    def run_initial_state(self, initial: InitialRows, parts: Iterable[list[pd.DataFrame]]) -> None:
        """Give the processor an initial state and nothing else.

        Raises
        ------
        ProcessorError
            If the processor raises; names the step and the key.
        """
        with self._named_errors():
            self._begin()
            for frames in parts:
                self._handle_initial_state(initial, frames)
            self._end(epoch=0)

    def _begin(self) -> None:
        self._processor.init(self.states)  # type: ignore[arg-type]  # same methods, no subclass
        self.states.end_of_init()
        self._step = "restoreState"
        self._raw.restore_into(self._processor)
        if self.completed_checkpoint_id is not None:
            self._step = "notifyCheckpointComplete"
            notified: Any = self._processor
            notified.notifyCheckpointComplete(self.completed_checkpoint_id)
        self._step = "reading the input"

    def _handle_initial_state(self, initial: InitialRows, frames: list[pd.DataFrame]) -> None:
        with garbage_collection.rows_are_made():
            part = initial.mode.part(frames)
            self._table.begin_part(part.stored)
        with garbage_collection.rows_are_used():
            self._step = "handleInitialState"
            for position, key in enumerate(part.keys):
                self._key = key
                self._table.enter(position)
                for state in part.initial_states(position):
                    self._processor.handleInitialState(key, state, self._timer_values)
        self._leave_key("handleInputRows")

    def _handle_broadcast_rows(self) -> None:
        rows = None if self._broadcast is None else self._broadcast.rows()
        if rows is not None:
            self._step = "handleBroadcastRows"
            handler: Any = self._processor
            self._output.extend(handler.handleBroadcastRows(rows, self._timer_values))

    def _process_part(self, frames: list[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        with garbage_collection.rows_are_made():
            self.rows += sum(map(len, frames))
            part = self._mode.part(frames)
            self.keys += len(part.keys)
            frames.clear()  # the part has them now
            self._table.begin_part(part.stored)
        with garbage_collection.rows_are_used():
            if self._mode.calls_once_per_part:
                yield from self._process_batch(part)
            else:
                yield from self._process_keys(part)

    def _process_batch(self, part: Part) -> Iterator[pd.DataFrame]:
        self._step = "handleInputBatch"
        current = self._table.current
        if self.states.ages_in_event_time:
            current.event_time_ms = part.newest_event_time_ms(0)
        self._output.extend(part.process(self._processor, 0, self._timer_values))
        current.leave()
        if self._output.rows >= CHUNK_ROWS:
            yield self._output.take()

    def _process_keys(self, part: Part) -> Iterator[pd.DataFrame]:
        self._step = "handleInputRows"
        table, output, timer_values = self._table, self._output, self._timer_values
        needs_event_time = self.states.ages_in_event_time
        for position, key in enumerate(part.keys):
            self._key = key
            table.enter(position)
            if needs_event_time:
                table.current.event_time_ms = part.newest_event_time_ms(position)
            output.extend(part.process(self._processor, position, timer_values))
            if output.rows >= CHUNK_ROWS:
                yield output.take()
        self._leave_key("handleInputRows")

    def _fire_timers(self) -> Iterator[pd.DataFrame]:
        """Fire due timers in the order of time; those of one time in the order of stored keys."""
        now_ms = self._clock.timers_now_ms
        if now_ms is None:
            return
        timers = self.states.timers
        while due := timers.take_due(now_ms, TIMERS_AT_ONCE):
            self._table.begin_part([(timer.key_group, timer.encoded_key) for timer in due])
            self._step = "handleExpiredTimer"
            self.timers_fired += len(due)
            for position, timer in enumerate(due):
                key = self._key = self._decode_key(timer.encoded_key)
                self._table.enter(position)
                self._output.extend(
                    self._processor.handleExpiredTimer(
                        key=key,
                        timerValues=self._timer_values,
                        expiredTimerInfo=ExpiredTimerInfo(timer.time_ms),
                    )
                )
                timers.delete(timer.time_ms)
                if self._output.rows >= CHUNK_ROWS:
                    yield self._output.take()
            self._leave_key("handleExpiredTimer")

    def _end(self, epoch: int) -> None:
        self._leave_key("snapshotState")
        self._raw.snapshot_of(self._processor, epoch)
        self._step = "close"
        self._processor.close()

    def _leave_key(self, next_step: str) -> None:
        self._table.current.leave()
        self._key = None
        self._step = next_step

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise what the processor raises as an error that says where and what to do."""
        try:
            yield
        except (CkptError, StateBackendError):
            raise
        except Exception as exc:
            raise ProcessorError(
                f"{self._where}, {self._place()}: {type(self._processor).__name__} raised "
                f"{type(exc).__name__}: {exc}; mend the processor and start the query again, "
                "nothing of this epoch was committed"
            ) from exc

    def _place(self) -> str:
        return self._step if self._key is None else f"{self._step}, key {tuple(self._key)!r}"
