"""The one subtask of a harness: opens its local copy, runs an epoch, ends it with a barrier.

It does what a task of a query does, with the same code, but without Spark.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import CkptError, CrashedError, HarnessUseError, PlanError, ProcessorError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import OnError, OperatorDescriptor, QuarantineLimits
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.durable.materialization import EpochStart, materializer
from pyspark_ckpt.operator.modes.calls import Calls
from pyspark_ckpt.operator.plan.declared import copy_as_sent, no_instance
from pyspark_ckpt.operator.quarantine.quarantined_keys import QuarantinedKeys
from pyspark_ckpt.operator.quarantine.releases import NO_KEY, ReleasedKeys
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.mode import InputMode
from pyspark_ckpt.operator.rows.quarantined import QuarantinedRows
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.rows.sides import BroadcastRows, EpochInput, InitialRows
from pyspark_ckpt.operator.run import lost_attributes
from pyspark_ckpt.operator.run.barrier import end_epoch
from pyspark_ckpt.operator.run.function import WRITES_SHARE, OperatorFunction
from pyspark_ckpt.operator.run.processing import EpochProcessing
from pyspark_ckpt.operator.schema.verdict import StateOutcome
from pyspark_ckpt.operator.state.handle import GivenState, ProcessorHandle
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.undo import UndoableWrites
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.operator.task_failure import user_frames
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.restore.operators import check_states
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.testing.harness_input import HarnessKey, HarnessMode
from pyspark_ckpt.testing.schema_text import ParsedSchemas
from pyspark_ckpt.values.words import shortened, shown
from state_backends import StateBackendError

Item = TypeVar("Item")
Result = TypeVar("Result")
_QUERY_ID = "harness"
_SUBTASK = 0
_BEFORE_THE_FIRST_EPOCH = -1


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An epoch in progress; it has no effect before its barrier."""

    handle: Handle
    table: StateTable
    clock: EpochClock
    number: int
    scratch: Path


