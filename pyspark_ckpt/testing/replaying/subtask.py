"""One subtask of a capture: its epochs run again, each from the state that the last one left."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import HarnessUseError
from pyspark_ckpt.formats.handle import EMPTY_VERSION, Handle, StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.capture.capture_file import CapturedEpoch, Released
from pyspark_ckpt.operator.capture.described import calls_of, columns_of
from pyspark_ckpt.operator.capture.recording import EpochRecorder, key_of, stored_entries, times_of
from pyspark_ckpt.operator.descriptor import OnError, OperatorDescriptor
from pyspark_ckpt.operator.modes.mode import MODES, modes_of_class
from pyspark_ckpt.operator.plan.declared import copy_as_sent, no_instance
from pyspark_ckpt.operator.quarantine.quarantined_keys import KEYS_STATE, QuarantinedKey, comparable
from pyspark_ckpt.operator.quarantine.releases import EVERY_KEY, ReleasedKeys
from pyspark_ckpt.operator.rows.keys import key_groups_of
from pyspark_ckpt.operator.rows.quarantined import QuarantinedRows
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.rows.sides import BroadcastRows, EpochInput
from pyspark_ckpt.operator.run.function import OperatorFunction
from pyspark_ckpt.operator.schema.report import ROWS_STATE
from pyspark_ckpt.operator.table.catalog import FREE, codec_of, struct_type
from pyspark_ckpt.operator.table.keys import StoredKey
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    TIME_BYTES,
    TIME_INDEX,
    TIMERS_ID,
    decode_time,
    encode_key_group,
    is_keyed,
    state_id_of,
)
from pyspark_ckpt.operator.table.writes import DEFAULT_LIMIT_BYTES
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.testing.replaying.parts import ReadPart
from pyspark_ckpt.testing.schema_text import ParsedSchemas
from state_backends import StateBackend, in_parts, open_backend

_ENTRIES_AT_ONCE = 10_000
_BYTES_AT_ONCE = 8 << 20
Entries = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the two runs made of an epoch: its output, and the state that it left."""

    output: SentRows
    entries: Entries
    states: tuple[StateDescriptor, ...]


@dataclass(frozen=True, slots=True)
class ReplayedEpoch:
    """An epoch of a subtask that was run again; `captured` is ``None`` if it had failed."""

    epoch: CapturedEpoch
    captured: Side | None
    replayed: Side


