"""A user's migration: every entry once, with its time, whatever the kind of state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, ProcessorError, StateValueError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from tests.unit.operator.subtask_epochs import BOTH, KEYS, NUMBER, TEXT, SubtaskEpochs

FLAG = T.StructType([T.StructField("f", T.BooleanType())])


def in_words(row: Row) -> tuple[str]:
    return (f"n={row.n}",)


class States:
    """One state of each kind that a migration can be for, and a timer."""

    kinds = ("value", "list", "map", "operator-list", "broadcast")

    def __init__(
        self,
        handle: ProcessorHandle,
        prefix: str,
        value: T.StructType,
        map_key: T.StructType,
        ttl: int | None = None,
    ) -> None:
        self.value = handle.getValueState(f"{prefix}-value", value, ttl)
        self.list = handle.getListState(f"{prefix}-list", value, ttl)
        self.map = handle.getMapState(f"{prefix}-map", map_key, value, ttl)
        self.operator_list = handle.getOperatorListState(f"{prefix}-operator-list", value)
        self.broadcast = handle.getBroadcastState(f"{prefix}-broadcast", map_key, value)

    def read(self, epochs: SubtaskEpochs) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for position in range(len(KEYS)):
            epochs.to_key(position)
            content[f"value {position}"] = self.value.get()
            content[f"list {position}"] = list(self.list.get())
            content[f"map {position}"] = dict(self.map.iterator())
        content["operator-list"] = list(self.operator_list.get())
        content["broadcast"] = dict(self.broadcast.iterator())
        return content


def fill(epochs: SubtaskEpochs, ttl: int | None = None) -> None:
    for start in (0, 10):
        states = States(epochs.begin(), "old", NUMBER, TEXT, ttl)
        for position in range(len(KEYS)):
            epochs.to_key(position)
            states.value.update((start + position,))
            states.list.appendList([(start + position,), (None,)])
            states.map.updateValue((str(start),), (start + position,))
            epochs.handle.registerTimer(7)
        states.operator_list.appendValue((start,))
        epochs.leave_key()
        states.broadcast.updateValue((str(start),), (start,))
        epochs.end()


def expected(value: Callable[[Any], Any], key: Callable[[str], Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for position in range(len(KEYS)):
        numbers = [position, None, 10 + position, None]
        content[f"value {position}"] = (value(10 + position),)
        content[f"list {position}"] = [(value(number),) for number in numbers]
        content[f"map {position}"] = {
            (key(str(start)),): (value(start + position),) for start in (0, 10)
        }
    content["operator-list"] = [(value(0),), (value(10),)]
    content["broadcast"] = {(key(str(start)),): (value(start),) for start in (0, 10)}
    return content


def migrations(**arguments: Any) -> dict[str, Migration]:
    """The same for all kinds; keys only where there are some."""
    key = arguments.pop("key", None)
    rename = arguments.pop("rename", False)
    made = {}
    for kind in States.kinds:
        own = dict(arguments)
        if rename:
            own["renamed_from"] = f"old-{kind}"
        if key is not None and kind in ("map", "broadcast"):
            own["key"] = key
        if own:
            made[f"{'new' if rename else 'old'}-{kind}"] = Migration(**own)
    return made


CASES: list[tuple[str, dict[str, Any], T.StructType, T.StructType, Any, Any]] = [
    ("rename", {"rename": True}, NUMBER, TEXT, lambda n: n, lambda k: k),
    ("value", {"value": in_words}, TEXT, TEXT, lambda n: f"n={n}", lambda k: k),
    ("key", {"key": lambda row: (int(row.s),)}, NUMBER, NUMBER, lambda n: n, int),
    (
        "all",
        {"rename": True, "value": in_words, "key": lambda row: (row[0] == "0",)},
        TEXT, FLAG, lambda n: f"n={n}", lambda k: k == "0",
    ),
]  # fmt: skip


@pytest.mark.parametrize("ttl", [None, 10_000])
@pytest.mark.parametrize(
    ("arguments", "value_schema", "key_schema", "value", "key"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_every_entry_of_every_kind_is_migrated_once(
    subtask_epochs: SubtaskEpochs,
    arguments: dict[str, Any],
    value_schema: T.StructType,
    key_schema: T.StructType,
    value: Callable[[Any], Any],
    key: Callable[[str], Any],
    ttl: int | None,
) -> None:
    fill(subtask_epochs, ttl)
    before = subtask_epochs.entries()
    prefix = "new" if "rename" in arguments else "old"
    wanted = expected(value, key)

    def begin() -> States:
        handle = subtask_epochs.begin(migrations(**arguments))
        return States(handle, prefix, value_schema, key_schema, ttl)

    begin()
    subtask_epochs.drop()
    assert subtask_epochs.entries() == before, "a failed attempt has changed nothing"
    for _ in range(3):
        assert begin().read(subtask_epochs) == wanted
        changes = subtask_epochs.end()
    assert changes == [], "the third epoch neither migrates nor sweeps"
    assert begin().read(subtask_epochs) == wanted
    assert list(subtask_epochs.handle.listTimers()) == [7]
    assert len(subtask_epochs.entries()) == len(before)


def test_migrated_states_are_written_on(subtask_epochs: SubtaskEpochs) -> None:
    fill(subtask_epochs)
    for number in (20, 21):
        handle = subtask_epochs.begin(migrations(value=in_words))
        states = States(handle, "old", TEXT, TEXT)
        states.list.appendValue((f"{number}",))
        states.map.updateValue(("0",), (f"{number}",))
        states.value.update((f"{number}",))
        assert [text for (text,) in states.list.get()][4:] == ["20", "21"][: number - 19]
        subtask_epochs.end()
    states = States(subtask_epochs.begin(), "old", TEXT, TEXT)
    assert [text for (text,) in states.list.get()] == [
        "n=0", "n=None", "n=10", "n=None", "20", "21",
    ]  # fmt: skip
    assert states.value.get() == ("21",)
    assert states.map.getValue(("0",)) == ("21",)
    subtask_epochs.drop()


def test_entries_of_earlier_schemas_are_brought_to_the_stored_one_first(
    subtask_epochs: SubtaskEpochs,
) -> None:
    subtask_epochs.begin().getListState("l", NUMBER).appendValue((1,))
    subtask_epochs.end()
    subtask_epochs.begin().getListState("l", BOTH).appendValue((2, "x"))
    subtask_epochs.end()
    joined = Migration(value=lambda row: (f"{row.n} {row.s}", True))
    wanted = T.StructType([*TEXT.fields, *FLAG.fields])
    handle = subtask_epochs.begin({"l": joined})
    assert list(handle.getListState("l", wanted).get()) == [("1 None", True), ("2 x", True)]
    subtask_epochs.drop()


def test_migrated_entries_keep_their_time(subtask_epochs: SubtaskEpochs) -> None:
    for time_ms, name in ((1000, "a"), (1050, "b")):
        subtask_epochs.set_time(time_ms)
        subtask_epochs.begin().getMapState("m", TEXT, NUMBER, 100).updateValue((name,), (1,))
        subtask_epochs.end()
    subtask_epochs.set_time(1090)
    migration = {"m": Migration(value=in_words)}
    handle = subtask_epochs.begin(migration)
    assert sorted(handle.getMapState("m", TEXT, TEXT, 100).keys()) == [("a",), ("b",)]
    subtask_epochs.end()
    subtask_epochs.set_time(1100)
    handle = subtask_epochs.begin(migration)
    assert list(handle.getMapState("m", TEXT, TEXT, 100).keys()) == [("b",)]
    subtask_epochs.end()
    subtask_epochs.set_time(1150)
    handle = subtask_epochs.begin(migration)
    assert not handle.getMapState("m", TEXT, TEXT, 100).exists()
    subtask_epochs.drop()


def test_entries_without_a_time_age_from_when_it_was_switched_on_before_the_migration(
    subtask_epochs: SubtaskEpochs,
) -> None:
    subtask_epochs.set_time(500)
    subtask_epochs.begin().getValueState("v", NUMBER).update((1,))
    subtask_epochs.end()
    subtask_epochs.set_time(1000)
    subtask_epochs.begin().getValueState("v", NUMBER, 100)
    subtask_epochs.end()
    subtask_epochs.set_time(1050)
    migration = {"v": Migration(value=in_words)}
    assert subtask_epochs.begin(migration).getValueState("v", TEXT, 100).get() == ("n=1",)
    subtask_epochs.end()
    subtask_epochs.set_time(1100)
    assert not subtask_epochs.begin(migration).getValueState("v", TEXT, 100).exists()
    subtask_epochs.drop()


def test_data_that_is_as_asked_for_is_left_alone(subtask_epochs: SubtaskEpochs) -> None:
    subtask_epochs.begin().getValueState("v", NUMBER).update((1,))
    subtask_epochs.end()
    noted = T.StructType([T.StructField("n", T.LongType(), metadata={"comment": "a number"})])
    migration = {"v": Migration(value=lambda row: (row.n + 1,))}
    for wanted in (NUMBER, noted):
        assert subtask_epochs.begin(migration).getValueState("v", wanted).get() == (1,)
        assert subtask_epochs.end() == []


def test_data_under_the_new_name_is_not_renamed_again(subtask_epochs: SubtaskEpochs) -> None:
    migration = {"new": Migration(renamed_from="old", value=in_words)}
    assert not subtask_epochs.begin(migration).getValueState("new", TEXT).exists()
    subtask_epochs.handle.timers.register(1)
    subtask_epochs.end()
    subtask_epochs.begin(migration).getValueState("new", TEXT).update(("x",))
    subtask_epochs.end()
    assert subtask_epochs.begin(migration).getValueState("new", TEXT).get() == ("x",)
    subtask_epochs.drop()


def test_names_can_be_swapped(subtask_epochs: SubtaskEpochs) -> None:
    handle = subtask_epochs.begin()
    handle.getValueState("a", NUMBER).update((1,))
    handle.getValueState("b", TEXT).update(("x",))
    subtask_epochs.end()
    swap = {"a": Migration(renamed_from="b"), "b": Migration(renamed_from="a")}
    handle = subtask_epochs.begin(swap)
    assert handle.getValueState("b", NUMBER).get() == (1,)
    assert handle.getValueState("a", TEXT).get() == ("x",)
    subtask_epochs.drop()


def test_another_kind_is_refused(subtask_epochs: SubtaskEpochs) -> None:
    subtask_epochs.begin().getValueState("v", NUMBER).update((1,))
    subtask_epochs.end()
    handle = subtask_epochs.begin({"v": Migration(value=in_words)})
    with pytest.raises(IncompatibleStateError, match=r"operator 'u': state 'v'.*list state"):
        handle.getListState("v", TEXT)
    subtask_epochs.drop()


@pytest.mark.parametrize("kind", ["MapState", "BroadcastState"])
def test_two_map_keys_that_would_become_one_are_refused(
    subtask_epochs: SubtaskEpochs, kind: str
) -> None:
    """Of two entries at one place the first would be lost, also of different keys of the stream."""
    city = T.StructType([T.StructField("city", T.StringType())])

    def state(handle: ProcessorHandle, schema: T.StructType) -> Any:
        found = getattr(handle, f"get{kind}")("m", schema, NUMBER)
        if kind == "BroadcastState":
            subtask_epochs.leave_key()
        return found

    cities = state(subtask_epochs.begin(), TEXT)
    for number, name in enumerate(["Oslo", "Rome", "oslo"]):
        cities.updateValue((name,), (number,))
    subtask_epochs.end()
    lower = {"m": Migration(key=lambda row: (row.s.lower(),))}
    with pytest.raises(IncompatibleStateError, match=r"'m' gives two keys of a map the same new"):
        state(subtask_epochs.begin(lower), city)
    subtask_epochs.drop()
    swapped = {"m": Migration(key=lambda row: (row.s.swapcase(),))}
    found = dict(state(subtask_epochs.begin(swapped), city).iterator())
    assert found == {("oSLO",): (0,), ("rOME",): (1,), ("OSLO",): (2,)}
    subtask_epochs.drop()


@pytest.mark.parametrize("kind", States.kinds)
@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda row: 1 / 0, ProcessorError, "ZeroDivisionError: division by zero"),
        (lambda row: row.missing, ProcessorError, "AttributeError"),
        (lambda row: (1,), StateValueError, "does not fit"),
        (lambda row: None, StateValueError, "does not fit"),
    ],
)
def test_a_migration_that_fails_is_named_with_its_state(
    subtask_epochs: SubtaskEpochs,
    kind: str,
    function: Callable[[Row], Any],
    error: type[Exception],
    message: str,
) -> None:
    fill(subtask_epochs)
    name = f"old-{kind}"
    # Those of the other kinds work, and one of them may come first.
    handle = subtask_epochs.begin({**migrations(value=in_words), name: Migration(value=function)})
    with pytest.raises(error, match=rf"operator 'u', state '{name}'.*{message}"):
        States(handle, "old", TEXT, TEXT)
    subtask_epochs.drop()
