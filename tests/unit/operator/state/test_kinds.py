"""The table of state kinds, and that entries lie as it says."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt
from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.kinds import Entries, Movement, StateKind, kind_of
from pyspark_ckpt.operator.table.stored_keys import is_keyed
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.time import EpochClock
from tests.unit.operator.subtask_epochs import NUMBER, TEXT

ASKED: dict[StateKind, Callable[[ProcessorHandle], Any]] = {
    StateKind.VALUE: lambda handle: handle.getValueState("s", NUMBER),
    StateKind.LIST: lambda handle: handle.getListState("s", NUMBER),
    StateKind.MAP: lambda handle: handle.getMapState("s", TEXT, NUMBER),
    StateKind.REDUCING: lambda handle: handle.getReducingState("s", NUMBER, lambda a, _: a),
    StateKind.AGGREGATING: lambda handle: handle.getAggregatingState("s", NUMBER, Last()),
    StateKind.OPERATOR_LIST: lambda handle: handle.getOperatorListState("s", NUMBER),
    StateKind.BROADCAST: lambda handle: handle.getBroadcastState("s", TEXT, NUMBER),
}


class Last(pyspark_ckpt.AggregateFunction):
    def create(self) -> tuple[int, ...]:
        return (0,)

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def getResult(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return b


def write_two(state: Any) -> Any:
    """Write two values and return what the state then holds."""
    if hasattr(state, "updateValue"):
        state.updateValue(("a",), (1,))
        state.updateValue(("b",), (2,))
        return {("a",): (1,), ("b",): (2,)}
    if hasattr(state, "appendValue"):
        state.appendValue((1,))
        state.appendValue((2,))
        return [(1,), (2,)]
    (state.update if hasattr(state, "update") else state.add)((2,))
    return (2,)


@pytest.mark.parametrize("kind", StateKind)
def test_entries_lie_as_the_table_says(
    make_table: Callable[..., StateTable], kind: StateKind
) -> None:
    table = make_table([(b"\x00\x00", b"k")])
    clock = EpochClock(TimeMode.PROCESSING_TIME, 5_000, None)
    handle = ProcessorHandle(table, clock, "operator 'count'", (), {})
    state = ASKED[kind](handle)
    assert type(state) is kind.state_class
    assert kind_of(handle.descriptors[0]) is kind
    is_of_key = kind.movement is Movement.WITH_KEY
    if is_of_key:
        table.enter(0)
    else:
        table.current.leave()
    content = write_two(state)
    assert kind.content_of(state) == content
    keys = [key for part in table.changes() for key in part.keys]
    assert {is_keyed(key) for key in keys} == {is_of_key}
    assert len(keys) == {Entries.ONE: 1, Entries.CHUNKS: 2, Entries.BY_MAP_KEY: 2}[kind.entries]


def test_a_kind_of_a_newer_version_is_refused() -> None:
    state = StateDescriptor("seen", "bloom-filter", NUMBER.json())
    with pytest.raises(IncompatibleStateError, match=r"'seen'.*'bloom-filter'.*upgrade"):
        kind_of(state)


def test_no_module_compares_the_kind_of_a_state_with_text() -> None:
    names = {kind.stored_name for kind in StateKind}
    found = [
        f"{path}:{node.lineno}"
        for path in Path(pyspark_ckpt.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr == "kind"
        and any(isinstance(e, ast.Constant) and e.value in names for e in ast.walk(node))
    ]
    assert not found
