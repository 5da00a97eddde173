"""Value, list and map state: PySpark's methods, one key at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.codec import TupleCodec
from pyspark_ckpt.operator.processor_handle import ProcessorHandle
from pyspark_ckpt.operator.state_table import StateTable
from pyspark_ckpt.operator.states import ListState, MapState, ValueState
from state_backends import StateBackend

KEYS = [(b"\x00\x01", b"a"), (b"\x00\x02", b"b")]
NUMBER = T.StructType([T.StructField("n", T.LongType())])


def codec(kind: T.DataType | None = None) -> TupleCodec:
    schema = NUMBER if kind is None else T.StructType([T.StructField("k", kind)])
    return TupleCodec(schema, "state 's'", is_key=kind is not None)


class Epochs:
    """Goes from epoch to epoch as a subtask does: the barrier's changes go into the backend."""

    def __init__(self, backend: StateBackend) -> None:
        self.backend = backend
        self.number = 0
        self.begin()

    def begin(self) -> None:
        self.table = StateTable(self.backend, KEYS)
        self.value = ValueState(self.table, b"\x00", codec())
        self.list = ListState(self.table, b"\x01", codec())
        self.map = MapState(self.table, b"\x02", codec(T.StringType()), codec())
        self.to_key(0)

    def to_key(self, position: int) -> None:
        self.table.current.key_group, self.table.current.key = KEYS[position]
        self.table.current.position = position

    def end(self) -> int:
        """End the epoch; returns how many entries it changed."""
        changes = self.table.changes()
        self.number += 1
        self.backend.apply([changes], str(self.number))
        self.begin()
        return len(changes)


@pytest.fixture
def epochs(backend: StateBackend) -> Epochs:
    return Epochs(backend)


@pytest.fixture(params=[False, True], ids=["same epoch", "next epoch"])
def later(request: pytest.FixtureRequest, epochs: Epochs) -> Callable[[], object]:
    """Does nothing, or ends the epoch: what a state says must not depend on it."""
    return epochs.end if request.param else lambda: None


def test_a_new_key_has_no_state(epochs: Epochs) -> None:
    assert not epochs.value.exists()
    assert epochs.value.get() is None
    assert not epochs.list.exists()
    assert list(epochs.list.get()) == []
    assert not epochs.map.exists()
    assert list(epochs.map.iterator()) == []
    assert epochs.map.getValue(("x",)) is None
    assert not epochs.map.containsKey(("x",))


def test_a_value_is_set_replaced_and_cleared(epochs: Epochs, later: Callable[[], object]) -> None:
    epochs.value.update((1,))
    later()
    assert epochs.value.exists()
    assert epochs.value.get() == (1,)
    epochs.value.update((2,))
    later()
    assert epochs.value.get() == (2,)
    epochs.value.clear()
    later()
    assert not epochs.value.exists()
    assert epochs.value.get() is None


def test_a_value_of_null_is_a_value(epochs: Epochs, later: Callable[[], object]) -> None:
    epochs.value.update((None,))
    later()
    assert epochs.value.exists()
    assert epochs.value.get() == (None,)


def test_keys_and_states_do_not_mix(epochs: Epochs, later: Callable[[], object]) -> None:
    epochs.value.update((1,))
    epochs.list.appendValue((2,))
    epochs.map.updateValue(("x",), (3,))
    later()
    epochs.to_key(1)
    assert not epochs.value.exists()
    assert not epochs.list.exists()
    assert not epochs.map.exists()
    epochs.value.clear()
    epochs.list.clear()
    epochs.map.clear()
    later()
    epochs.to_key(0)
    assert epochs.value.get() == (1,)
    assert list(epochs.list.get()) == [(2,)]
    assert list(epochs.map.iterator()) == [(("x",), (3,))]


