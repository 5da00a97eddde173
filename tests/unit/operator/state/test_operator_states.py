"""Operator state: lists, broadcast maps and raw state of a subtask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_ckpt.errors import StateError
from pyspark_ckpt.operator.state.operator_states import RAW_CHUNK_BYTES, RawState
from pyspark_ckpt.operator.table.stored_keys import OPERATOR_STATE, RAW_STATE, is_keyed
from tests.unit.operator.subtask_epochs import NUMBER, TEXT, SubtaskEpochs


class Epochs:
    """An operator list, a broadcast map, and keyed states next to them."""

    def __init__(self, epochs: SubtaskEpochs) -> None:
        self.subtask = epochs
        self.begin()

    def begin(self) -> None:
        handle = self.subtask.begin()
        self.keyed = handle.getListState("keyed", NUMBER, 1000)
        self.list = handle.getOperatorListState("l", NUMBER)
        self.other = handle.getOperatorListState("other", NUMBER, "union")
        self.map = handle.getBroadcastState("b", TEXT, NUMBER)
        self.subtask.leave_key()

    def end(self) -> None:
        self.subtask.end()
        self.begin()


@pytest.fixture
def epochs(subtask_epochs: SubtaskEpochs) -> Epochs:
    return Epochs(subtask_epochs)


@pytest.fixture(params=[False, True], ids=["same epoch", "next epoch"])
def later(request: pytest.FixtureRequest, epochs: Epochs) -> Callable[[], object]:
    return epochs.end if request.param else lambda: None


def test_new_operator_state_is_empty(epochs: Epochs) -> None:
    assert not epochs.list.exists()
    assert list(epochs.list.get()) == []
    assert not epochs.map.exists()
    assert epochs.map.getValue(("a",)) is None
    assert list(epochs.map.iterator()) == []


def test_an_operator_list_is_one_for_all_keys_and_outside_of_them(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    epochs.list.appendValue((1,))
    later()
    epochs.subtask.to_key(0)
    epochs.list.appendList([(2,), (3,)])
    epochs.subtask.to_key(1)
    assert list(epochs.list.get()) == [(1,), (2,), (3,)]
    assert epochs.list.exists()
    assert not epochs.keyed.exists()
    later()
    assert list(epochs.list.get()) == [(1,), (2,), (3,)]
    assert not epochs.other.exists()
    epochs.list.put([(9,)])
    later()
    assert list(epochs.list.get()) == [(9,)]
    epochs.list.clear()
    later()
    assert not epochs.list.exists()


def test_operator_state_lies_outside_the_key_groups(epochs: Epochs) -> None:
    epochs.list.appendValue((1,))
    epochs.map.updateValue(("a",), (1,))
    epochs.end()
    keys = list(epochs.subtask.entries())
    assert len(keys) == 3
    assert all(key.startswith(OPERATOR_STATE) for key in keys)
    assert not any(map(is_keyed, keys))


def test_a_cleared_operator_state_leaves_nothing_behind(epochs: Epochs) -> None:
    for number in range(3):
        epochs.list.appendValue((number,))
        epochs.map.updateValue((str(number),), (number,))
        epochs.end()
    epochs.list.clear()
    epochs.map.clear()
    epochs.end()
    assert epochs.subtask.entries() == {}


def test_a_broadcast_map_is_written_outside_keys_and_read_anywhere(
    epochs: Epochs, later: Callable[[], object]
) -> None:
    for name in ("b", "a", "c"):
        epochs.map.updateValue((name,), (ord(name),))
    epochs.map.removeKey(("c",))
    later()
    epochs.subtask.to_key(1)
    assert dict(epochs.map.iterator()) == {("a",): (97,), ("b",): (98,)}
    assert epochs.map.getValue(("a",)) == (97,)
    assert epochs.map.containsKey(("b",))
    assert not epochs.map.containsKey(("c",))
    assert epochs.map.exists()


@pytest.mark.parametrize("method", ["updateValue", "removeKey", "clear"])
def test_a_broadcast_map_is_not_written_while_a_key_is_handled(epochs: Epochs, method: str) -> None:
    epochs.map.updateValue(("a",), (1,))
    epochs.subtask.to_key(2)
    arguments: dict[str, tuple[Any, ...]] = {
        "updateValue": (("a",), (2,)), "removeKey": (("a",),), "clear": (),
    }  # fmt: skip
    with pytest.raises(StateError, match=rf"{method}.*handleBroadcastRows"):
        getattr(epochs.map, method)(*arguments[method])
    assert epochs.map.getValue(("a",)) == (1,)


class Keeper:
    """A processor with raw state: it writes given streams, and notes what it reads."""

    def __init__(self, write: bytes | None) -> None:
        self.write = write
        self.found: list[bytes] = []
        self.is_restored: bool | None = None
        self.epoch: int | None = None

    def snapshotState(self, context: Any) -> None:
        self.epoch = context.getEpoch()
        if self.write is not None:
            for start in range(0, len(self.write), 100_000):
                context.getRawOperatorStateOutput().write(self.write[start : start + 100_000])
            context.getRawOperatorStateOutput()

    def restoreState(self, context: Any) -> None:
        self.is_restored = context.isRestored()
        self.found = [stream.read() for stream in context.getRawOperatorStateInputs()]


def run(epochs: SubtaskEpochs, write: bytes | None) -> Keeper:
    keeper = Keeper(write)
    epochs.begin()
    epochs.leave_key()
    raw = RawState(epochs.table)
    raw.restore_into(keeper)
    raw.snapshot_of(keeper, epochs.number)
    epochs.end()
    return keeper


def test_raw_state_is_what_the_last_snapshot_wrote(subtask_epochs: SubtaskEpochs) -> None:
    long = bytes(range(256)) * (RAW_CHUNK_BYTES // 100)
    expected: list[bytes] = []
    for write in (None, b"first", None, long, b"short", b"", b"", long[:RAW_CHUNK_BYTES]):
        keeper = run(subtask_epochs, write)
        assert keeper.found == expected
        assert keeper.is_restored is bool(expected)
        assert keeper.epoch == subtask_epochs.number - 1
        expected = expected if write is None else [write]
    assert all(key.startswith(RAW_STATE) for key in subtask_epochs.entries())


def test_raw_state_that_stays_as_it_is_is_not_written_again(
    subtask_epochs: SubtaskEpochs,
) -> None:
    run(subtask_epochs, b"same")
    before = subtask_epochs.entries()
    keeper = Keeper(b"same")
    subtask_epochs.begin()
    RawState(subtask_epochs.table).snapshot_of(keeper, 7)
    assert subtask_epochs.end() == []
    assert subtask_epochs.entries() == before


def test_streams_of_several_subtasks_are_given_one_by_one(subtask_epochs: SubtaskEpochs) -> None:
    """A restore at another parallelism leaves several streams."""
    subtask_epochs.begin()
    for stream, number, chunk in [(0, 0, b"a"), (0, 1, b"b"), (1, 0, b"c"), (300, 0, b"d")]:
        key = RAW_STATE + stream.to_bytes(2, "big") + number.to_bytes(4, "big")
        subtask_epochs.table.write_below(RAW_STATE, key, chunk)
    subtask_epochs.end()
    assert run(subtask_epochs, b"one").found == [b"ab", b"c", b"d"]
    assert run(subtask_epochs, None).found == [b"one"]


def test_a_snapshot_may_close_its_stream(subtask_epochs: SubtaskEpochs) -> None:
    class Closing(Keeper):
        def snapshotState(self, context: Any) -> None:
            with context.getRawOperatorStateOutput() as stream:
                stream.write(b"closed")

    subtask_epochs.begin()
    RawState(subtask_epochs.table).snapshot_of(Closing(None), 1)
    subtask_epochs.end()
    assert run(subtask_epochs, None).found == [b"closed"]


def test_a_processor_without_raw_state_is_left_alone(subtask_epochs: SubtaskEpochs) -> None:
    subtask_epochs.begin()
    raw = RawState(subtask_epochs.table)
    raw.restore_into(object())
    raw.snapshot_of(object(), 1)
    assert subtask_epochs.end() == []
