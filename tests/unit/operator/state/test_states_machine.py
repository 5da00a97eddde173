"""Random histories of all kinds of state over keys and epochs, against dicts and lists.

Between epochs time passes, schemas change, time to live is switched, states are deleted and made
again, attempts fail, the backend is opened anew.
"""

from __future__ import annotations

import copy
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyspark.sql import types as T

from pyspark_ckpt.operator.table.stored_keys import (
    OPERATOR_STATE,
    TIME_INDEX,
    is_keyed,
    state_id_of,
)
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from state_backends import open_backend
from tests.unit.operator.subtask_epochs import IN_MEMORY, KEYS, LIMITS, NUMBER, SubtaskEpochs

Value = tuple[Any, ...]

_FIELDS = {
    "n": T.StructField("n", T.LongType()),
    "s": T.StructField("s", T.StringType()),
    "d": T.StructField("d", T.DoubleType()),
}
SCHEMAS = [("n",), ("n", "s"), ("s", "n"), ("s", "d", "n")]
"""Each can become each other: fields come, go and change their places."""

USER_KEY = T.StructType([T.StructField("k", T.StringType())])
NUMBERS = st.none() | st.integers(0, 9)
TEXTS = st.none() | st.sampled_from(["", "x"])
USER_KEYS = st.tuples(st.none() | st.sampled_from(["", "a", "ab", "k" * 600]))
POSITIONS = st.integers(0, len(KEYS) - 1)
TIMES_MS = st.integers(900, 2500)
STEPS_MS = st.sampled_from([0, 1, 40, 100, 250])

TTLS = [
    None,
    *(StateTtlConfig(ms, time=time) for ms in (100, 300) for time in ("processing", "event")),
    StateTtlConfig(100, update="OnReadAndWrite"),
]
EVENT_TTLS = [ttl for ttl in TTLS if ttl is not None and ttl.time == "event"]


@dataclass
class Entry:
    """A value by field name, and when it was written in which time.

    It keeps the fields that the schema had when it was written, also while a schema lacks them.
    """

    fields: dict[str, Any]
    time: str | None = None
    written_ms: int = 0


@dataclass
class Model:
    """What all states should contain."""

    values: dict[int, Entry] = field(default_factory=dict)
    lists: dict[int, list[Entry]] = field(default_factory=dict)
    maps: dict[int, dict[Value, Entry]] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)
    operator_list: list[Value] = field(default_factory=list)
    broadcast: dict[Value, Value] = field(default_factory=dict)
    timers: set[tuple[int, int]] = field(default_factory=set)
    schema: tuple[str, ...] = SCHEMAS[0]
    ttl: StateTtlConfig | None = None
    since_ms: int = 0

    def keyed(self) -> list[tuple[Any, Any]]:
        """Yield all aging entries: the container of each, and its place there."""
        return [
            *((self.values, position) for position in self.values),
            *((items, at) for items in self.lists.values() for at in range(len(items))),
            *((entries, key) for entries in self.maps.values() for key in entries),
        ]


