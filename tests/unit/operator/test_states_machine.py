"""Random histories of the three states over several keys and epochs, against dicts and lists."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyspark.sql import types as T

from pyspark_ckpt.operator.codec import TupleCodec, key_encoder
from pyspark_ckpt.operator.state_table import StateTable
from pyspark_ckpt.operator.states import ListState, MapState, ValueState
from pyspark_ckpt.operator.stored_keys import encode_key_group
from state_backends import open_backend

Value = tuple[Any, ...]

SCHEMA = T.StructType([T.StructField("n", T.LongType()), T.StructField("s", T.StringType())])
USER_KEY = T.StructType([T.StructField("k", T.StringType())])
_encode = key_encoder()
KEYS = sorted(
    (encode_key_group(group), _encode(key))
    for group, key in [(0, ("a",)), (0, ("ab",)), (0, (b"a", 1)), (1, (None,)), (255, (1,))]
)
VALUES = st.tuples(st.none() | st.integers(0, 9), st.none() | st.sampled_from(["", "x"]))
USER_KEYS = st.tuples(st.none() | st.sampled_from(["", "a", "ab", "k" * 600]))
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Histories are long, and nothing here is about disks."""


class StatesMachine(RuleBasedStateMachine):
    """What a state says is what was done to it, in this epoch or in committed ones before."""

    backend_type: str

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.root = Path(self.temporary.name)
        self.backend = open_backend(self.backend_type, self.root / "state", create=True)
        self.epoch = 0
        self.values: dict[int, Value] = {}
        self.lists: dict[int, list[Value]] = {}
        self.maps: dict[int, dict[Value, Value]] = {}
        self.commit()

    def begin(self) -> None:
        self.table = StateTable(self.backend, KEYS)
        self.value = ValueState(self.table, b"\x00", TupleCodec(SCHEMA, "value"))
        self.list = ListState(self.table, b"\x01", TupleCodec(SCHEMA, "list"))
        self.map = MapState(
            self.table, b"\x02", TupleCodec(USER_KEY, "key"), TupleCodec(SCHEMA, "map")
        )
        self.to_key(0)

    def commit(self) -> None:
        self.committed = copy.deepcopy((self.values, self.lists, self.maps))
        self.begin()

    @rule()
    def end_epoch(self) -> None:
        self.epoch += 1
        self.backend.apply(self.table.changes(), str(self.epoch))
        self.commit()

    @rule()
    def reopen(self) -> None:
        self.end_epoch()
        self.backend.close()
        self.backend = open_backend(self.backend_type, self.root / "state", create=False)
        self.begin()

    @rule()
    def drop_epoch(self) -> None:
        self.values, self.lists, self.maps = copy.deepcopy(self.committed)
        self.begin()

    @rule(position=st.integers(0, len(KEYS) - 1))
    def to_key(self, position: int) -> None:
        self.key = position
        self.table.current.key_group, self.table.current.key = KEYS[position]
        self.table.current.position = position

    @rule(value=VALUES)
    def update_value(self, value: Value) -> None:
        self.value.update(value)
        self.values[self.key] = value

    @rule()
    def clear_value(self) -> None:
        self.value.clear()
        self.values.pop(self.key, None)

    @rule(value=VALUES)
    def append_value(self, value: Value) -> None:
        self.list.appendValue(value)
        self.lists.setdefault(self.key, []).append(value)

    @rule(values=st.lists(VALUES, max_size=3))
    def append_list(self, values: list[Value]) -> None:
        self.list.appendList(values)
        self.lists.setdefault(self.key, []).extend(values)

    @rule(values=st.lists(VALUES, max_size=3))
    def put_list(self, values: list[Value]) -> None:
        self.list.put(values)
        self.lists[self.key] = list(values)

    @rule()
    def clear_list(self) -> None:
        self.list.clear()
        self.lists.pop(self.key, None)

    @rule(key=USER_KEYS, value=VALUES)
    def update_entry(self, key: Value, value: Value) -> None:
        self.map.updateValue(key, value)
        self.maps.setdefault(self.key, {})[key] = value

    @rule(key=USER_KEYS)
    def remove_entry(self, key: Value) -> None:
        self.map.removeKey(key)
        self.maps.get(self.key, {}).pop(key, None)

    @rule()
    def clear_map(self) -> None:
        self.map.clear()
        self.maps.pop(self.key, None)

    @rule(key=USER_KEYS)
    def look_up_entry(self, key: Value) -> None:
        entries = self.maps.get(self.key, {})
        assert self.map.getValue(key) == entries.get(key)
        assert self.map.containsKey(key) == (key in entries)

    @invariant()
    def states_of_the_current_key_are_the_models(self) -> None:
        assert self.value.get() == self.values.get(self.key)
        assert self.value.exists() == (self.key in self.values)
        items = self.lists.get(self.key, [])
        assert list(self.list.get()) == items
        assert self.list.exists() == bool(items)
        entries = self.maps.get(self.key, {})
        found = list(self.map.iterator())
        assert len(found) == len(entries)
        assert dict(found) == entries
        assert list(self.map.keys()) == [key for key, _ in found]
        assert list(self.map.values()) == [value for _, value in found]
        assert self.map.exists() == bool(entries)

    def teardown(self) -> None:
        for position in range(len(KEYS)):
            self.to_key(position)
            self.states_of_the_current_key_are_the_models()
            self.value.clear()
            self.list.clear()
            self.map.clear()
        self.backend.apply(self.table.changes(), "cleared")
        left = list(self.backend.scan())
        self.backend.close()
        self.temporary.cleanup()
        assert left == [], "cleared states leave nothing behind"


class RocksDBStatesMachine(StatesMachine):
    backend_type = "rocksdb"


class HeapStatesMachine(StatesMachine):
    backend_type = "heap"


TestStatesOnRocksDB = RocksDBStatesMachine.TestCase
TestStatesOnRocksDB.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestStatesOnHeap = HeapStatesMachine.TestCase
TestStatesOnHeap.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
