"""What one mode can do, all can: the same output and the same stored bytes in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_ckpt.errors import PlanError, ProcessorError, StateUseError, StateValueError
from pyspark_ckpt.operator.modes.mode import MODES
from pyspark_ckpt.operator.plan.operator import check_quarantines_keys
from pyspark_ckpt.operator.run import processing
from tests.processor_of_each_mode import PROCESSORS, Same
from tests.unit.operator.modes.mode_epochs import Subtask
from tests.unit.operator.run.logged_processor import Input
from tests.unit.operator.subtask_epochs import SubtaskEpochs

EVERY = pytest.mark.parametrize("name", MODES)
ALL_KEYS = pytest.mark.parametrize(
    "name", [name for name, mode in MODES.items() if not mode.has_key_calls]
)
PART_1: Input = [("a", 40), ("b", 41), (None, 40), ("c", 30), ("a", 50), ("c", 2000)]
PART_2: Input = [("ab", 7), ("ab", 30)]


def test_every_mode_has_a_processor() -> None:
    assert list(PROCESSORS) == list(MODES)


@pytest.fixture
def subtask(subtask_epochs: SubtaskEpochs, name: str) -> Subtask:
    return Subtask(subtask_epochs, MODES[name])


@pytest.fixture(scope="module")
def wanted() -> dict[Any, Any]:
    """What the first mode did in each test, which the others must do too."""
    return {}


Run = Callable[[Subtask, Callable[..., Same]], Iterator[Any]]


def rows_alone(subtask: Subtask, make: Callable[..., Same]) -> Iterator[Any]:
    yield subtask.run(make(), PART_1, PART_2)
    yield subtask.run(make(), PART_2)


def with_an_initial_state(subtask: Subtask, make: Callable[..., Same]) -> Iterator[Any]:
    yield subtask.run(make(), PART_1, initial=[("a", 1000), ("ab", 1)])


def with_broadcast_rows(subtask: Subtask, make: Callable[..., Same]) -> Iterator[Any]:
    yield subtask.run(make(), PART_1, offset=500)
    yield subtask.run(make(), PART_1, PART_2, offset=600)


def with_timers(subtask: Subtask, make: Callable[..., Same]) -> Iterator[Any]:
    yield subtask.run(make(sets_timers=True), PART_1, now_ms=45)
    yield subtask.run(make(sets_timers=True), PART_2, now_ms=45)
    yield subtask.run(make(sets_timers=True), now_ms=3000)
    yield subtask.run(make(sets_timers=True), now_ms=3000)
    yield subtask.run(make(sets_timers=True), now_ms=3000)


@pytest.mark.parametrize(
    "history", [rows_alone, with_an_initial_state, with_broadcast_rows, with_timers]
)
@EVERY
def test_output_and_state_are_the_same(
    subtask: Subtask, name: str, history: Run, wanted: dict[Any, Any]
) -> None:
    emitted = list(history(subtask, PROCESSORS[name]))
    assert any(emitted)
    found = emitted, subtask.epochs.entries()
    what = history.__name__, subtask.epochs.limit_bytes  # which divides lists otherwise
    assert found == wanted.setdefault(what, found)


@pytest.mark.parametrize("most", [1, 2])
@ALL_KEYS
def test_timers_in_several_calls(
    subtask: Subtask, name: str, most: int, wanted: dict[Any, Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(processing, "TIMERS_AT_ONCE", most)
    emitted = list(with_timers(subtask, PROCESSORS[name]))
    found = emitted, subtask.epochs.entries()
    assert found == wanted.setdefault((most, subtask.epochs.limit_bytes), found)


@EVERY
def test_an_error_says_where_it_was(subtask: Subtask, name: str) -> None:
    with pytest.raises(ProcessorError, match=rf"{MODES[name].method}.*a bad key"):
        subtask.run(PROCESSORS[name](bad="b"), PART_1)


@EVERY
def test_a_quarantine_needs_calls_for_one_key(name: str) -> None:
    mode = MODES[name]
    if mode.has_key_calls:
        check_quarantines_keys(mode, "operator 'u'")
    else:
        with pytest.raises(PlanError, match=f"{mode.method} gets all keys in one call"):
            check_quarantines_keys(mode, "operator 'u'")


class _InOneCall:
    """Calls a function in the call for all keys, and in the call for all timers."""

    def __init__(self, name: str, use: Callable[[Same, Any], object]) -> None:
        class Uses(PROCESSORS[name]):  # type: ignore[misc]
            def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> None:
                self.handle.registerTimers(keys, [40] * len(keys))
                use(self, keys)

            def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> None:
                self.handleInputBatch(keys, rows, timerValues)

            def handleExpiredTimers(self, keys: Any, timers: Any, timerValues: Any) -> None:
                use(self, keys)

        self.processor = Uses()


@ALL_KEYS
def test_after_a_loop_over_keys_none_is_current(subtask: Subtask, name: str) -> None:
    calls = []

    def use(self: Same, keys: Any) -> None:
        for row in self.handle.eachKey(keys):
            self.total.update((row,))
            if row == 2:
                break
        with pytest.raises(StateUseError, match=r"outside a key.*eachKey"):
            self.total.get()
        with pytest.raises(StateUseError, match="while keys were handled"):
            self.offsets.clear()
        calls.append(list(self.total.getMany(keys)["n"])[:3])
        assert [self.total.get() for _ in self.handle.eachKey(keys[:2])] == [(0,), (1,)]

    subtask.run(_InOneCall(name, use).processor, PART_1, now_ms=45)
    assert len(calls) == 2


@ALL_KEYS
def test_timers_of_many_keys_leave_the_current_key_as_it_is(subtask: Subtask, name: str) -> None:
    def use(self: Same, keys: Any) -> None:
        for row in self.handle.eachKey(keys):
            self.handle.registerTimers(keys, [45] * len(keys))
            self.handle.deleteTimers(keys, [45] * len(keys))
            self.total.update((row,))
            assert list(self.handle.listTimers()) in ([], [40])

    subtask.run(_InOneCall(name, use).processor, PART_1, now_ms=45)


@ALL_KEYS
def test_a_loop_over_keys_has_its_place(subtask: Subtask, name: str) -> None:
    kept: list[Iterator[int]] = []

    def use(self: Same, keys: Any) -> None:
        for old in kept:
            with pytest.raises(StateUseError, match="outside of the call"):
                next(old)
        for _ in self.handle.eachKey(keys):
            with pytest.raises(StateUseError, match="in another loop"):
                next(self.handle.eachKey(keys))
            self.total.update((1,))
        kept.append(self.handle.eachKey(keys))
        next(kept[-1])

    subtask.run(_InOneCall(name, use).processor, PART_1, now_ms=45)
    assert len(kept) == 2


@pytest.mark.parametrize("name", ["batches"])
def test_keys_that_were_numbered_anew_are_refused(subtask: Subtask, name: str) -> None:
    refused = []

    def use(self: Same, keys: Any) -> None:
        backwards = keys[::-1]
        self.total.getMany(backwards)
        with pytest.raises(StateValueError, match="so keep it") as error:
            self.total.getMany(backwards.reset_index(drop=True))
        refused.append(str(error.value))

    subtask.run(_InOneCall(name, use).processor, PART_1, now_ms=45)
    assert len(refused) == 2


@pytest.mark.parametrize("name", ["rows"])
def test_a_call_for_one_key_has_no_loop_over_keys(subtask: Subtask, name: str) -> None:
    class Loops(PROCESSORS[name]):  # type: ignore[misc]
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            next(self.handle.eachKey(None))

    with pytest.raises(StateUseError, match="eachKey was used outside"):
        subtask.run(Loops(), PART_1)


@ALL_KEYS
def test_without_the_method_each_timer_has_a_call(subtask: Subtask, name: str) -> None:
    fired: list[Any] = []

    class OneByOne(PROCESSORS[name]):  # type: ignore[misc]
        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> None:
            fired.append((key[0], expiredTimerInfo.getExpiryTimeInMs()))

    OneByOne.handleExpiredTimers = MODES[name].processor.handleExpiredTimers
    subtask.run(OneByOne(sets_timers=True), PART_1, now_ms=1000)
    assert fired == [("c", 30), ("a", 40), (None, 40), ("b", 41), ("a", 50)]