class HarnessSubtask:
    """A subtask's durable state, and the epochs and look-ups over it.

    Each epoch works with a copy of `processor`, as in a query. `handle` names the state after the
    last epoch that ended, and `releases` has what the next epoch releases. With
    `fails_on_lost_attributes`, an epoch fails if the processor changes its attributes.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        descriptor: OperatorDescriptor,
        root: Path,
        settings: Settings,
        migrations: Mapping[str, Migration],
    ) -> None:
        self.where = f"operator {descriptor.uid!r}"
        self.fails_on_lost_attributes = False
        if not isinstance(processor, StatefulProcessor):
            raise PlanError(f"{self.where}: {no_instance(processor, StatefulProcessor)}")
        self.handle = descriptor.first_handle(_QUERY_ID, _SUBTASK, _BEFORE_THE_FIRST_EPOCH)
        self.storage = LocalStorage(root / "checkpoints")
        self.crash = PlannedCrash(self.where)
        self.processor = processor
        self.releases = GivenReleases()
        self._descriptor = descriptor
        self._local = root / "local"
        self._settings = settings
        self._migrations = migrations
        self._schemas = ParsedSchemas()
        self._key: HarnessKey | None = None
        self._migrates = False

    def process(
        self,
        columns: InputColumns,
        mode: HarnessMode,
        clock: EpochClock,
        batches: Iterable[pa.RecordBatch],
        broadcast: BroadcastRows | None = None,
        *,
        calls_keys_without_rows: bool = False,
    ) -> None:
        """Process an epoch's rows and due timers, and commit it.

        Nothing is committed if a crash was planned or the processor raises.
        """
        with self._attempt(clock, self.crash.reach) as attempt:
            self.crash.reach(CrashStep.BEFORE_INIT)
            function = self._function(columns, mode, broadcast=broadcast)
            processing = self._processing(function, attempt)
            last: list[SentRows] = [[]] if calls_keys_without_rows else []

            def read() -> EpochInput:
                self.crash.reach(CrashStep.AFTER_INIT)
                found = function.read_stream(
                    batches, _SUBTASK, self._settings.memory_limit_bytes, attempt.scratch
                )
                return EpochInput(self._crashing(chain(found.parts, last)), found.broadcast)

            for _ in processing.run(read, attempt.number):
                pass  # the mode keeps the output
            if self.fails_on_lost_attributes and processing.lost_attributes:
                raise ProcessorError(
                    lost_attributes.warning(self.where, processing.lost_attributes)
                )
            self.crash.reach(CrashStep.AFTER_TIMERS)
            self.crash.reach(CrashStep.BEFORE_SEGMENT)
            handle = self._ended(attempt, processing.states)
            self.crash.reach(CrashStep.AFTER_SEGMENT)
            self._commit(handle)

    def begin(
        self, columns: InputColumns, mode: Calls, clock: EpochClock, batch: pa.RecordBatch
    ) -> None:
        """Give the processor an initial state, in an epoch without anything else."""
        with self._attempt(clock) as attempt:
            initial = InitialRows(columns, mode.of_initial_state(columns))
            function = self._function(columns, mode, initial=initial)
            processing = self._processing(function, attempt)
            processing.run_initial_state(
                function.initial_parts(
                    iter([batch]), _SUBTASK, self._settings.memory_limit_bytes, attempt.scratch
                )
            )
            self._commit(self._ended(attempt, processing.states))

    def edit(
        self,
        clock: EpochClock,
        items: Iterable[tuple[HarnessKey, Item]],
        work: Callable[[StatefulProcessor, NotedStates, HarnessKey, Item], object],
    ) -> None:
        """Change states key by key with `work`, in an epoch that ignores a planned crash."""
        with self._attempt(clock) as attempt:
            states = self._states(attempt)
            with self._initialized(states) as processor:
                for key, item in items:
                    self._key = key
                    _enter(attempt.table, key)
                    work(processor, states, key, item)
                attempt.table.current.leave()
                self._key = None
            self._commit(self._ended(attempt, states))

    def look(
        self,
        clock: EpochClock,
        work: Callable[[NotedStates], Result],
        key: HarnessKey | None = None,
    ) -> Result:
        """Return the result of `work` on the states; its changes to them are discarded.

        If a migration waits for the next epoch, it has a separate epoch first: it would be
        discarded, and its functions would run again.
        """
        if self._migrates:
            self.edit(clock, (), lambda *_: None)
        with self._attempt(clock) as attempt:
            states = self._states(attempt)
            with self._initialized(states):
                if key is not None:
                    _enter(attempt.table, key)
                return work(states)

    def check(self) -> None:
        """Check the states that are stored, as a query does before it starts."""
        report = check_states(self._descriptor, [self.handle])
        self._migrates = any(row.verdict is StateOutcome.MIGRATED for row in report.verdicts)

    def first_init(self, clock: EpochClock) -> bool:
        """Run ``init`` once on the given processor, as ``TwsTester`` does; later epochs use copies.

        The result says whether a state has a time to live in processing time.
        """
        with self._attempt(clock) as attempt:
            states = self._states(attempt)
            # A shallow copy, because the next epoch must not keep the states of this one. Not yet
            # a copy by serialization, because that replaces what local classes enclose.
            with self._initialized(states, copy.copy(self.processor)):
                ages = any(not aging.is_in_event_time for aging in states.aging.values())
                declared = states.descriptors
        copy_as_sent(self.processor, self.handle.uid)  # refuses what cannot be sent
        self._descriptor = msgspec.structs.replace(self._descriptor, states=declared)
        self.check()
        return ages

    def lose_local_copy(self) -> None:
        """Delete the backend's directory; the next epoch rebuilds it from durable files."""
        shutil.rmtree(self._local, ignore_errors=True)

    @contextmanager
    def _attempt(
        self, clock: EpochClock, reach: Callable[[CrashStep], None] = lambda _: None
    ) -> Iterator[_Attempt]:
        handle, number = self.handle, self.handle.epoch + 1
        settings = self._settings
        with open_local_copy(self._local, settings.backend_type, self.storage, handle) as local:
            base = handle.base
            start = EpochStart(number, clock.processing_time_ms, run_id="")
            handle = materializer(local, self.storage, settings.materialization).advance(
                handle, start
            )
            if handle.base != base:
                reach(CrashStep.AFTER_BASE)
            kind = UndoableWrites if self._quarantines else EpochWrites
            writes = kind(settings.memory_limit_bytes // WRITES_SHARE, local.scratch)
            table = StateTable(local.backend, writes=writes)
            try:
                yield _Attempt(handle, table, clock, number, local.scratch)
            finally:
                table.close()

    def quarantined(self, columns: InputColumns, clock: EpochClock) -> dict[bytes, str]:
        """Return the quarantined keys in their stored form, with their errors."""
        if not self._quarantines:
            return {}

        def errors(states: NotedStates) -> dict[bytes, str]:
            groups, limits = range(self.handle.max_parallelism), self._limits()
            keeping = QuarantinedRows(columns)
            found = QuarantinedKeys(states, keeping, groups, limits, 0, self.where).found
            return {key: found[group, key].error for group, key in sorted(found)}

        return self.look(clock, errors)

    @property
    def _quarantines(self) -> bool:
        return self._descriptor.on_error is OnError.QUARANTINE

    def _limits(self) -> QuarantineLimits:
        settings = self._settings
        return QuarantineLimits(
            settings.quarantine_keys,
            settings.quarantine_rows_per_key,
            settings.quarantine_bytes_per_key,
        )

    def _states(self, attempt: _Attempt) -> NotedStates:
        return NotedStates(
            attempt.table,
            attempt.clock,
            self.where,
            attempt.handle.states,
            self._schemas,
            self._migrations,
        )

    @contextmanager
    def _initialized(
        self, states: NotedStates, processor: StatefulProcessor | None = None
    ) -> Iterator[StatefulProcessor]:
        """Yield a processor, by default a fresh copy, between its ``init`` and ``close``."""
        if processor is None:
            processor = copy_as_sent(self.processor, self.handle.uid)
        self._key = None
        try:
            processor.init(states)  # type: ignore[arg-type]  # same methods, no subclass
            states.end_of_init()
            yield processor
            processor.close()
        except StateBackendError:
            raise
        except CkptError as exc:
            exc.add_place(f"{self._place(', with ')}{user_frames(exc)}")
            raise
        except Exception as exc:
            raise ProcessorError(
                f"{self.where}{self._place(', ')}: {type(processor).__name__} raised "
                f"{type(exc).__name__}: {shortened(str(exc))}; no state was changed: correct the "
                f"processor{user_frames(exc)}"
            ) from exc

    def _place(self, before: str) -> str:
        return "" if self._key is None else f"{before}key {shown(self._key.key)}"

    def _function(
        self,
        columns: InputColumns,
        mode: InputMode,
        broadcast: BroadcastRows | None = None,
        initial: InitialRows | None = None,
    ) -> OperatorFunction:
        return OperatorFunction(
            copy_as_sent(self.processor, self.handle.uid),
            self._descriptor,
            columns,
            mode,
            self._schemas,
            self._migrations,
            broadcast,
            initial,
            keeping=QuarantinedRows(columns) if self._quarantines else None,
        )

    def _processing(self, function: OperatorFunction, attempt: _Attempt) -> EpochProcessing:
        return function.processing(
            attempt.handle,
            attempt.table,
            attempt.clock,
            attempt.number,
            self.releases,
            self._limits(),
        )

    def _crashing(self, parts: Iterable[SentRows]) -> Iterator[SentRows]:
        yield from parts
        self.crash.reach(CrashStep.AFTER_ROWS)

    def _commit(self, handle: Handle) -> None:
        self.handle = handle
        self._migrates = False

    def _ended(self, attempt: _Attempt, states: ProcessorHandle) -> Handle:
        threshold_bytes = self._settings.inline_threshold_bytes
        return end_epoch(self.storage, attempt.handle, states, attempt.number, threshold_bytes)


def _enter(table: StateTable, key: HarnessKey) -> None:
    place = encode_key_group(key.key_group), key.encoded
    table.begin_part([place])
    table.current.key_group, table.current.key = place
    table.current.position = 0


class NotedStates(ProcessorHandle):
    """The library's own handle, with a look-up of the states that ``init`` asked for."""

    def noted(self, name: str, *classes: type) -> GivenState:
        """Return a state that ``init`` asked for."""
        given = self._given.get(name)
        if given is None:
            raise HarnessUseError(
                f"{self._where}: init asks for no state {name!r}, only for {sorted(self._given)}: "
                "correct the name",
                "STATE_NOT_EXISTS",
            )
        if classes and not isinstance(given.state, classes):
            raise HarnessUseError(
                f"{self._where}: state {name!r} is a {type(given.state).__name__} and no "
                f"{' or '.join(each.__name__ for each in classes)}: use a method for "
                "that kind of state",
                "STATE_NOT_EXISTS",
            )
        return given


class CrashStep(str, Enum):
    """The steps of an epoch at which a test can crash it, in their order.

    Examples
    --------
    >>> from pyspark_ckpt.testing import CrashStep
    >>> harness.crashAt(CrashStep.BEFORE_SEGMENT)
    """

    AFTER_BASE = "after a new base snapshot, which only an epoch with a long changelog writes"
    BEFORE_INIT = "before init"
    AFTER_INIT = "after init"
    AFTER_FIRST_KEY = "after the first call with rows or, without rows, of a timer"
    AFTER_ROWS = "after the rows"
    AFTER_TIMERS = "after the due timers and close"
    BEFORE_SEGMENT = "at the barrier, before the segment"
    AFTER_SEGMENT = "at the barrier, after the segment, before the handle"


class PlannedCrash:
    """Raises once, at a planned step."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._step: CrashStep | None = None

    def plan(self, step: CrashStep) -> None:
        """Crash when `step` is reached next; replaces an earlier plan."""
        self._step = step

    def reach(self, step: CrashStep) -> None:
        """Note that an epoch reached a step."""
        if step is not self._step:
            return
        self._step = None
        raise CrashedError(
            f"{self._where}: crashed {step.value}, as planned with crashAt; the harness is as "
            "after the last epoch that ended: repeat the call to repeat the epoch"
        )


class GivenReleases:
    """What the next epoch of a harness releases."""

    def __init__(self) -> None:
        self.next: ReleasedKeys = NO_KEY

    def keys(self) -> ReleasedKeys:
        """Return the stored keys that the epoch releases."""
        return self.next

    def arm(self) -> None:
        """Do nothing: an epoch of a harness is not repeated by itself."""
