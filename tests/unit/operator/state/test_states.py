"""Value, list and map state: PySpark's methods, one key at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateError, StateValueError
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from tests.unit.operator.subtask_epochs import NUMBER, SPILLS_ALWAYS, TEXT, SubtaskEpochs

LONG_MS = 1_000_000_000
RENEWING = StateTtlConfig(
    LONG_MS, time="event", update="OnReadAndWrite", visibility="ReturnExpiredIfNotCleanedUp"
)
TTLS = [None, LONG_MS, RENEWING]


class Epochs:
    """One state of each kind, over several epochs."""

    def __init__(self, epochs: SubtaskEpochs, ttl: int | StateTtlConfig | None) -> None:
        self.subtask = epochs
        self.backend = epochs.backend
        self.ttl = ttl
        self.begin()

    def begin(self) -> None:
        handle = self.subtask.begin()
        self.value = handle.getValueState("v", NUMBER, self.ttl)
        self.list = handle.getListState("l", NUMBER, self.ttl)
        self.map = handle.getMapState("m", TEXT, NUMBER, self.ttl)

    def to_key(self, position: int) -> None:
        self.subtask.to_key(position)

    def end(self) -> int:
        """End the epoch and return how many bytes it wrote."""
        changes = self.subtask.end()
        self.begin()
        return sum(len(value or b"") for frame in changes for value in frame.values)


@pytest.fixture(params=TTLS, ids=["no ttl", "ttl", "renewing event ttl"])
def epochs(request: pytest.FixtureRequest, subtask_epochs: SubtaskEpochs) -> Epochs:
    return Epochs(subtask_epochs, request.param)


@pytest.fixture(params=[False, True], ids=["same epoch", "next epoch"])
def later(request: pytest.FixtureRequest, epochs: Epochs) -> Callable[[], object]:
    """Do nothing, or end the epoch: what a state returns must not depend on it."""
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
    is_plain = epochs.ttl is None and epochs.subtask.limit_bytes != SPILLS_ALWAYS
    length = 300 if is_plain else 20  # more chunks than one byte counts
    for number in range(length):
        epochs.list.appendValue((number,))
        epochs.end()
    assert [value for (value,) in epochs.list.get()] == list(range(length))


def test_appending_to_a_long_list_writes_only_what_is_new(epochs: Epochs) -> None:
    epochs.list.appendList([(number,) for number in range(10_000)])
    epochs.end()
    epochs.list.appendValue((1,))
    assert epochs.end() < 100


def test_a_list_that_grows_in_one_epoch_is_spilled_bit_by_bit(
    subtask_epochs: SubtaskEpochs,
) -> None:
    subtask_epochs.limit_bytes = 100_000
    state = subtask_epochs.begin().getListState("l", NUMBER)
    for number in range(20_000):
        state.appendValue((number,))
    assert [value for (value,) in state.get()] == list(range(20_000))
    largest = max(len(value or b"") for frame in subtask_epochs.end() for value in frame.values)
    assert largest < 100_000
    state = subtask_epochs.begin().getListState("l", NUMBER)
    assert [value for (value,) in state.get()] == list(range(20_000))


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


def test_an_iterator_of_one_key_continues_after_the_next_key_was_entered(epochs: Epochs) -> None:
    epochs.list.put([(1,)])
    epochs.to_key(1)
    epochs.list.put([(2,), (3,)])
    epochs.end()
    epochs.to_key(0)
    iterator = epochs.list.get()
    epochs.to_key(1)
    assert list(iterator) == [(1,)]
    assert list(epochs.list.get()) == [(2,), (3,)]


def test_a_list_that_is_put_again_and_again_is_one_entry(epochs: Epochs) -> None:
    for number in range(3):
        epochs.list.put([(number,)])
        epochs.list.put([(number,), (number,)])
        epochs.end()
    assert list(epochs.list.get()) == [(2,), (2,)]
    assert len(list(epochs.backend.scan())) == 2  # the list's own and its only chunk


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
    found = epochs.map.getValue(("a",))
    assert found == (2,)
    assert isinstance(found, Row)
    assert found.n == 2
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
    subtask_epochs: SubtaskEpochs, kind: T.DataType, one: object, other: object
) -> None:
    keys = T.StructType([T.StructField("k", kind)])
    state = subtask_epochs.begin().getMapState("m", keys, NUMBER)
    state.updateValue((one,), (1,))
    try:
        state.updateValue((other,), (2,))
    except StateValueError:
        return  # to refuse the other spelling would do as well
    assert list(state.iterator()) == [((one,), (2,))]


def test_values_go_through_a_spill_in_the_middle_of_an_epoch(epochs: Epochs) -> None:
    for position in range(3):
        epochs.to_key(position)
        for number in range(position, position + 3):
            epochs.value.update((number,))
            epochs.list.appendValue((number,))
            epochs.map.updateValue((str(number),), (number,))
    epochs.subtask.writes.spill()
    assert epochs.subtask.writes.is_spilled
    for position in range(3):
        epochs.to_key(position)
        numbers = [(number,) for number in range(position, position + 3)]
        assert epochs.value.get() == numbers[-1]
        assert list(epochs.list.get()) == numbers
        assert list(epochs.map.values()) == numbers
        epochs.list.appendList([(7,), (8,)])
        assert list(epochs.list.get()) == [*numbers, (7,), (8,)]
        epochs.map.removeKey((str(position),))
        assert list(epochs.map.values()) == numbers[1:]


def test_a_list_put_after_appends_is_just_what_was_put(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    for number in range(3):
        epochs.list.appendValue((number,))
        later()
    epochs.list.appendValue((3,))
    epochs.list.put([(4,), (5,)])
    epochs.list.put([(6,)])
    later()
    epochs.list.appendValue((7,))
    assert list(epochs.list.get()) == [(6,), (7,)]
    epochs.end()
    assert list(epochs.list.get()) == [(6,), (7,)]


def test_lists_of_several_keys_grow_side_by_side(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    for number in range(4):
        for position in range(4):
            epochs.to_key(position)
            epochs.list.appendValue((10 * position + number,))
        later()
    for position in range(4):
        epochs.to_key(position)
        assert [n for (n,) in epochs.list.get()] == [10 * position + n for n in range(4)]


def test_an_iterator_shows_the_list_as_it_was_when_it_was_first_asked(epochs: Epochs) -> None:
    epochs.list.put([(1,), (2,), (3,)])
    epochs.end()
    epochs.list.appendValue((4,))
    values = epochs.list.get()
    assert next(values) == (1,)
    epochs.list.appendValue((5,))
    epochs.subtask.writes.spill()
    epochs.list.appendValue((6,))
    assert list(values) == [(2,), (3,), (4,)]
    assert [n for (n,) in epochs.list.get()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("spilled", [False, True], ids=["in memory", "spilled"])
def test_an_iterator_shows_the_list_as_it_was_at_the_call(
    epochs: Epochs, later: Callable[[], object], *, spilled: bool
) -> None:
    for number in range(3):
        epochs.list.appendValue((number,))
        later()
    if spilled:
        epochs.subtask.writes.spill()
    epochs.list.appendValue((3,))
    values = epochs.list.get()
    epochs.list.appendValue((4,))
    epochs.subtask.writes.spill()
    epochs.list.appendValue((5,))
    assert list(values) == [(0,), (1,), (2,), (3,)]
    later()
    assert [n for (n,) in epochs.list.get()] == [0, 1, 2, 3, 4, 5]


def test_reading_on_in_a_cleared_list_writes_nothing(epochs: Epochs) -> None:
    for number in range(6):
        epochs.list.appendValue((number,))
        epochs.end()
    epochs.subtask.set_time(2_000_000)  # now a read renews what it shows
    epochs.begin()
    values = epochs.list.get()
    epochs.list.clear()
    assert list(values) == [(number,) for number in range(6)]
    assert not epochs.list.exists()
    epochs.end()
    assert list(epochs.list.get()) == []
    assert list(epochs.backend.scan()) == []


@pytest.mark.parametrize("spilled", [False, True], ids=["in memory", "spilled"])
def test_reading_on_in_a_changed_map_writes_nothing(epochs: Epochs, *, spilled: bool) -> None:
    for name in "abcd":
        epochs.map.updateValue((name,), (1,))
        epochs.end()
    epochs.subtask.set_time(2_000_000)  # now a read renews what it shows
    epochs.begin()
    entries = epochs.map.iterator()
    next(entries)
    epochs.map.clear()
    epochs.map.updateValue(("c",), (2,))
    if spilled:
        epochs.subtask.writes.spill()
    list(entries)
    assert list(epochs.map.iterator()) == [(("c",), (2,))]
    epochs.end()
    assert list(epochs.map.iterator()) == [(("c",), (2,))]


def test_an_iterator_shows_the_map_as_it_was_when_it_was_first_asked(epochs: Epochs) -> None:
    for name in "abc":
        epochs.map.updateValue((name,), (1,))
    entries = epochs.map.iterator()
    first = next(entries)
    epochs.map.updateValue(("d",), (1,))
    epochs.subtask.writes.spill()
    epochs.map.clear()
    assert sorted([first, *entries]) == [((name,), (1,)) for name in "abc"]
    assert not epochs.map.exists()


@pytest.mark.parametrize("use", [
    lambda epochs: epochs.value.get(),
    lambda epochs: epochs.value.update((1,)),
    lambda epochs: epochs.value.clear(),
    lambda epochs: epochs.list.exists(),
    lambda epochs: epochs.list.appendValue((1,)),
    lambda epochs: list(epochs.list.get()),
    lambda epochs: epochs.map.getValue(("a",)),
    lambda epochs: epochs.map.updateValue(("a",), (1,)),
    lambda epochs: list(epochs.map.keys()),
    lambda epochs: epochs.map.clear(),
])  # fmt: skip
def test_keyed_state_outside_a_key_is_refused(
    epochs: Epochs, use: Callable[[Epochs], object]
) -> None:
    epochs.subtask.leave_key()
    with pytest.raises(StateError, match="outside a key"):
        use(epochs)
    assert epochs.subtask.end() == []
