"""The catalog: how a stored state changes to what a processor asks for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, PlanError
from pyspark_ckpt.formats.handle import StateDescriptor, TtlDescriptor
from pyspark_ckpt.formats.modes import TtlTime, TtlUpdate, TtlVisibility
from pyspark_ckpt.operator.table.catalog import FREE, StateCatalog, codec_of, evolved
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES
from pyspark_ckpt.testing.schema_text import parse_schema as schema_of_text
from pyspark_ckpt.values.codec import MAX_VERSION
from tests.unit.operator.subtask_epochs import NUMBER, TEXT, SubtaskEpochs


def schema(*fields: tuple[str, T.DataType]) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


def value_state(struct: T.StructType = NUMBER, **more: object) -> StateDescriptor:
    return msgspec.structs.replace(StateDescriptor("v", "value", struct.json()), **more)


ON_WRITE, NEVER_RETURNED = TtlUpdate.ON_CREATE_AND_WRITE, TtlVisibility.NEVER_RETURN_EXPIRED
INT = schema(("n", T.IntegerType()))
WIDE = schema(("n", T.LongType()), ("s", T.StringType()))


def test_a_state_that_is_asked_for_as_stored_stays_as_it_is() -> None:
    assert evolved(value_state(), value_state(), "operator") == value_state()


def test_metadata_of_fields_is_no_other_schema() -> None:
    noted = T.StructType([T.StructField("n", T.LongType(), metadata={"comment": "a number"})])
    stored = value_state(kind="map", map_key_schema=NUMBER.json())
    wanted = value_state(noted, kind="map", map_key_schema=noted.json())
    state = evolved(stored, wanted, "operator")
    assert state == wanted
    assert state.earlier_schemas == ()


def test_a_new_schema_keeps_the_old_ones_in_their_order() -> None:
    state = value_state(INT)
    for wanted in (NUMBER, WIDE, TEXT, TEXT, WIDE):
        state = evolved(state, value_state(wanted), "operator")
    assert state.earlier_schemas == (INT.json(), NUMBER.json(), WIDE.json(), TEXT.json())
    assert state.value_schema == WIDE.json()


def test_more_schemas_than_an_entry_can_name_are_refused() -> None:
    state = value_state(INT, earlier_schemas=(INT.json(),) * MAX_VERSION)
    assert evolved(state, value_state(INT), "operator") == state
    with pytest.raises(IncompatibleStateError, match=f"more than {MAX_VERSION} changes"):
        evolved(state, value_state(NUMBER), "operator")


def test_a_state_that_ever_had_a_time_to_live_stays_stamped() -> None:
    ttl = TtlDescriptor(5, TtlTime.PROCESSING_TIME, ON_WRITE, NEVER_RETURNED, 100)
    aged = value_state(ttl=ttl, is_stamped=True)
    off = evolved(aged, value_state(), "operator")
    assert (off.ttl, off.is_stamped) == (None, True)
    on = evolved(off, msgspec.structs.replace(aged, ttl=ttl), "operator")
    assert (on.ttl, on.is_stamped) == (ttl, True)


@pytest.mark.parametrize(
    ("stored_since", "time", "since"),
    [(100, "processing", 100), (None, "processing", 900), (100, "event", 900)],
)
def test_entries_without_a_stamp_count_from_the_first_switching_on(
    stored_since: int | None, time: str, since: int
) -> None:
    def ttl(duration: int, time: str, since_ms: int | None) -> TtlDescriptor:
        return TtlDescriptor(duration, TtlTime(time), ON_WRITE, NEVER_RETURNED, since_ms)

    stored = value_state(ttl=ttl(5, "processing", stored_since), is_stamped=True)
    wanted = value_state(ttl=ttl(7, time, 900), is_stamped=True)
    assert evolved(stored, wanted, "operator").ttl == ttl(7, time, since)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (value_state(), value_state(kind="list")),
        (value_state(kind="reducing"), value_state(kind="aggregating")),
        (value_state(kind="map", map_key_schema=INT.json()),
         value_state(kind="map", map_key_schema=NUMBER.json())),
        (value_state(NUMBER), value_state(INT)),
    ],
)  # fmt: skip
def test_what_cannot_be_reached_is_refused(
    stored: StateDescriptor, wanted: StateDescriptor
) -> None:
    with pytest.raises(IncompatibleStateError, match=r"operator 'u': state 'v'.*migration"):
        evolved(stored, wanted, "operator 'u'")


def test_entries_of_every_schema_in_the_history_are_read_as_the_newest() -> None:
    history = [INT, NUMBER, WIDE, schema(("s", T.StringType()), ("n", T.DoubleType()))]
    # long to double is not a widening: start the last step from what can reach it
    history[3] = schema(("s", T.StringType()), ("n", T.LongType()), ("new", T.DoubleType()))
    state = value_state(history[0])
    stored = [codec_of(state, "s").encode((1,))]
    values: list[tuple[object, ...]] = [(2,), (3, "x"), ("y", 4, 0.5)]
    for wanted, written in zip(history[1:], values, strict=True):
        state = evolved(state, value_state(wanted), "operator")
        stored.append(codec_of(state, "s").encode(written))
    codec = codec_of(state, "s")
    assert [codec.decode(data) for data in stored] == [
        (None, 1, None), (None, 2, None), ("x", 3, None), ("y", 4, 0.5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schemas", "found"),
    [
        (["n int, t string", "n int", "n int, t string"], (1, "x")),
        (["n int, t string", "n int", "t string, n bigint", "n bigint", "n bigint, t string"],
         (1, "x")),
        (["n int, t string", "n int", "n int, t binary"], (1, None)),
        (["n int, t string", "n int", "n int, t binary", "n int", "n int, t string"], (1, "x")),
        (["n int, t string", "t string", "t string, n double"], ("x", 1.0)),
        (["n bigint, t string", "t string", "t string, n int"], ("x", None)),
        (["n int, t string", "n int", "n int, t array<string>"], (1, None)),
    ],
)  # fmt: skip
def test_a_dropped_field_that_comes_back_keeps_its_stored_bytes(
    schemas: list[str], found: tuple[Any, ...]
) -> None:
    """Entries that were written without it have none."""
    first, *later = (schema_of_text(each) for each in schemas)
    state = value_state(first)
    stored = codec_of(state, "s").encode((1, "x"))
    between = codec_of(evolved(state, value_state(later[0]), "operator"), "s")
    rewritten = between.encode(between.decode(stored))
    for wanted in later:
        state = evolved(state, value_state(wanted), "operator")
    assert codec_of(state, "s").decode(stored) == found
    lost = {*first.names} - {*later[0].names}
    assert codec_of(state, "s").decode(rewritten) == tuple(
        None if name in lost else value for name, value in zip(later[-1].names, found, strict=True)
    )


@pytest.mark.parametrize(
    ("schemas", "value", "found"),
    [
        (["n int, s struct<x:int,y:int>", "n int, s struct<x:int>",
          "n int, s struct<x:int,y:bigint>"], (1, (2, 3)), (1, (2, 3))),
        (["n int, s struct<x:int,y:int>", "n int, s struct<x:int>",
          "n int, s struct<x:int,y:string>"], (1, (2, 3)), (1, (2, None))),
        (["n int, s struct<x:int,y:int>", "n int", "n int, s struct<y:bigint>"],
         (1, (2, 3)), (1, (3,))),
        (["a array<struct<x:int,y:int>>", "a array<struct<x:int>>",
          "a array<struct<y:int,x:int>>"], ([(2, 3)],), ([(3, 2)],)),
        (["m map<string,struct<x:int,y:int>>", "m map<string,struct<x:int>>",
          "m map<string,struct<x:int,y:int>>"], ({"k": (2, 3)},), ({"k": (2, 3)},)),
        (["n int, m map<string,int>", "n int", "n int, m map<int,int>"],
         (1, {"k": 2}), (1, None)),
    ],
)  # fmt: skip
def test_a_field_comes_back_at_any_depth(
    schemas: list[str], value: tuple[Any, ...], found: tuple[Any, ...]
) -> None:
    first, *later = (schema_of_text(each) for each in schemas)
    state = value_state(first)
    stored = codec_of(state, "s").encode(value)
    for wanted in later:
        state = evolved(state, value_state(wanted), "operator")
    assert codec_of(state, "s").decode(stored) == found
    assert codec_of(state, "s").plain.decode(stored) == found


def test_ids_are_permanent_and_freed_ones_are_used_again() -> None:
    free = StateDescriptor("", FREE, "", sweeps=0)
    deleted = value_state(name="deleted", sweeps=1)
    catalog = StateCatalog((value_state(name="a"), free, deleted), "operator 'u'")
    assert catalog.find("a") == 0
    assert catalog.find("deleted") is None
    assert catalog.find("") is None
    assert catalog.add(value_state(name="b")) == 1
    assert catalog.add(value_state(name="deleted")) == 3
    assert catalog.find("deleted") == 3
    catalog.delete(0)
    assert catalog.find("a") is None
    assert catalog.descriptor(0).sweeps == 0
    for number in range(4, MAX_STATES):
        assert catalog.add(value_state(name=f"s{number}")) == number
    with pytest.raises(PlanError, match=r"operator 'u'.*255"):
        catalog.add(value_state(name="one more"))


def test_lists_and_maps_follow_their_schema_from_epoch_to_epoch(
    subtask_epochs: SubtaskEpochs,
) -> None:
    for number, struct in enumerate([INT, NUMBER, WIDE, WIDE]):
        handle = subtask_epochs.begin()
        items = handle.getListState("l", struct, 1000)
        entries = handle.getMapState("m", TEXT, struct)
        broadcast = handle.getBroadcastState("b", TEXT, struct)
        value = (number, "x") if struct is WIDE else (number,)
        items.appendValue(value)
        entries.updateValue((str(number),), value)
        subtask_epochs.leave_key()
        broadcast.updateValue((str(number),), value)
        subtask_epochs.end()
    handle = subtask_epochs.begin()
    expected = [(0, None), (1, None), (2, "x"), (3, "x")]
    assert list(handle.getListState("l", WIDE, 1000).get()) == expected
    assert list(handle.getMapState("m", TEXT, WIDE).values()) == expected
    assert list(handle.getBroadcastState("b", TEXT, WIDE).values()) == expected
    subtask_epochs.drop()