def test_a_list_keeps_the_order_of_what_was_appended(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    epochs.list.appendValue((1,))
    later()
    epochs.list.appendList([(2,), (3,)])
    later()
    epochs.list.appendValue((1,))
    assert list(epochs.list.get()) == [(1,), (2,), (3,), (1,)]
    assert epochs.list.exists()


def test_a_list_of_many_epochs_keeps_its_order(epochs: Epochs) -> None:
    for number in range(300):  # more chunks than one byte counts
        epochs.list.appendValue((number,))
        epochs.end()
    assert [value for (value,) in epochs.list.get()] == list(range(300))


def test_appending_to_a_long_list_writes_only_what_is_new(epochs: Epochs) -> None:
    epochs.list.appendList([(number,) for number in range(10_000)])
    epochs.end()
    epochs.list.appendValue((1,))
    changes = epochs.table.changes()
    assert sum(len(value or b"") for value in changes.values) < 100


def test_put_replaces_a_list(epochs: Epochs, later: Callable[[], object]) -> None:
    epochs.list.appendList([(1,), (2,)])
    later()
    epochs.list.appendValue((3,))
    epochs.list.put([(4,)])
    assert list(epochs.list.get()) == [(4,)]
    later()
    assert list(epochs.list.get()) == [(4,)]
    epochs.list.appendValue((5,))
    later()
    assert list(epochs.list.get()) == [(4,), (5,)]


def test_a_cleared_list_leaves_no_entries_behind(epochs: Epochs) -> None:
    for number in range(3):
        epochs.list.appendValue((number,))
        epochs.end()
    epochs.list.appendValue((3,))
    epochs.list.clear()
    assert not epochs.list.exists()
    assert list(epochs.list.get()) == []
    epochs.end()
    assert list(epochs.backend.scan()) == []


def test_appending_nothing_makes_no_list(epochs: Epochs, later: Callable[[], object]) -> None:
    epochs.list.appendList([])
    epochs.list.put([])
    later()
    assert not epochs.list.exists()
    assert list(epochs.list.get()) == []


def test_a_refused_value_changes_nothing_of_a_list(epochs: Epochs) -> None:
    epochs.list.put([(1,)])
    wrong: Sequence[Any] = [(2,), ("text",)]
    for write in (epochs.list.appendList, epochs.list.put):
        with pytest.raises(StateValueError):
            write(list(wrong))
    assert list(epochs.list.get()) == [(1,)]


def test_a_list_can_be_appended_to_while_it_is_read(epochs: Epochs) -> None:
    epochs.list.appendList([(1,), (2,)])
    for (value,) in epochs.list.get():
        epochs.list.appendValue((value * 10,))
    assert list(epochs.list.get()) == [(1,), (2,), (10,), (20,)]


def test_map_entries_are_set_found_and_removed(epochs: Epochs, later: Callable[[], object]) -> None:
    for key, value in (("b", 1), ("a", 2), ("", 3)):
        epochs.map.updateValue((key,), (value,))
    later()
    assert epochs.map.exists()
    assert epochs.map.getValue(("a",)) == (2,)
    assert epochs.map.containsKey(("",))
    assert not epochs.map.containsKey(("c",))
    assert dict(epochs.map.iterator()) == {("b",): (1,), ("a",): (2,), ("",): (3,)}
    assert sorted(epochs.map.keys()) == [("",), ("a",), ("b",)]
    assert sorted(epochs.map.values()) == [(1,), (2,), (3,)]
    epochs.map.updateValue(("a",), (9,))
    epochs.map.removeKey(("b",))
    epochs.map.removeKey(("never there",))
    later()
    assert dict(epochs.map.iterator()) == {("a",): (9,), ("",): (3,)}


def test_a_map_exists_as_long_as_it_has_an_entry(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    epochs.map.updateValue(("a",), (1,))
    epochs.map.updateValue(("b",), (1,))
    later()
    epochs.map.removeKey(("a",))
    later()
    assert epochs.map.exists()
    epochs.map.removeKey(("b",))
    later()
    assert not epochs.map.exists()


def test_a_cleared_map_leaves_no_entries_behind(epochs: Epochs) -> None:
    epochs.map.updateValue(("a",), (1,))
    epochs.end()
    epochs.map.updateValue(("b",), (1,))
    epochs.map.clear()
    assert not epochs.map.exists()
    epochs.end()
    assert list(epochs.backend.scan()) == []


def test_entries_can_be_removed_while_a_map_is_read(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    for number in range(5):
        epochs.map.updateValue((str(number),), (number,))
    later()
    for key, (value,) in epochs.map.iterator():
        if value % 2:
            epochs.map.removeKey(key)
    assert sorted(epochs.map.values()) == [(0,), (2,), (4,)]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (T.DoubleType(), 1.0, 1),
        (T.FloatType(), 0.0, -0.0),
        (T.DecimalType(10, 2), Decimal("1.0"), Decimal("1.00")),
        (T.DecimalType(10, 2), Decimal("100"), Decimal("1E+2")),
    ],
)
def test_equal_user_keys_are_one_entry_however_they_are_written(
    epochs: Epochs, kind: T.DataType, one: object, other: object
) -> None:
    keys = T.StructType([T.StructField("k", kind)])
    state = ProcessorHandle(epochs.table, "operator", (), {}).getMapState("m", keys, NUMBER)
    state.updateValue((one,), (1,))
    try:
        state.updateValue((other,), (2,))
    except StateValueError:
        return  # to refuse the other spelling would do as well
    assert list(state.iterator()) == [((one,), (2,))]
