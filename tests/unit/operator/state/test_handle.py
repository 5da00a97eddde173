"""The processor handle: states by name, with permanent ids, and clear refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, PlanError, StateUseError
from pyspark_ckpt.formats.handle import StateDescriptor, TtlDescriptor
from pyspark_ckpt.formats.modes import (
    ListRedistribution,
    TimeMode,
    TtlTime,
    TtlUpdate,
    TtlVisibility,
)
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.map import MapState
from pyspark_ckpt.operator.state.merging import AggregatingState, ReducingState
from pyspark_ckpt.operator.state.operator_states import BroadcastState, OperatorListState
from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.operator.table.catalog import schema_text
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.operator.time import EpochClock
from tests.unit.operator.subtask_epochs import NUMBER, TEXT, SubtaskEpochs

KEYS = [(b"\x00\x00", b"k")]
CLOCK = EpochClock(TimeMode.PROCESSING_TIME, 5_000, None)

MakeHandle = Callable[..., ProcessorHandle]

SPLIT, UNION = ListRedistribution.SPLIT, ListRedistribution.UNION
NEVER_RETURNED = TtlVisibility.NEVER_RETURN_EXPIRED


@pytest.fixture
def make_handle(make_table: Callable[..., StateTable]) -> MakeHandle:
    """Return a function that makes the handle of a new epoch, as ``init`` gets it."""

    def make(*stored: StateDescriptor, **schemas: T.StructType) -> ProcessorHandle:
        return ProcessorHandle(make_table(KEYS), CLOCK, "operator 'count'", stored, schemas)

    return make


def add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return (a[0] + b[0],)


def value_state(name: str, schema: T.StructType = NUMBER) -> StateDescriptor:
    return StateDescriptor(name, "value", schema.json())


def test_states_have_the_kind_that_was_asked_for(make_handle: MakeHandle) -> None:
    handle = make_handle()
    assert type(handle.getValueState("v", NUMBER)) is ValueState
    assert type(handle.getListState("l", NUMBER)) is ListState
    assert type(handle.getMapState("m", TEXT, NUMBER)) is MapState
    assert type(handle.getReducingState("r", NUMBER, add)) is ReducingState
    assert type(handle.getAggregatingState("a", NUMBER, None)) is AggregatingState
    assert type(handle.getOperatorListState("o", NUMBER)) is OperatorListState
    assert type(handle.getBroadcastState("b", TEXT, NUMBER)) is BroadcastState


@pytest.mark.parametrize("name", ["", "__quarantine", "__quarantine_rows", "__quarantine_mine"])
def test_a_name_that_is_empty_or_the_librarys_own_is_refused(
    make_handle: MakeHandle, name: str
) -> None:
    handle = make_handle(value_state("__quarantine"))
    with pytest.raises(StateUseError, match=r"operator 'count': the name of a state cannot be"):
        handle.getValueState(name, NUMBER)
    with pytest.raises(StateUseError, match=r"give '.*' another name"):
        handle.deleteIfExists(name)
    assert handle.descriptors == (value_state("__quarantine"),)


@pytest.mark.parametrize("names", [("n", "n"), ("n", "N"), ("a", "n", "N")])
def test_two_fields_of_one_name_are_refused(make_handle: MakeHandle, names: list[str]) -> None:
    schema = T.StructType([T.StructField(name, T.LongType()) for name in names])
    with pytest.raises(StateUseError, match=r"'count'.*state 'v' has the field 'n' twice"):
        make_handle().getValueState("v", schema)
    with pytest.raises(StateUseError, match="state 'm' has the field 'n' twice"):
        make_handle().getMapState("m", schema, NUMBER)


def test_new_states_are_described_in_the_order_they_are_asked_for(make_handle: MakeHandle) -> None:
    handle = make_handle()
    handle.getMapState("m", TEXT, NUMBER)
    handle.getValueState("v", TEXT)
    handle.getListState("l", NUMBER, 0)
    handle.getReducingState("r", NUMBER, add)
    handle.getAggregatingState("a", TEXT, None)
    handle.getOperatorListState("o", NUMBER)
    handle.getOperatorListState("u", NUMBER, redistribution="union")
    handle.getBroadcastState("b", TEXT, NUMBER)
    assert handle.descriptors == (
        StateDescriptor("m", "map", NUMBER.json(), TEXT.json()),
        StateDescriptor("v", "value", TEXT.json()),
        StateDescriptor("l", "list", NUMBER.json()),
        StateDescriptor("r", "reducing", NUMBER.json()),
        StateDescriptor("a", "aggregating", TEXT.json()),
        StateDescriptor(
            "o", "operator-list", NUMBER.json(), redistribution=ListRedistribution.SPLIT
        ),
        StateDescriptor(
            "u", "operator-list", NUMBER.json(), redistribution=ListRedistribution.UNION
        ),
        StateDescriptor("b", "broadcast", NUMBER.json(), TEXT.json()),
    )
    assert not handle.aging


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
    subtask_epochs: SubtaskEpochs,
) -> None:
    handle = subtask_epochs.begin()
    handle.getValueState("a", NUMBER).update((1,))
    handle.getListState("l", NUMBER).appendValue((2,))
    handle.getMapState("m", TEXT, NUMBER).updateValue(("x",), (3,))
    handle.getOperatorListState("o", NUMBER).appendValue((4,))
    handle.getReducingState("r", NUMBER, add).add((5,))
    subtask_epochs.end()
    again = subtask_epochs.begin()
    assert not again.getValueState("new", NUMBER).exists()
    assert list(again.getOperatorListState("o", NUMBER).get()) == [(4,)]
    assert again.getReducingState("r", NUMBER, add).get() == (5,)
    assert list(again.getMapState("m", TEXT, NUMBER).iterator()) == [(("x",), (3,))]
    assert list(again.getListState("l", NUMBER).get()) == [(2,)]
    assert again.getValueState("a", NUMBER).get() == (1,)


def test_the_greatest_number_of_states_and_no_more(make_handle: MakeHandle) -> None:
    handle = make_handle()
    states = [handle.getValueState(f"s{n}", NUMBER) for n in range(MAX_STATES)]
    for number, state in enumerate(states):
        state.update((number,))
    assert [state.get() for state in states] == [(n,) for n in range(MAX_STATES)]
    with pytest.raises(PlanError, match=r"operator 'count'.*255 states"):
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
        StateDescriptor("v", "reducing", NUMBER.json()),
        StateDescriptor(
            "v", "operator-list", NUMBER.json(), redistribution=ListRedistribution.SPLIT
        ),
        StateDescriptor("v", "value", T.StructType([T.StructField("n", T.StringType())]).json()),
        StateDescriptor("v", "value", T.StructType([T.StructField("n", T.DoubleType())]).json()),
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


def test_a_text_schema_is_the_one_parsed_on_the_driver(make_handle: MakeHandle) -> None:
    handle = make_handle(**{"n bigint": NUMBER, "s string": TEXT})
    handle.getMapState("m", "s string", "n bigint")
    assert handle.descriptors == (StateDescriptor("m", "map", NUMBER.json(), TEXT.json()),)


def test_a_text_schema_that_init_did_not_ask_for_on_the_driver_is_refused(
    make_handle: MakeHandle,
) -> None:
    with pytest.raises(PlanError, match=r"operator 'count'.*'n int'"):
        make_handle().getValueState("v", "n int")


def test_a_time_to_live_is_kept_with_the_state(make_handle: MakeHandle) -> None:
    handle = make_handle(value_state("old"))
    handle.getValueState("old", NUMBER, 1000)
    handle.getMapState("m", TEXT, NUMBER, StateTtlConfig(7, update="OnReadAndWrite"))
    plain = TtlDescriptor(
        1000, TtlTime.PROCESSING_TIME, TtlUpdate.ON_CREATE_AND_WRITE, NEVER_RETURNED, 5_000
    )
    renewing = TtlDescriptor(
        7, TtlTime.PROCESSING_TIME, TtlUpdate.ON_READ_AND_WRITE, NEVER_RETURNED, 5_000
    )
    assert [state.ttl for state in handle.descriptors] == [plain, renewing]
    assert [state.is_stamped for state in handle.descriptors] == [True, True]
    assert list(handle.aging) == [0, 1]
    assert not handle.ages_in_event_time


def test_event_time_to_live_without_a_watermark_is_refused(make_handle: MakeHandle) -> None:
    with pytest.raises(PlanError, match=r"operator 'count', list state 'l'.*withWatermark"):
        make_handle().getListState("l", NUMBER, StateTtlConfig(1, time="event"))


@pytest.mark.parametrize("ttl", [-1, 1.5, "1 hour"])
def test_a_time_to_live_that_is_no_duration_is_refused(make_handle: MakeHandle, ttl: int) -> None:
    with pytest.raises(PlanError, match="milliseconds"):
        make_handle().getValueState("v", NUMBER, ttl)


def test_an_unknown_redistribution_is_refused(make_handle: MakeHandle) -> None:
    with pytest.raises(PlanError, match=r"operator 'count'.*'o'.*'random'.*split, union"):
        make_handle().getOperatorListState("o", NUMBER, "random")


@pytest.mark.parametrize(
    "ask",
    [
        lambda handle: handle.getValueState("v", NUMBER),
        lambda handle: handle.getListState("v", NUMBER),
        lambda handle: handle.getMapState("v", TEXT, NUMBER),
        lambda handle: handle.getReducingState("v", NUMBER, add),
        lambda handle: handle.getAggregatingState("v", NUMBER, None),
        lambda handle: handle.getOperatorListState("v", NUMBER),
        lambda handle: handle.getBroadcastState("v", TEXT, NUMBER),
        lambda handle: handle.deleteIfExists("v"),
    ],
)
def test_states_are_asked_for_and_deleted_in_init_only(
    make_handle: MakeHandle, ask: Callable[[ProcessorHandle], object]
) -> None:
    handle = make_handle()
    handle.end_of_init()
    with pytest.raises(PlanError, match=r"operator 'count'.*'v'.*outside init") as raised:
        ask(handle)
    assert isinstance(raised.value, PySparkRuntimeError), "as PySpark's API raises it"
    assert handle.descriptors == ()


@pytest.mark.parametrize(
    ("ask", "use"),
    [
        (lambda handle: handle.getValueState("v", NUMBER), lambda state: state.exists()),
        (lambda handle: handle.getValueState("v", NUMBER), lambda state: state.update((1,))),
        (lambda handle: handle.getListState("v", NUMBER), lambda state: state.get()),
        (lambda handle: handle.getMapState("v", TEXT, NUMBER), lambda state: state.keys()),
        (lambda handle: handle.getReducingState("v", NUMBER, add), lambda state: state.get()),
        (lambda handle: handle.getAggregatingState("v", NUMBER, None), lambda state: state.get()),
        (lambda handle: handle.getOperatorListState("v", NUMBER), lambda state: state.clear()),
        (lambda handle: handle.getBroadcastState("v", TEXT, NUMBER), lambda state: state.exists()),
    ],
)
def test_a_state_is_not_used_after_it_was_deleted(
    make_handle: MakeHandle,
    ask: Callable[[ProcessorHandle], Any],
    use: Callable[[Any], object],
) -> None:
    handle = make_handle()
    state = ask(handle)
    handle.deleteIfExists("v")
    with pytest.raises(
        StateUseError, match=r"^Error \w+ing .*operator 'count'.*'v' was deleted"
    ) as raised:
        use(state)
    assert isinstance(raised.value, PySparkRuntimeError)


def test_a_deleted_state_and_a_new_one_of_its_name_share_nothing(
    subtask_epochs: SubtaskEpochs,
) -> None:
    handle = subtask_epochs.begin()
    handle.getMapState("s", TEXT, NUMBER).updateValue(("a",), (1,))
    handle.getValueState("kept", NUMBER).update((1,))
    subtask_epochs.end()
    handle = subtask_epochs.begin()
    handle.deleteIfExists("never there")
    handle.deleteIfExists("s")
    handle.deleteIfExists("s")
    state = handle.getValueState("s", TEXT)
    assert not state.exists()
    state.update(("new",))
    subtask_epochs.end()
    handle = subtask_epochs.begin()
    assert handle.getValueState("s", TEXT).get() == ("new",)
    assert handle.getValueState("kept", NUMBER).get() == (1,)
    subtask_epochs.end()
    assert len(subtask_epochs.entries()) == 2


def test_a_state_can_be_deleted_and_made_again_in_every_epoch(
    subtask_epochs: SubtaskEpochs,
) -> None:
    for number in range(10):
        handle = subtask_epochs.begin()
        handle.deleteIfExists("s")
        state = handle.getListState("s", NUMBER)
        assert not state.exists()
        state.appendValue((number,))
        subtask_epochs.end()
    assert len(subtask_epochs.states) <= 4, "places of deleted states are used again"
    assert list(subtask_epochs.begin().getListState("s", NUMBER).get()) == [(9,)]
