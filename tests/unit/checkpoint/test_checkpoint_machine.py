"""The machine of checkpoints: every transition, and random histories against a plain model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.machine import (
    TRANSITIONS,
    CheckpointEvent,
    CheckpointMachine,
    CheckpointState,
    Refusal,
    Subtask,
)
from pyspark_ckpt.settings import Settings
from tests.unit.checkpoint.still_clock import StillClock

A, B = Subtask("op", 0), Subtask("op", 1)
SUBTASKS = frozenset({A, B})
STRANGER = Subtask("other", 0)
HARMLESS = {
    AbortReason.NO_COMMITTED_EPOCH,
    AbortReason.QUERY_ENDED,
    AbortReason.SUBSUMED,
    AbortReason.FENCED,
}
ENDED = {CheckpointState.ABORTED, CheckpointState.SUBSUMED}


@pytest.fixture
def clock() -> StillClock:
    return StillClock(1000)


@pytest.fixture
def make(clock: StillClock) -> Callable[..., CheckpointMachine]:
    """Return a function that makes a machine that retains two, with some settings changed."""

    def make(
        last_id: int = 0, completed: dict[int, int | None] | None = None, **changed: Any
    ) -> CheckpointMachine:
        given = Settings(**{"num_retained": 2, "interval_ms": 100, "timeout_ms": 50, **changed})
        return CheckpointMachine(SUBTASKS, given, clock, last_id, completed)

    return make


def begin(machine: CheckpointMachine, epoch: int) -> int:
    begun = machine.trigger(epoch, periodic=False)
    assert isinstance(begun, int)
    return begun


def publish(machine: CheckpointMachine, number: int) -> None:
    assert machine.acknowledge(number, SUBTASKS) == []
    assert machine.publish(number)


def complete(machine: CheckpointMachine, epoch: int) -> int:
    number = begin(machine, epoch)
    publish(machine, number)
    assert machine.published(number)
    return number


def test_the_table_never_leaves_an_end_and_never_takes_a_metadata_for_failed() -> None:
    assert not [state for state, _ in TRANSITIONS if state in ENDED]
    aborted = [start for start, end in TRANSITIONS.items() if end is CheckpointState.ABORTED]
    assert aborted == [(CheckpointState.COLLECTING, CheckpointEvent.ABORT)]
    completed = [start for start, end in TRANSITIONS.items() if end is CheckpointState.COMPLETED]
    assert completed == [(CheckpointState.PUBLISHING, CheckpointEvent.PUBLISHED)]


def test_a_checkpoint_is_published_once_every_subtask_has_acknowledged(
    make: Callable[..., CheckpointMachine],
) -> None:
    machine = make()
    number = begin(machine, 7)
    assert not machine.publish(number)
    assert machine.acknowledge(number, [B, STRANGER]) == [A]
    assert not machine.publish(number)
    assert machine.acknowledge(number, [B, A]) == []
    assert machine.newest_completed() is None
    assert machine.publish(number)
    assert not machine.publish(number)
    assert machine.published(number)
    assert machine.newest_completed() == number == 1
    assert not machine.published(number)


def test_acknowledgements_of_another_checkpoint_or_of_a_stranger_change_nothing(
    make: Callable[..., CheckpointMachine],
) -> None:
    """Scenario 14: unexpected acknowledgements."""
    machine = make()
    number = begin(machine, 1)
    assert machine.acknowledge(number + 1, SUBTASKS) == []
    assert machine.acknowledge(number, [STRANGER]) == [A, B]
    assert not machine.publish(number + 1)
    assert not machine.publish(number)


def test_an_aborted_checkpoint_is_not_published_by_what_comes_late(
    make: Callable[..., CheckpointMachine],
) -> None:
    """Scenario 6: the steps continue after the abort."""
    machine = make()
    number = begin(machine, 1)
    machine.acknowledge(number, [A])
    assert machine.abort(number, AbortReason.CORRUPT_FILE)
    assert not machine.abort(number, AbortReason.EXPIRED)
    assert machine.acknowledge(number, [B]) == []
    assert not machine.publish(number)
    assert not machine.published(number)
    assert machine.state_of(number) is None
    assert machine.consecutive_failures == 1


def test_what_expires_while_it_is_published_is_uncertain_until_it_is_old(
    make: Callable[..., CheckpointMachine], clock: StillClock
) -> None:
    """Scenario 2: the same in the state machine."""
    machine = make(num_retained=1)
    first = begin(machine, 1)
    publish(machine, first)
    clock.now_ms += 49
    assert not machine.expire()
    assert machine.expires_in_ms() == 1
    clock.now_ms += 1
    assert machine.expire()
    assert machine.expires_in_ms() is None
    assert machine.state_of(first) is CheckpointState.UNCERTAIN
    assert not machine.published(first), "nobody hears of it twice"
    assert machine.newest_completed() is None
    assert complete(machine, 1) == first + 1
    assert machine.state_of(first) is None


def test_an_uncertain_one_stays_while_there_is_room(
    make: Callable[..., CheckpointMachine],
) -> None:
    machine = make(num_retained=2)
    uncertain = begin(machine, 1)
    publish(machine, uncertain)
    machine.abort(uncertain, AbortReason.METADATA_UNCERTAIN)
    assert machine.retained_from() == 0
    complete(machine, 2)
    assert machine.state_of(uncertain) is CheckpointState.UNCERTAIN
    assert machine.retained_from() == 0
    complete(machine, 3)
    assert machine.state_of(uncertain) is None
    assert machine.retained_from() == 2


def test_a_collecting_one_that_expires_is_gone(
    make: Callable[..., CheckpointMachine], clock: StillClock
) -> None:
    machine = make()
    number = begin(machine, 1)
    clock.now_ms += 50
    assert machine.expires_in_ms() == 0
    assert machine.expire()
    assert not machine.expire()
    assert machine.state_of(number) is None
    assert begin(machine, 1) == number + 1


def test_a_newer_checkpoint_subsumes_the_oldest(
    make: Callable[..., CheckpointMachine],
) -> None:
    """Scenario 25: what is beyond retention."""
    machine = make()
    one, two, three = (complete(machine, epoch) for epoch in range(3))
    assert machine.state_of(one) is None
    assert machine.ids(CheckpointState.COMPLETED) == [two, three]


def test_ids_continue_above_everything_that_was_ever_there(
    make: Callable[..., CheckpointMachine],
) -> None:
    machine = make(last_id=9, completed={4: 1, 7: 2})
    assert machine.newest_completed() == 7
    assert begin(machine, 3) == 10
    machine.abort(10, AbortReason.STORAGE_FAILED)
    machine.note_used_id(20)
    machine.note_used_id(15)
    assert begin(machine, 3) == 21
    assert make(last_id=0, completed={30: 5}).last_id == 30


def test_what_cannot_be_read_hides_no_epoch(make: Callable[..., CheckpointMachine]) -> None:
    machine = make(completed={1: 5, 2: None})
    assert complete(machine, 5) == 3
    assert machine.ids(CheckpointState.COMPLETED) == [2, 3]


def test_a_periodic_one_waits_for_interval_and_pause_a_manual_one_for_neither(
    make: Callable[..., CheckpointMachine], clock: StillClock
) -> None:
    """Scenario 6: slower than the interval, the pause is kept."""
    machine = make(interval_ms=100, min_pause_ms=80, timeout_ms=1000)
    assert machine.due_in_ms() == 100
    assert machine.trigger(1, periodic=True) is Refusal.TOO_EARLY
    clock.now_ms += 100
    assert machine.due_in_ms() == 0
    assert machine.trigger(1, periodic=True) == 1
    clock.now_ms += 70  # it takes that long
    publish(machine, 1)
    machine.published(1)
    assert machine.due_in_ms() == 80, "the pause ends after the interval"
    clock.now_ms += 79
    assert machine.trigger(2, periodic=True) is Refusal.TOO_EARLY
    assert complete(machine, 2) == 2
    assert machine.due_in_ms() == 80
    clock.now_ms += 80
    assert machine.trigger(3, periodic=True) == 3
    clock.now_ms += 70
    machine.abort(3, AbortReason.FAILED)
    assert machine.due_in_ms() == 80, "after a failure too"


def test_nothing_begins_without_a_new_epoch_or_after_the_end(
    make: Callable[..., CheckpointMachine], clock: StillClock
) -> None:
    """Scenario 25: shut down while one is under way."""
    machine = make()
    assert machine.trigger(None, periodic=False) is Refusal.NO_COMMITTED_EPOCH
    complete(machine, 3)
    assert machine.trigger(3, periodic=False) is Refusal.NO_NEW_EPOCH
    clock.now_ms += 100
    assert machine.trigger(3, periodic=True) is Refusal.NO_NEW_EPOCH
    assert machine.due_in_ms() == 100, "the interval begins anew"
    number = begin(machine, 4)
    machine.shut_down()
    assert (machine.pending(), machine.state_of(number)) == (None, None)
    assert machine.consecutive_failures == 0
    assert machine.trigger(5, periodic=False) is Refusal.QUERY_ENDED
    machine.shut_down()


def test_one_is_under_way_and_each_end_of_it_makes_room(
    make: Callable[..., CheckpointMachine], clock: StillClock
) -> None:
    """Scenario 25: through abort, completion, expiry and the end."""
    machine = make(tolerable_failed_checkpoints=1000)
    first = begin(machine, 1)
    with pytest.raises(AssertionError):
        machine.trigger(1, periodic=False)
    assert machine.abort(first, AbortReason.STORAGE_FAILED)
    second = begin(machine, 2)
    assert second == first + 1, "no id comes twice"
    publish(machine, second)
    assert machine.pending() == second, "while it is published too"
    assert machine.published(second)
    assert machine.pending() is None
    third = begin(machine, 3)
    clock.now_ms += 50
    assert machine.expire()
    last = begin(machine, 4)
    assert last == third + 1
    machine.shut_down()
    assert not machine.publish(last)
    assert machine.newest_completed() == second


@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_failures_in_a_row_are_tolerated_up_to_the_limit(
    make: Callable[..., CheckpointMachine], tolerable: int
) -> None:
    """Scenario 3: a success resets the count, and each checkpoint counts once."""
    machine = make(tolerable_failed_checkpoints=tolerable)
    for _ in range(2):
        for _ in range(tolerable):
            machine.abort(begin(machine, machine.last_id), AbortReason.EXPIRED)
            assert not machine.tolerance_is_exceeded
        complete(machine, machine.last_id)
    for reason in HARMLESS:
        machine.abort(begin(machine, machine.last_id), reason)
    assert not machine.tolerance_is_exceeded
    for _ in range(tolerable + 1):
        assert not machine.tolerance_is_exceeded
        machine.abort(begin(machine, machine.last_id), AbortReason.STORAGE_FAILED)
    assert machine.tolerance_is_exceeded


@pytest.mark.parametrize("reason", AbortReason)
def test_every_reason_counts_but_the_harmless_ones(reason: AbortReason) -> None:
    assert reason.counts == (reason not in HARMLESS)


class History(RuleBasedStateMachine):
    """Events in any order; the model maps each id to what is known of its checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = StillClock(1000)
        self.model: dict[int, dict[str, Any]] = {}
        self.completed_once: list[int] = []
        self.last_id = 0
        self.failures = 0
        self.disk: dict[int, int] = {}

    @initialize(retained=st.integers(1, 3), timeout=st.integers(1, 9))
    def start(self, retained: int, timeout: int) -> None:
        self.settings = Settings(
            num_retained=retained,
            timeout_ms=timeout,
            interval_ms=3,
            tolerable_failed_checkpoints=2,
        )
        self.machine = CheckpointMachine(SUBTASKS, self.settings, self.clock)

    def in_state(self, *states: str) -> list[int]:
        return sorted(n for n, found in self.model.items() if found["state"] in states)

    def give_up(self, number: int, *, counts: bool) -> None:
        found = self.model[number]
        found["state"] = "uncertain" if found["state"] == "publishing" else "aborted"
        self.failures += counts

    def an_id(self, data: st.DataObject) -> int:
        return data.draw(st.integers(1, self.last_id + 1))

    @rule(step=st.integers(0, 6))
    def time_passes(self, step: int) -> None:
        self.clock.now_ms += step
        expected = [
            n
            for n in self.in_state("collecting", "publishing")
            if self.model[n]["begun"] + self.settings.timeout_ms <= self.clock.now_ms
        ]
        for number in expected:
            self.give_up(number, counts=True)
        assert self.machine.expire() == bool(expected)

    @precondition(lambda self: not self.in_state("collecting", "publishing"))
    @rule(epoch=st.integers(0, 30), periodic=st.booleans())
    def trigger(self, epoch: int, periodic: bool) -> None:
        begun = self.machine.trigger(epoch, periodic=periodic)
        completed = self.in_state("completed")
        newest = self.model[completed[-1]]["epoch"] if completed else -1
        if not (periodic and begun is Refusal.TOO_EARLY):
            assert isinstance(begun, int) == (epoch > newest)
        if isinstance(begun, int):
            assert begun == self.last_id + 1
            self.last_id = begun
            self.model[begun] = {
                "state": "collecting", "epoch": epoch, "missing": set(SUBTASKS),
                "begun": self.clock.now_ms,
            }  # fmt: skip

    @rule(data=st.data(), subtask=st.sampled_from([A, B, STRANGER]))
    def acknowledge(self, data: st.DataObject, subtask: Subtask) -> None:
        number = self.an_id(data)
        found = self.model.get(number)
        missing = self.machine.acknowledge(number, [subtask])
        if found is None or found["state"] in ("aborted", "subsumed"):
            assert missing == []
        else:
            found["missing"].discard(subtask)
            assert missing == sorted(found["missing"])

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        number = self.an_id(data)
        found = self.model.get(number, {"state": "unknown"})
        may = found["state"] == "collecting" and not found["missing"]
        assert self.machine.publish(number) == may
        if may:
            found["state"] = "publishing"

    @rule(data=st.data())
    def acknowledge_all_and_publish(self, data: st.DataObject) -> None:
        collecting = self.in_state("collecting")
        if collecting:
            number = data.draw(st.sampled_from(collecting))
            assert self.machine.acknowledge(number, self.model[number]["missing"]) == []
            self.model[number].update(state="publishing", missing=set())
            assert self.machine.publish(number)

    @rule(data=st.data())
    def published(self, data: st.DataObject) -> None:
        number = self.an_id(data)
        found = self.model.get(number, {"state": "unknown"})
        is_completed = self.machine.published(number)
        assert is_completed == (found["state"] == "publishing")
        if not is_completed:
            return
        self.completed_once.append(number)
        self.failures = 0
        found["state"] = "completed"
        completed, room = self.in_state("completed"), self.settings.num_retained
        oldest = completed[-room] if len(completed) >= room else 0
        for older in self.in_state("completed", "uncertain"):
            if older < oldest:
                self.model[older]["state"] = "subsumed"

    @rule(data=st.data(), reason=st.sampled_from(AbortReason))
    def abort(self, data: st.DataObject, reason: AbortReason) -> None:
        number = self.an_id(data)
        under_way = number in self.in_state("collecting", "publishing")
        if under_way:
            self.give_up(number, counts=reason not in HARMLESS)
        assert self.machine.abort(number, reason) == under_way

    @precondition(lambda self: self.last_id)
    @rule(data=st.data())
    def crash_and_start_again(self, data: st.DataObject) -> None:
        """A checkpoint that is uncertain or being published may be on disk; others are not."""
        maybe = self.in_state("publishing", "uncertain")
        there = {n for n in maybe if data.draw(st.booleans())} | set(self.in_state("completed"))
        completed = {n: self.model[n]["epoch"] for n in there}
        self.model = {
            n: {**self.model[n], "state": "completed", "missing": set()} for n in completed
        }
        self.completed_once = []
        self.failures = 0
        self.machine = CheckpointMachine(
            SUBTASKS, self.settings, self.clock, self.last_id, dict(completed)
        )

    @invariant()
    def the_machine_is_where_the_model_is(self) -> None:
        if not hasattr(self, "machine"):
            return
        for number in range(1, self.last_id + 2):
            state = self.machine.state_of(number)
            wanted = self.model.get(number, {"state": None})["state"]
            known = None if wanted in ("aborted", "subsumed") else wanted
            assert (None if state is None else state.name.lower()) == known
        assert self.machine.last_id == self.last_id
        assert self.machine.consecutive_failures == self.failures
        assert self.machine.tolerance_is_exceeded == (self.failures > 2)
        under_way = self.in_state("collecting", "publishing")
        assert [self.machine.pending()] == (under_way or [None])
        assert self.completed_once == sorted(set(self.completed_once)), "in order, once each"


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