class StatesMachine(RuleBasedStateMachine):
    """States return what was done to them, in this epoch or in committed ones before."""

    backend_type: str

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.root = Path(self.temporary.name)
        (self.root / "spill").mkdir()
        backend = open_backend(self.backend_type, self.root / "state", create=True)
        self.epochs = SubtaskEpochs(backend, LIMITS[0], self.root / "spill")
        self.model = Model()
        self.time_ms = 1000
        self.ahead_ms = [0] * len(KEYS)
        self.is_ahead = False

    @initialize(limit=st.sampled_from(LIMITS), is_ahead=st.booleans())
    def first_epoch(self, limit: int, is_ahead: bool) -> None:
        """Rows may be ahead of the watermark only where time to live stays in event time."""
        self.epochs.limit_bytes = limit
        self.is_ahead = is_ahead
        self.commit()
        self.begin(EVENT_TTLS[0] if is_ahead else None)

    # Epochs

    def begin(self, ttl: StateTtlConfig | None = None, *, deleted: bool = False) -> None:
        model = self.model
        if ttl is not None and (model.ttl is None or model.ttl.time != ttl.time or deleted):
            model.since_ms = self.time_ms
        model.ttl = ttl
        self.epochs.set_time(self.time_ms)
        handle = self.epochs.begin()
        if deleted:
            for name in ("value", "list", "map", "sum", "operator list", "broadcast"):
                handle.deleteIfExists(name)
        schema = T.StructType([_FIELDS[name] for name in model.schema])
        self.value = handle.getValueState("value", schema, ttl)
        self.list = handle.getListState("list", schema, ttl)
        self.map = handle.getMapState("map", USER_KEY, schema, ttl)
        self.sum = handle.getReducingState("sum", NUMBER, lambda a, b: (a[0] + b[0],))
        self.operator_list = handle.getOperatorListState("operator list", NUMBER)
        self.broadcast = handle.getBroadcastState("broadcast", USER_KEY, NUMBER)
        self.handle = handle
        self.to_key(0)

    def commit(self) -> None:
        self.committed = copy.deepcopy(self.model), self.time_ms

    def end(self) -> None:
        self.fire_timers()
        self.epochs.end()
        for container, place in reversed(self.model.keyed()):
            if self.is_expired(container[place]):
                del container[place]
        self.check_what_is_stored()
        self.commit()

    @rule(
        step_ms=STEPS_MS,
        which=st.integers(0, len(TTLS) - 1),
        ahead_ms=st.lists(st.sampled_from([0, 60, 500]), min_size=len(KEYS), max_size=len(KEYS)),
    )
    def end_epoch(self, step_ms: int, which: int, ahead_ms: list[int]) -> None:
        self.end()
        self.time_ms += step_ms
        self.ahead_ms = ahead_ms if self.is_ahead else self.ahead_ms
        choices = EVENT_TTLS if self.is_ahead else TTLS
        self.begin(choices[which % len(choices)])

    @rule(schema=st.sampled_from(SCHEMAS))
    def change_the_schema(self, schema: tuple[str, ...]) -> None:
        self.end()
        self.model.schema = schema
        self.begin(self.model.ttl)

    @rule()
    def delete_all_states(self) -> None:
        self.end()
        timers, schema, ttl = self.model.timers, self.model.schema, self.model.ttl
        self.model = Model(timers=timers, schema=schema)
        self.begin(ttl, deleted=True)

    @rule()
    def reopen(self) -> None:
        self.end()
        self.epochs.backend.close()
        self.epochs.backend = open_backend(self.backend_type, self.root / "state", create=False)
        self.begin(self.model.ttl)

    @rule()
    def fail(self) -> None:
        """The retry has the same time, but may have another time to live."""
        ttl, schema = self.model.ttl, self.model.schema
        self.epochs.drop()
        committed, _ = self.committed
        self.model = copy.deepcopy(committed)
        self.model.schema = schema
        self.begin(ttl)

    @rule()
    def spill(self) -> None:
        self.epochs.writes.spill()

    # Time to live

    def is_expired(self, entry: Entry) -> bool:
        ttl = self.model.ttl
        if ttl is None:
            return False
        written_ms = entry.written_ms if entry.time == ttl.time else self.model.since_ms
        return written_ms + ttl.duration_ms <= self.time_ms

    def entry(self, fields: dict[str, Any]) -> Entry:
        """Return an entry that is written now for the current key."""
        ttl = self.model.ttl
        if ttl is None:
            return Entry(fields)
        is_event = ttl.time == "event"
        return Entry(fields, ttl.time, self.time_ms + (self.ahead_ms[self.key] if is_event else 0))

    def shown(self, entry: Entry, *, is_read: bool = True) -> Value | None:
        """Return what reading an entry gives; reading may renew it."""
        if self.is_expired(entry):
            return None
        ttl = self.model.ttl
        if is_read and ttl is not None and ttl.update == "OnReadAndWrite":
            entry.time, entry.written_ms = ttl.time, self.time_ms
        return tuple(entry.fields.get(name) for name in self.model.schema)

    def drawn(self, number: int | None, text: str | None) -> tuple[Entry, Value]:
        every = {"n": number, "s": text, "d": None if number is None else number / 2}
        fields = {name: every[name] for name in self.model.schema}
        return self.entry(fields), tuple(fields.values())

    # Keyed state

    @rule(position=POSITIONS)
    def to_key(self, position: int) -> None:
        self.key = position
        self.epochs.to_key(position, self.time_ms + self.ahead_ms[position])

    @rule(number=NUMBERS, text=TEXTS)
    def update_value(self, number: int | None, text: str | None) -> None:
        self.model.values[self.key], value = self.drawn(number, text)
        self.value.update(value)

    @rule()
    def clear_value(self) -> None:
        self.value.clear()
        self.model.values.pop(self.key, None)

    @rule(number=NUMBERS, text=TEXTS)
    def append_value(self, number: int | None, text: str | None) -> None:
        entry, value = self.drawn(number, text)
        self.list.appendValue(value)
        self.model.lists.setdefault(self.key, []).append(entry)

    @rule(numbers=st.lists(NUMBERS, max_size=3), is_put=st.booleans())
    def write_list(self, numbers: list[int | None], is_put: bool) -> None:
        drawn = [self.drawn(number, "x") for number in numbers]
        items = self.model.lists.setdefault(self.key, [])
        if is_put:
            items.clear()
        items.extend(entry for entry, _ in drawn)
        (self.list.put if is_put else self.list.appendList)([value for _, value in drawn])

    @rule()
    def clear_list(self) -> None:
        self.list.clear()
        self.model.lists.pop(self.key, None)

    @rule(key=USER_KEYS, number=NUMBERS, text=TEXTS)
    def update_entry(self, key: Value, number: int | None, text: str | None) -> None:
        entry, value = self.drawn(number, text)
        self.map.updateValue(key, value)
        self.model.maps.setdefault(self.key, {})[key] = entry

    @rule(key=USER_KEYS)
    def remove_entry(self, key: Value) -> None:
        self.map.removeKey(key)
        self.model.maps.get(self.key, {}).pop(key, None)

    @rule()
    def clear_map(self) -> None:
        self.map.clear()
        self.model.maps.pop(self.key, None)

    @rule(key=USER_KEYS)
    def look_up_entry(self, key: Value) -> None:
        entry = self.model.maps.get(self.key, {}).get(key)
        contained = entry is not None and self.shown(entry, is_read=False) is not None
        assert self.map.containsKey(key) == contained
        assert self.map.getValue(key) == (None if entry is None else self.shown(entry))

    @rule(number=st.integers(0, 9))
    def add_to_sum(self, number: int) -> None:
        self.sum.add((number,))
        self.model.sums[self.key] = self.model.sums.get(self.key, 0) + number

    @rule()
    def clear_sum(self) -> None:
        self.sum.clear()
        self.model.sums.pop(self.key, None)

    # Operator state

    @rule(number=NUMBERS)
    def append_to_operator_list(self, number: int | None) -> None:
        self.operator_list.appendValue((number,))
        self.model.operator_list.append((number,))

    @rule(numbers=st.lists(NUMBERS, max_size=3))
    def put_operator_list(self, numbers: list[int | None]) -> None:
        self.operator_list.put([(number,) for number in numbers])
        self.model.operator_list = [(number,) for number in numbers]

    @rule(key=USER_KEYS, number=NUMBERS, is_removed=st.booleans())
    def broadcast_entry(self, key: Value, number: int | None, is_removed: bool) -> None:
        self.epochs.leave_key()
        if is_removed:
            self.broadcast.removeKey(key)
            self.model.broadcast.pop(key, None)
        else:
            self.broadcast.updateValue(key, (number,))
            self.model.broadcast[key] = (number,)
        self.to_key(self.key)

    # Timers

    @rule(time_ms=TIMES_MS)
    def register_timer(self, time_ms: int) -> None:
        self.handle.registerTimer(time_ms)
        self.model.timers.add((time_ms, self.key))

    @rule(data=st.data())
    def delete_timer(self, data: st.DataObject) -> None:
        own = sorted(time for time, key in self.model.timers if key == self.key)
        time_ms = data.draw(st.sampled_from([*own, 1]))
        self.handle.deleteTimer(time_ms)
        self.model.timers.discard((time_ms, self.key))

    @rule(timers=st.lists(st.tuples(TIMES_MS, POSITIONS), max_size=6), is_delete=st.booleans())
    def change_timers_of_many_keys(self, timers: list[tuple[int, int]], is_delete: bool) -> None:
        times_ms = [time_ms for time_ms, _ in timers]
        keys = pa.table({"key_position": pa.array([key for _, key in timers], pa.int64())})
        if is_delete:
            self.handle.deleteTimers(keys, times_ms)
            self.model.timers -= set(timers)
        else:
            self.handle.registerTimers(keys, times_ms)
            self.model.timers |= set(timers)
        self.to_key(self.key)

    def fire_timers(self) -> None:
        """Fire all timers one by one, or together if there is an even number of them."""
        fired = []
        together = len(self.model.timers) % 2 == 0
        while due := self.handle.timers.take_due(self.time_ms, 2):
            its = [(timer.time_ms, KEYS.index(timer.key)) for timer in due]
            if together:
                times_ms, positions = np.array(its).T
                self.handle.timers.delete_many(positions, times_ms)
            else:
                for time_ms, position in its:
                    self.epochs.to_key(position)
                    self.handle.deleteTimer(time_ms)
            fired += its
        assert fired == sorted(one for one in self.model.timers if one[0] <= self.time_ms)
        self.model.timers -= set(fired)
        earliest = min(self.model.timers, default=(None, 0))[0]
        assert self.handle.timers.earliest_ms() == earliest

    # What holds

    @invariant()
    def states_of_the_current_key_are_the_models(self) -> None:
        model, key = self.model, self.key
        entry = model.values.get(key)
        assert self.value.exists() == (entry is not None and not self.is_expired(entry))
        assert self.value.get() == (None if entry is None else self.shown(entry))
        self.check_list(model.lists.get(key, []))
        self.check_map(model.maps.get(key, {}))
        assert self.sum.get() == ((model.sums[key],) if key in model.sums else None)
        assert list(self.operator_list.get()) == model.operator_list
        assert self.operator_list.exists() == bool(model.operator_list)
        assert dict(self.broadcast.iterator()) == model.broadcast
        own = sorted(time for time, position in model.timers if position == key)
        assert list(self.handle.listTimers()) == own

    def check_list(self, items: list[Entry]) -> None:
        assert self.list.exists() == any(not self.is_expired(entry) for entry in items)
        shown = [self.shown(entry) for entry in items]
        assert list(self.list.get()) == [value for value in shown if value is not None]

    def check_map(self, entries: dict[Value, Entry]) -> None:
        assert self.map.exists() == any(not self.is_expired(entry) for entry in entries.values())
        shown = {key: self.shown(entry) for key, entry in entries.items()}
        expected = {key: value for key, value in shown.items() if value is not None}
        found = list(self.map.iterator())
        assert len(found) == len(expected)
        assert dict(found) == expected
        assert list(self.map.keys()) == [key for key, _ in found]
        assert list(self.map.values()) == [value for _, value in found]

    def check_what_is_stored(self) -> None:
        """Check that the backend has no expired entries and none of deleted states."""
        model = self.model
        stored: Counter[str] = Counter()
        lists = set()
        for key in self.epochs.entries():
            if key.startswith(TIME_INDEX):
                stored["timers"] += 1
            elif key.startswith(OPERATOR_STATE) or is_keyed(key):
                state_id = state_id_of(key)
                state = self.epochs.states[state_id : state_id + 1]
                name = state[0].name if state else "timers by key"
                stored[name] += 1
                lists |= {key[:2]} if name == "list" else set()
        assert stored["value"] == len(model.values)
        assert stored["map"] == sum(map(len, model.maps.values()))
        assert stored["sum"] == len(model.sums)
        assert stored["broadcast"] == len(model.broadcast)
        assert bool(stored["operator list"]) == bool(model.operator_list)
        assert stored["timers"] == stored["timers by key"] == len(model.timers)
        groups = {KEYS[position][0] for position, items in model.lists.items() if items}
        assert lists == groups

    def teardown(self) -> None:
        for position in range(len(KEYS)):
            self.to_key(position)
            self.states_of_the_current_key_are_the_models()
            for state in (self.value, self.list, self.map, self.sum):
                state.clear()
            for time_ms in self.handle.listTimers():
                self.handle.deleteTimer(time_ms)
        self.epochs.leave_key()
        self.operator_list.clear()
        self.broadcast.clear()
        self.epochs.end()
        left = self.epochs.entries()
        self.epochs.backend.close()
        self.temporary.cleanup()
        assert left == {}, "cleared states leave nothing behind"


class RocksDBStatesMachine(StatesMachine):
    backend_type = "rocksdb"


class HeapStatesMachine(StatesMachine):
    backend_type = "heap"


TestStatesOnRocksDB = RocksDBStatesMachine.TestCase
TestStatesOnRocksDB.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
TestStatesOnHeap = HeapStatesMachine.TestCase
TestStatesOnHeap.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


class LongStatesMachine(HeapStatesMachine):
    """The same for long runs."""


TestStatesForLong = pytest.mark.soak(LongStatesMachine.TestCase)
TestStatesForLong.settings = settings(max_examples=1000, stateful_step_count=80, deadline=None)
