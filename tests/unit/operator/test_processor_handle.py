"""The processor handle: states by name, with ids for good, and clear refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, NotBuiltYetError, PlanError
from pyspark_ckpt.on_disk.handle import StateDescriptor
from pyspark_ckpt.operator.processor_handle import ProcessorHandle, check_unchanged, schema_text
from pyspark_ckpt.operator.state_table import MAX_STATES, StateTable
from pyspark_ckpt.operator.states import ListState, MapState, ValueState
from state_backends import StateBackend

NUMBER = T.StructType([T.StructField("n", T.LongType())])
TEXT = T.StructType([T.StructField("s", T.StringType())])
KEYS = [(b"\x00\x00", b"k")]

MakeHandle = Callable[..., ProcessorHandle]


@pytest.fixture
def make_handle(make_table: Callable[..., StateTable]) -> MakeHandle:
    """Makes the handle of a new epoch, as it is given to ``init``."""

    def make(*stored: StateDescriptor, **schemas: T.StructType) -> ProcessorHandle:
        return ProcessorHandle(make_table(KEYS), "operator 'count'", stored, schemas)

    return make


def value_state(name: str, schema: T.StructType = NUMBER) -> StateDescriptor:
    return StateDescriptor(name, "value", schema.json())


def test_states_have_the_kind_that_was_asked_for(make_handle: MakeHandle) -> None:
    handle = make_handle()
    assert type(handle.getValueState("v", NUMBER)) is ValueState
    assert type(handle.getListState("l", NUMBER)) is ListState
    assert type(handle.getMapState("m", TEXT, NUMBER)) is MapState


def test_new_states_are_described_in_the_order_they_are_asked_for(make_handle: MakeHandle) -> None:
    handle = make_handle()
    handle.getMapState("m", TEXT, NUMBER)
    handle.getValueState("v", TEXT)
    handle.getListState("l", NUMBER)
    assert handle.descriptors == (
        StateDescriptor("m", "map", NUMBER.json(), TEXT.json()),
        StateDescriptor("v", "value", TEXT.json()),
        StateDescriptor("l", "list", NUMBER.json()),
    )


def test_stored_states_keep_their_place_in_whatever_order_they_are_asked_for(
    make_handle: MakeHandle,
) -> None:
    stored = (value_state("a"), value_state("b"), value_state("unused"))
    handle = make_handle(*stored)
    handle.getValueState("new", NUMBER)
    handle.getValueState("b", NUMBER)
    handle.getValueState("a", NUMBER)
    assert handle.descriptors == (*stored, value_state("new"))


def test_a_state_finds_its_values_again_when_init_asks_in_another_order(
    backend: StateBackend,
) -> None:
    table = StateTable(backend, KEYS)
    table.current.key_group, table.current.key = KEYS[0]
    handle = ProcessorHandle(table, "operator", (), {})
    handle.getValueState("a", NUMBER).update((1,))
    handle.getListState("l", NUMBER).appendValue((2,))
    handle.getMapState("m", TEXT, NUMBER).updateValue(("x",), (3,))
    backend.apply(table.changes(), "1")

    table = StateTable(backend, KEYS)
    table.current.key_group, table.current.key = KEYS[0]
    again = ProcessorHandle(table, "operator", handle.descriptors, {})
    assert not again.getValueState("new", NUMBER).exists()
    assert list(again.getMapState("m", TEXT, NUMBER).iterator()) == [(("x",), (3,))]
    assert list(again.getListState("l", NUMBER).get()) == [(2,)]
    assert again.getValueState("a", NUMBER).get() == (1,)


def test_the_greatest_number_of_states_and_no_more(make_handle: MakeHandle) -> None:
    handle = make_handle()
    states = [handle.getValueState(f"s{n}", NUMBER) for n in range(MAX_STATES + 1)]
    for number, state in enumerate(states):
        state.update((number,))
    assert [state.get() for state in states] == [(n,) for n in range(MAX_STATES + 1)]
    with pytest.raises(PlanError, match=r"operator 'count'.*256 states"):
        handle.getValueState("one more", NUMBER)


def test_a_name_can_be_asked_for_once(make_handle: MakeHandle) -> None:
    handle = make_handle(value_state("v"))
    handle.getValueState("v", NUMBER)
    for ask in (
        lambda: handle.getValueState("v", NUMBER),
        lambda: handle.getListState("v", NUMBER),
        lambda: handle.getMapState("v", TEXT, NUMBER),
    ):
        with pytest.raises(PlanError, match=r"operator 'count'.*'v' twice"):
            ask()


@pytest.mark.parametrize(
    "stored",
    [
        StateDescriptor("v", "list", NUMBER.json()),
        StateDescriptor("v", "map", NUMBER.json(), TEXT.json()),
        StateDescriptor("v", "value", TEXT.json()),
        StateDescriptor("v", "value", T.StructType([T.StructField("m", T.LongType())]).json()),
        StateDescriptor("v", "value", T.StructType([T.StructField("n", T.IntegerType())]).json()),
    ],
)
def test_another_kind_or_schema_than_stored_is_refused_with_both(
    make_handle: MakeHandle, stored: StateDescriptor
) -> None:
    handle = make_handle(stored)
    with pytest.raises(IncompatibleStateError) as raised:
        handle.getValueState("v", NUMBER)
    message = str(raised.value)
    assert "operator 'count': state 'v'" in message
    assert f"{stored.kind} state of" in message
    assert schema_text(stored.value_schema) in message
    assert "value state of struct<n:bigint>" in message


def test_a_map_with_other_user_keys_than_stored_is_refused(make_handle: MakeHandle) -> None:
    handle = make_handle(StateDescriptor("m", "map", NUMBER.json(), TEXT.json()))
    with pytest.raises(IncompatibleStateError, match=r"struct<s:string>.*struct<n:bigint>"):
        handle.getMapState("m", NUMBER, NUMBER)


def test_an_unchanged_state_passes() -> None:
    check_unchanged(value_state("v"), value_state("v"), "operator")


def test_a_text_schema_is_the_one_parsed_on_the_driver(make_handle: MakeHandle) -> None:
    handle = make_handle(**{"n bigint": NUMBER, "s string": TEXT})
    handle.getMapState("m", "s string", "n bigint")
    assert handle.descriptors == (StateDescriptor("m", "map", NUMBER.json(), TEXT.json()),)


def test_a_text_schema_that_init_did_not_ask_for_on_the_driver_is_refused(
    make_handle: MakeHandle,
) -> None:
    with pytest.raises(PlanError, match=r"operator 'count'.*'n int'"):
        make_handle().getValueState("v", "n int")


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda handle: handle.getValueState("v", NUMBER, 1000), "TTL"),
        (lambda handle: handle.getListState("v", NUMBER, ttlDurationMs=1000), "TTL"),
        (lambda handle: handle.getMapState("v", TEXT, NUMBER, 1000), "TTL"),
        (lambda handle: handle.registerTimer(1), "registerTimer"),
        (lambda handle: handle.deleteTimer(1), "deleteTimer"),
        (lambda handle: handle.listTimers(), "listTimers"),
        (lambda handle: handle.deleteIfExists("v"), "deleteIfExists"),
    ],
)
def test_what_is_not_built_is_named_and_leaves_no_state(
    make_handle: MakeHandle, ask: Callable[[ProcessorHandle], object], what: str
) -> None:
    handle = make_handle()
    with pytest.raises(NotBuiltYetError, match=rf"operator 'count'.*{what}"):
        ask(handle)
    assert handle.descriptors == ()