class SubtaskReplay:
    """Runs the epochs of one subtask.

    An entry that the replay left as the captured run did goes on with the captured value, also if
    epochs between are not captured. An entry that differs goes on with the replay's value. A timer
    that fired in an epoch between, and a key that was released there, are removed, see
    :class:`CapturedState`.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        backend_type: str,
        migrations: Mapping[str, Migration],
        directory: Path,
    ) -> None:
        self._processor = processor
        self._backend_type = backend_type
        self._migrations = migrations
        self._directory = directory
        self._numbers = count()
        self._captured = CapturedState()
        self._parallelism: int | None = None
        self._states: tuple[StateDescriptor, ...] | None = None
        self._captured_states: tuple[StateDescriptor, ...] = ()
        self._backend = self._new_backend()

    def close(self) -> None:
        """Close the state."""
        self._backend.close()

    def run(self, part: ReadPart) -> ReplayedEpoch:
        """Run an epoch; return what both runs made of it."""
        epoch = part.epoch
        touched = dict.fromkeys(part.touched())
        if not self._continues(epoch):
            self._begin_anew()
        self._leave_moved_keys(epoch.handle)
        self._load(part, touched)
        output, also_touched, states = self._replayed(part)
        keys = {**touched, **also_touched}
        replayed = Side(output, dict(stored_entries(self._backend, states, keys)), states)
        self._states = None if epoch.error is not None else states
        if epoch.error is not None:
            return ReplayedEpoch(epoch, None, replayed)
        self._captured.write(part.writes())
        self._captured_states = epoch.states_after
        captured = self._captured.of([None, *keys])
        live = {number for number, state in enumerate(epoch.states_after) if state.sweeps is None}
        return ReplayedEpoch(
            epoch,
            Side(part.output(), _of_states(captured, live), epoch.states_after),
            replayed,
        )

    def _continues(self, epoch: CapturedEpoch) -> bool:
        """Return whether stored entries mean the same in both runs, so that they can be mixed."""
        if epoch.error is not None or self._states is None:
            return False
        shape = _shape(self._captured_states)
        return _shape(self._states) == shape == _shape(epoch.handle.states)

    def _begin_anew(self) -> None:
        self._backend.close()
        self._backend = self._new_backend()
        self._captured = CapturedState()

    def _new_backend(self) -> StateBackend:
        directory = self._directory / str(next(self._numbers))
        backend = open_backend(self._backend_type, directory, create=True)
        backend.load((), EMPTY_VERSION)
        return backend

    def _leave_moved_keys(self, handle: Handle) -> None:
        """Leave the keys that a rescale between two epochs gave to other subtasks."""
        before, self._parallelism = self._parallelism, handle.parallelism
        if before in (None, handle.parallelism):
            return
        old, new = (
            key_groups_of(handle.subtask, parallelism, handle.max_parallelism)
            for parallelism in (before, handle.parallelism)
        )
        self._captured.keep_groups(new)
        self._apply(
            dict.fromkeys(
                place
                for group in old
                if group not in new
                for place, _ in self._backend.scan(encode_key_group(group))
            )
        )

    def _load(self, part: ReadPart, touched: Mapping[StoredKey, None]) -> None:
        """Bring the entries that both runs have alike to what they were before the epoch."""
        epoch, new = part.epoch, part.before()
        quarantining = Quarantining(epoch.handle.states)
        past = self._captured.remove_past(touched, _clock(epoch).timers_now_ms, quarantining)
        old = self._captured.of((None, *touched))
        places = sorted({*past, *old, *new})
        mine = dict(zip(places, self._backend.get_many(places), strict=True))
        alike = {
            place
            for place, value in mine.items()
            if quarantining.is_alike(place, value, past.get(place, old.get(place)))
        }
        still_quarantined = {
            key_of(place) for place in past if quarantining.has(place) and place not in alike
        }
        self._apply(
            {
                place: new.get(place)
                for place in alike
                if mine[place] != new.get(place)
                and not (quarantining.has(place) and key_of(place) in still_quarantined)
            }
        )
        self._captured.begin_epoch(new, touched)

    def _apply(self, changed: Mapping[bytes, bytes | None]) -> None:
        entries = dict(changed)
        for place, value in changed.items():
            entries |= dict.fromkeys(times_of([place]), value)
        parts = in_parts(iter(sorted(entries.items())), _ENTRIES_AT_ONCE, _BYTES_AT_ONCE)
        self._backend.apply(parts, f"loaded-{next(self._numbers)}")

    def _replayed(
        self, part: ReadPart
    ) -> tuple[SentRows, dict[StoredKey, None], tuple[StateDescriptor, ...]]:
        epoch = part.epoch
        function, broadcast = _function(self._processor, epoch, self._migrations)
        recorder = EpochRecorder(epoch.handle.states, ())
        writes = function.writes(DEFAULT_LIMIT_BYTES, self._directory)
        with closing(recorder.table(self._backend, writes)) as table:
            processing = function.processing(
                epoch.handle, table, _clock(epoch), epoch.epoch, _Releases(epoch.released)
            )
            processing.completed_checkpoint_id = epoch.completed_checkpoint_id
            if epoch.quarantined:
                processing.on_quarantining = _raise_again
            received = None if broadcast is None else broadcast.received(part.broadcast())
            given = EpochInput(iter(part.rows()), received)
            for _ in recorder.watched(processing, processing.run(lambda: given, epoch.epoch)):
                pass  # the recorder keeps the output
            self._backend.apply(table.changes(), f"epoch-{next(self._numbers)}")
        return recorder.output, recorder.touched, recorder.states_after


def _clock(epoch: CapturedEpoch) -> EpochClock:
    clock = epoch.clock
    return EpochClock(
        clock.mode,
        clock.processing_time_ms,
        clock.watermark_ms,
        clock.drained_at_ms,
        clock.late_ms,
    )


def _raise_again(step: str, error: Exception, text: str) -> str:  # noqa: ARG001
    """Raise the error for which the query quarantined the key."""
    raise error


class _Releases:
    """The quarantined keys that the captured epoch released."""

    def __init__(self, released: Released) -> None:
        self._released = released

    def keys(self) -> ReleasedKeys:
        """Return the stored keys that the epoch releases."""
        if self._released.all:
            return EVERY_KEY
        return frozenset(map(bytes.fromhex, self._released.keys))

    def arm(self) -> None:
        """Do nothing: later epochs release what they released."""


def _function(
    processor: StatefulProcessor, epoch: CapturedEpoch, migrations: Mapping[str, Migration]
) -> tuple[OperatorFunction, BroadcastRows | None]:
    """Return the operator as the query built it, with another processor."""
    handle, program = epoch.handle, epoch.program
    _check_kind(processor, program.mode, epoch.uid)
    columns = columns_of(program.columns)
    if epoch.clock.late_ms is not None:
        columns = columns.with_late_rows()
    calls = calls_of(program, columns, epoch.uid)
    schemas = ParsedSchemas()
    schemas.update({text: struct_type(schema) for text, schema in program.schemas.items()})
    descriptor = OperatorDescriptor(
        uid=epoch.uid,
        parallelism=handle.parallelism,
        max_parallelism=handle.max_parallelism,
        key_schema=handle.key_schema,
        time_mode=handle.time_mode,
        on_error=OnError.QUARANTINE if program.quarantines else OnError.FAIL,
    )
    broadcast = None
    if program.broadcast is not None:
        side = calls.shown_columns(columns_of(program.broadcast))
        broadcast = BroadcastRows(side, calls.form)
    function = OperatorFunction(
        copy_as_sent(processor, epoch.uid),
        descriptor,
        columns,
        calls,
        schemas,
        migrations,
        broadcast,
        initial=None,
        keeping=QuarantinedRows(columns) if program.quarantines else None,
    )
    return function, broadcast


def _check_kind(processor: StatefulProcessor, mode: str, uid: str) -> None:
    if not isinstance(processor, StatefulProcessor):
        raise HarnessUseError(f"operator {uid!r}: {no_instance(processor, StatefulProcessor)}")
    if mode in MODES and MODES[mode] not in modes_of_class(processor):
        raise HarnessUseError(
            f"operator {uid!r} was captured with rows handed over as {mode}, which does not "
            f"fit {type(processor).__name__}: give a processor of the same kind"
        )


def _shape(states: Iterable[StateDescriptor]) -> list[tuple[object, ...]]:
    """Return what must be equal for stored entries of two runs to mean the same."""
    return [
        (state.name, state.kind, state.value_schema, state.map_key_schema, state.earlier_schemas)
        for state in states
    ]


def _of_states(entries: Entries, live: Iterable[int]) -> Entries:
    """Return entries without those of states that were deleted."""
    numbers = {*live, 0xFF}
    return {
        stored: value
        for stored, value in entries.items()
        if not is_keyed(stored) or stored[2] in numbers
    }


class CapturedState:
    """The state that the query had of the keys that were worked on; operator state under ``None``.

    Epochs may be missing between two that were captured. Of a key that the next one does not work
    on, two things are known all the same: no timer of it is due, because due timers are worked on,
    and it is not quarantined, because each quarantined key is kept with the epoch.
    """

    def __init__(self) -> None:
        self._by_key: dict[StoredKey | None, Entries] = defaultdict(dict)
        self._by_time: list[bytes] = []
        """The timers in the order of their time, as a heap; some are no longer there."""
        self._worked_on: tuple[StoredKey, ...] = ()

    def of(self, keys: Iterable[StoredKey | None]) -> Entries:
        """Return the entries of some keys."""
        found: Entries = {}
        for key in keys:
            found |= self._by_key.get(key, {})
        return found

    def begin_epoch(self, before: Mapping[bytes, bytes], touched: Iterable[StoredKey]) -> None:
        """Take the state before an epoch for that of the keys that the epoch works on."""
        self._worked_on = tuple(touched)
        for key in (None, *self._worked_on):
            self._by_key[key] = {}
        self._put(before.items())

    def write(self, writes: Mapping[bytes, bytes | None]) -> None:
        """Apply what the epoch wrote."""
        self._put(writes.items())

    def remove_past(
        self, touched: Container[StoredKey], now_ms: int | None, quarantining: Quarantining
    ) -> Entries:
        """Remove, before an epoch, what is over of keys that it does not work on; return it."""
        past: Entries = {}
        for key in self._worked_on:  # these have each quarantined key of the last epoch
            if key not in touched:
                past |= {
                    place: value
                    for place, value in self._by_key[key].items()
                    if quarantining.has(place)
                }
        while self._by_time and now_ms is not None and _time_ms(self._by_time[0]) <= now_ms:
            place = _below_key(heapq.heappop(self._by_time))
            key = key_of(place)
            if key not in touched and place in self._by_key.get(key, {}):
                past[place] = self._by_key[key][place]
        for place in past:
            del self._by_key[key_of(place)][place]
        return past

    def keep_groups(self, key_groups: range) -> None:
        """Forget the keys of all other key groups: they are of other subtasks now."""
        for key in list(self._by_key):
            if key is not None and int.from_bytes(key[0], "big") not in key_groups:
                del self._by_key[key]

    def _put(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        for place, value in entries:
            of_key = self._by_key[key_of(place) if is_keyed(place) else None]
            if value is None:
                of_key.pop(place, None)
            else:
                of_key[place] = value
                for by_time in times_of([place]):
                    heapq.heappush(self._by_time, by_time)


class Quarantining:
    """The two states of the quarantined keys among the states of an epoch."""

    def __init__(self, states: Sequence[StateDescriptor]) -> None:
        live = {
            state.name: number
            for number, state in enumerate(states)
            if state.kind != FREE and state.sweeps is None
        }
        self._keys_id = live.get(KEYS_STATE)
        self._ids = {live[name] for name in (KEYS_STATE, ROWS_STATE) if name in live}
        self._decode = None
        if self._keys_id is not None:
            self._decode = codec_of(states[self._keys_id], KEYS_STATE).decode

    def has(self, place: bytes) -> bool:
        """Return whether an entry is of a quarantined key or of its rows."""
        return is_keyed(place) and state_id_of(place) in self._ids

    def is_alike(self, place: bytes, value: bytes | None, other: bytes | None) -> bool:
        """Return whether two values of an entry mean the same.

        The lines of code in the error of a quarantined key do not count: an equal program may have
        them elsewhere.
        """
        if value == other or value is None or other is None or self._decode is None:
            return value == other
        if not is_keyed(place) or state_id_of(place) != self._keys_id:
            return False
        first, second = (
            comparable(msgspec.structs.asdict(QuarantinedKey(*self._decode(each))))
            for each in (value, other)
        )
        return first == second


def _time_ms(by_time: bytes) -> int:
    return decode_time(by_time[len(TIME_INDEX) : len(TIME_INDEX) + TIME_BYTES])


def _below_key(by_time: bytes) -> bytes:
    """Return a timer of the index by time as it is stored with its key."""
    time_end = len(TIME_INDEX) + TIME_BYTES
    group_end = time_end + KEY_GROUP_BYTES
    time, group = by_time[len(TIME_INDEX) : time_end], by_time[time_end:group_end]
    return group + TIMERS_ID + by_time[group_end:] + time
