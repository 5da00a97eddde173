"""Time to live: when entries expire, what renews them, and switching it on and off."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.formats.handle import TtlDescriptor
from pyspark_ckpt.formats.modes import TimeMode, TtlTime, TtlUpdate, TtlVisibility
from pyspark_ckpt.operator.table.table import CurrentKey
from pyspark_ckpt.operator.table.time_to_live import (
    StateTtlConfig,
    SwitchedOff,
    TimeToLive,
    without_stamp,
)
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.values.codec import TupleCodec
from tests.unit.operator.subtask_epochs import NUMBER, TEXT, SubtaskEpochs

Ttl = int | StateTtlConfig | None

EVENT = StateTtlConfig(100, time="event")
RENEWING = StateTtlConfig(100, update="OnReadAndWrite")
ENTRY = TupleCodec(NUMBER, "state").encode((1,))


def ages(
    now_ms: int,
    *,
    time: str = "processing",
    update: str = "OnCreateAndWrite",
    visibility: str = "NeverReturnExpired",
    since_ms: int | None = None,
    event_time_ms: int | None = None,
) -> TimeToLive:
    current = CurrentKey(b"\x00\x00", b"k", event_time_ms=event_time_ms)
    clock = EpochClock(TimeMode.NONE, now_ms, now_ms)
    ttl = TtlDescriptor(100, TtlTime(time), TtlUpdate(update), TtlVisibility(visibility), since_ms)
    return TimeToLive(ttl, clock, current, "s")


@pytest.mark.parametrize("time", ["processing", "event"])
def test_an_entry_expires_when_its_duration_is_over_and_not_before(time: str) -> None:
    entry = ages(1000, time=time).stamp() + ENTRY
    for now_ms, expired in [(0, False), (1000, False), (1099, False), (1100, True), (9999, True)]:
        later = ages(now_ms, time=time)
        assert later.is_expired(entry) is expired
        assert later.shown(entry) == (None if expired else ENTRY)


def test_expired_entries_are_shown_if_asked_for() -> None:
    entry = ages(1000).stamp() + ENTRY
    lenient = ages(5000, visibility="ReturnExpiredIfNotCleanedUp")
    assert lenient.is_expired(entry)
    assert lenient.shown(entry) == ENTRY


@pytest.mark.parametrize(
    ("watermark_ms", "event_time_ms", "written_ms"),
    [(500, None, 500), (500, 800, 800), (500, 300, 500), (0, 7, 7)],
)
def test_event_time_of_an_entry_is_that_of_the_newest_row_or_the_watermark(
    watermark_ms: int, event_time_ms: int | None, written_ms: int
) -> None:
    entry = ages(watermark_ms, time="event", event_time_ms=event_time_ms).stamp() + ENTRY
    assert not ages(written_ms + 99, time="event").is_expired(entry)
    assert ages(written_ms + 100, time="event").is_expired(entry)


def test_entries_without_a_stamp_age_from_when_the_time_to_live_was_switched_on() -> None:
    assert not ages(10**12).is_expired(ENTRY)
    assert not ages(1099, since_ms=1000).is_expired(ENTRY)
    assert ages(1100, since_ms=1000).is_expired(ENTRY)


def test_a_stamp_in_the_other_time_counts_for_nothing() -> None:
    entry = ages(10, time="event").stamp() + ENTRY
    assert not ages(1099, since_ms=1000).is_expired(entry)
    assert ages(1100, since_ms=1000).is_expired(entry)
    assert ages(1000, since_ms=1000).shown(entry) == ENTRY


def test_reading_renews_only_if_asked_for_and_only_what_is_older() -> None:
    entry = ages(1000).stamp() + ENTRY
    assert ages(1050).renewed(entry) is None
    renewing = ages(1050, update="OnReadAndWrite")
    renewed = renewing.renewed(entry)
    assert renewed == renewing.stamp() + ENTRY
    assert renewing.renewed(renewed) is None
    assert renewing.renewed(ENTRY) == renewed


@pytest.mark.parametrize("time", ["processing", "event"])
def test_reading_never_makes_an_entry_older(time: str) -> None:
    entry = ages(1000, time=time).stamp() + ENTRY
    assert ages(900, time=time, update="OnReadAndWrite").renewed(entry) is None


def test_switched_off_strips_stamps_and_writes_none() -> None:
    off = SwitchedOff()
    stamped = ages(1000).stamp() + ENTRY
    assert off.shown(stamped) == off.shown(ENTRY) == without_stamp(stamped) == ENTRY
    assert off.stamp() == b""
    assert off.renewed(stamped) is None


def test_event_time_needs_a_watermark() -> None:
    clock = EpochClock(TimeMode.EVENT_TIME, 5, None)
    ttl = TtlDescriptor(
        1, TtlTime.EVENT_TIME, TtlUpdate.ON_CREATE_AND_WRITE, TtlVisibility.NEVER_RETURN_EXPIRED
    )
    with pytest.raises(PlanError, match=r"state 's'.*withWatermark"):
        TimeToLive(ttl, clock, CurrentKey(), "state 's'")


NO_DURATIONS = [
    -1, 1.0, "5", b"5", True, np.True_, math.nan, [5], pd.NaT, np.timedelta64("NaT"),
    np.timedelta64(1, "M"), datetime.timedelta(microseconds=1), datetime.timedelta(-1),
    pd.Timedelta(1, "ns"),
]  # fmt: skip


@pytest.mark.parametrize("duration", [0, None, datetime.timedelta(0), *NO_DURATIONS])
def test_a_duration_is_a_whole_number_above_zero(duration: Any) -> None:
    with pytest.raises(PlanError, match="milliseconds"):
        StateTtlConfig(duration)


@pytest.mark.parametrize("duration", [*NO_DURATIONS, False, 0.0, "", datetime.timedelta(0)])
def test_what_is_no_duration_is_refused_where_a_state_is_asked_for(
    subtask_epochs: SubtaskEpochs, duration: Any
) -> None:
    handle = subtask_epochs.begin()
    with pytest.raises(PlanError, match="milliseconds"):
        handle.getValueState("v", NUMBER, duration)


@pytest.mark.parametrize(
    "duration",
    [
        60_000,
        np.int32(60_000),
        datetime.timedelta(minutes=1),
        np.timedelta64(1, "m"),
        np.timedelta64(60_000_000_000, "ns"),
        pd.Timedelta("1min"),
    ],
    ids=repr,
)
def test_a_duration_in_other_forms(subtask_epochs: SubtaskEpochs, duration: Any) -> None:
    config = StateTtlConfig(duration)
    assert type(config.duration_ms) is int
    assert config == StateTtlConfig(60_000)
    for ttl in (duration, config):
        handle = subtask_epochs.begin()
        handle.getValueState("v", NUMBER, ttl).update((1,))
        subtask_epochs.end()
        assert [state.ttl.duration_ms for state in subtask_epochs.states if state.ttl] == [60_000]


@pytest.mark.parametrize("zero", [None, 0, np.int64(0)])
def test_zero_is_no_time_to_live(subtask_epochs: SubtaskEpochs, zero: Any) -> None:
    subtask_epochs.begin().getValueState("v", NUMBER, zero)
    subtask_epochs.end()
    assert [(state.ttl, state.is_stamped) for state in subtask_epochs.states] == [(None, False)]


@pytest.mark.parametrize("name", ["time", "update", "visibility"])
def test_other_values_of_the_config_are_refused_with_those_allowed(name: str) -> None:
    with pytest.raises(PlanError, match=rf"{name} of StateTtlConfig is 'sometimes': allowed is"):
        StateTtlConfig(1, **{name: "sometimes"})
    assert StateTtlConfig(1, update=TtlUpdate.ON_READ_AND_WRITE).update == "OnReadAndWrite"


class Aged:
    """The three kinds of state with a time to live, at the first key."""

    def __init__(self, epochs: SubtaskEpochs) -> None:
        self.epochs = epochs

    def at(self, time_ms: int, ttl: Ttl, event_time_ms: int | None = None) -> None:
        self.epochs.set_time(time_ms)
        handle = self.epochs.begin()
        self.value = handle.getValueState("v", NUMBER, ttl)
        self.list = handle.getListState("l", NUMBER, ttl)
        self.map = handle.getMapState("m", TEXT, NUMBER, ttl)
        self.epochs.to_key(0, event_time_ms)

    def write(self, number: int) -> None:
        self.value.update((number,))
        self.list.appendValue((number,))
        self.map.updateValue((str(number),), (number,))

    def end(self) -> None:
        self.epochs.end()

    def check(self, value: int | None, items: list[int], entries: list[int]) -> None:
        assert self.value.exists() == (value is not None)
        assert self.value.get() == (None if value is None else (value,))
        assert self.list.exists() == bool(items)
        assert list(self.list.get()) == [(number,) for number in items]
        assert self.map.exists() == bool(entries)
        assert list(self.map.iterator()) == [((str(n),), (n,)) for n in entries]
        for number in range(1, 4):
            assert self.map.containsKey((str(number),)) == (number in entries)
            assert self.map.getValue((str(number),)) == ((number,) if number in entries else None)


@pytest.fixture
def aged(subtask_epochs: SubtaskEpochs) -> Aged:
    return Aged(subtask_epochs)


@pytest.mark.parametrize("ttl", [100, EVENT], ids=["processing", "event"])
def test_each_entry_lives_by_its_own_write(aged: Aged, ttl: Ttl) -> None:
    aged.at(1000, ttl)
    aged.write(1)
    aged.end()
    aged.at(1050, ttl)
    aged.write(2)
    aged.check(2, [1, 2], [1, 2])
    aged.end()
    aged.at(1099, ttl)
    aged.check(2, [1, 2], [1, 2])
    aged.end()
    aged.at(1100, ttl)
    aged.check(2, [2], [2])
    aged.write(3)
    aged.check(3, [2, 3], [2, 3])
    aged.end()
    aged.at(1150, ttl)
    aged.check(3, [3], [3])
    aged.end()
    aged.at(1200, ttl)
    aged.check(None, [], [])
    aged.end()
    assert aged.epochs.entries() == {}, "expired entries are removed"


@pytest.mark.parametrize("ttl", [100, EVENT], ids=["processing", "event"])
def test_nothing_expires_in_the_epoch_that_wrote_it(aged: Aged, ttl: Ttl) -> None:
    ttl = StateTtlConfig(1, time="event" if ttl is EVENT else "processing")
    aged.at(1000, ttl)
    aged.write(1)
    aged.epochs.writes.spill()
    aged.check(1, [1], [1])
    aged.end()
    aged.at(1001, ttl)
    aged.check(None, [], [])
    aged.epochs.drop()


def test_reading_keeps_entries_alive_if_asked_for(aged: Aged) -> None:
    aged.at(1000, RENEWING)
    aged.write(1)
    aged.end()
    for time_ms in (1090, 1180, 1270):
        aged.at(time_ms, RENEWING)
        aged.check(1, [1], [1])
        aged.end()
    aged.at(1369, RENEWING)  # asking whether it exists is not a read
    assert aged.value.exists()
    assert aged.list.exists()
    assert aged.map.exists()
    assert aged.map.containsKey(("1",))
    aged.end()
    aged.at(1370, RENEWING)
    aged.check(None, [], [])
    aged.epochs.drop()


@pytest.mark.parametrize("read", [
    lambda aged: aged.map.getValue(("1",)),
    lambda aged: list(aged.map.keys()),
    lambda aged: list(aged.map.values()),
])  # fmt: skip
def test_every_way_of_reading_an_entry_renews_it(
    aged: Aged, read: Callable[[Aged], object]
) -> None:
    aged.at(1000, RENEWING)
    aged.write(1)
    aged.end()
    aged.at(1099, RENEWING)
    read(aged)
    aged.end()
    aged.at(1198, RENEWING)
    assert aged.map.getValue(("1",)) == (1,)
    assert aged.value.get() is None
    aged.epochs.drop()


def test_an_expired_entry_that_was_not_removed_is_shown_once_if_asked_for(aged: Aged) -> None:
    lenient = StateTtlConfig(100, visibility="ReturnExpiredIfNotCleanedUp")
    aged.at(1000, lenient)
    aged.write(1)
    aged.end()
    aged.at(5000, lenient)
    for _ in range(2):  # a look changes nothing
        assert aged.value.exists()
        assert aged.list.exists()
        assert aged.map.exists()
        assert aged.map.containsKey(("1",))
    assert aged.value.get() == (1,)
    assert list(aged.list.get()) == [(1,)]
    assert list(aged.map.iterator()) == [(("1",), (1,))]
    aged.check(None, [], [])
    aged.epochs.drop()
    aged.at(5000, lenient)  # nobody has read them, but the sweep came
    aged.end()
    aged.at(5001, lenient)
    aged.check(None, [], [])
    aged.epochs.drop()


@pytest.mark.parametrize("visibility", list(TtlVisibility))
def test_a_list_of_which_some_is_expired_loses_that_as_it_is_read(
    aged: Aged, visibility: TtlVisibility
) -> None:
    config = StateTtlConfig(100, update="OnReadAndWrite", visibility=visibility)
    is_returned = visibility is not TtlVisibility.NEVER_RETURN_EXPIRED
    for time_ms, number in ((1000, 1), (1050, 2)):
        aged.at(time_ms, config)
        aged.list.appendValue((number,))
        aged.end()
    aged.at(1100, config)
    assert list(aged.list.get()) == ([(1,)] if is_returned else []) + [(2,)]
    assert list(aged.list.get()) == [(2,)]
    aged.end()
    aged.at(1199, config)
    assert aged.list.exists()
    aged.list.appendValue((3,))
    aged.end()
    aged.at(1201, config)
    assert list(aged.list.get()) == ([(2,)] if is_returned else []) + [(3,)]
    aged.end()
    assert len(aged.epochs.entries()) == 2


def test_a_list_that_was_read_to_its_expired_end_is_gone_when_the_clock_jumps_back(
    aged: Aged,
) -> None:
    aged.at(1000, 100)
    aged.list.appendValue((1,))
    aged.end()
    aged.at(5000, 100)
    assert list(aged.list.get()) == []
    aged.end()
    aged.at(1000, 100)
    assert not aged.list.exists()
    aged.list.appendValue((2,))
    aged.end()
    aged.at(1000, 100)
    assert list(aged.list.get()) == [(2,)]
    aged.end()
    assert len(aged.epochs.entries()) == 2


@pytest.mark.parametrize(("duration_ms", "alive"), [(50, False), (1000, True)])
def test_another_duration_counts_for_what_is_stored(
    aged: Aged, duration_ms: int, alive: bool
) -> None:
    aged.at(1000, 100)
    aged.write(1)
    aged.end()
    aged.at(1060 if duration_ms < 100 else 1099, duration_ms)
    aged.check(*((1, [1], [1]) if alive else (None, [], [])))
    aged.end()
    aged.at(1999, duration_ms)
    aged.check(*((1, [1], [1]) if alive else (None, [], [])))
    aged.epochs.drop()


def test_switched_on_entries_without_a_time_count_from_then(aged: Aged) -> None:
    aged.at(1000, None)
    aged.write(1)
    aged.end()
    for time_ms in (5000, 5040):
        aged.at(time_ms, 100)
        aged.check(1, [1], [1])
        aged.end()
    aged.at(5050, 100)
    aged.write(2)
    aged.end()
    aged.at(5100, 100)
    aged.check(2, [2], [2])
    aged.end()
    assert len(aged.epochs.entries()) == 4


def test_switched_off_nothing_expires_any_more(aged: Aged) -> None:
    aged.at(1000, 100)
    aged.write(1)
    aged.end()
    aged.at(1050, None)
    aged.write(2)
    aged.end()
    aged.at(10**9, None)
    aged.check(2, [1, 2], [1, 2])
    aged.end()
    aged.at(10**9 + 1, 100)  # and on again: a stamp is one whenever it was written
    aged.check(2, [2], [2])
    aged.end()
    aged.at(10**9 + 101, 100)
    aged.check(None, [], [])
    aged.epochs.drop()


def test_from_processing_to_event_time_entries_count_from_the_change(aged: Aged) -> None:
    aged.at(1000, 100)
    aged.write(1)
    aged.end()
    aged.at(5000, EVENT)
    aged.check(1, [1], [1])
    aged.end()
    aged.at(5099, EVENT)
    aged.check(1, [1], [1])
    aged.end()
    aged.at(5100, EVENT)
    aged.check(None, [], [])
    aged.epochs.drop()


def test_an_older_row_makes_no_part_of_a_list_older(aged: Aged) -> None:
    aged.at(100, EVENT, event_time_ms=1000)
    aged.list.appendValue((1,))
    aged.end()
    aged.at(200, EVENT, event_time_ms=500)
    aged.list.appendValue((2,))
    aged.end()
    aged.at(650, EVENT)
    assert list(aged.list.get()) == [(1,)]
    assert aged.list.exists()
    aged.end()
    aged.at(700, EVENT, event_time_ms=700)
    aged.list.appendValue((3,))
    aged.end()
    aged.at(750, EVENT)
    assert list(aged.list.get()) == [(1,), (3,)]
    aged.end()
    aged.at(1100, EVENT)
    assert not aged.list.exists()
    aged.end()
    assert aged.epochs.entries() == {}


def test_values_appended_together_live_as_long_as_the_youngest(aged: Aged) -> None:
    aged.at(100, EVENT, event_time_ms=1000)
    aged.list.appendValue((1,))
    aged.epochs.to_key(0)  # a timer: no rows, no event time
    aged.list.appendValue((2,))
    aged.end()
    aged.at(1099, EVENT)
    assert aged.list.exists()
    assert (1,) in list(aged.list.get())
    aged.epochs.drop()


def test_put_and_clear_forget_earlier_times(aged: Aged) -> None:
    aged.at(1000, EVENT, event_time_ms=2000)
    aged.write(1)
    aged.end()
    aged.at(1000, EVENT, event_time_ms=1000)
    aged.list.put([(2,)])
    aged.end()
    aged.at(1100, EVENT)
    assert not aged.list.exists()
    assert list(aged.list.get()) == []
    aged.epochs.drop()


def test_what_is_written_before_the_first_watermark_counts_from_that_one(
    subtask_epochs: SubtaskEpochs,
) -> None:
    """So it is with an initial state, whose rows have no event time."""
    config = StateTtlConfig(10, time="event")

    def at(watermark_ms: int) -> Any:
        subtask_epochs.clock = EpochClock(TimeMode.EVENT_TIME, 1, watermark_ms)
        return subtask_epochs.begin().getValueState("v", NUMBER, config)

    at(0).update((1,))
    subtask_epochs.end()
    for watermark_ms, expected in [(1_000_000, (1,)), (1_000_009, (1,)), (1_000_010, None)]:
        assert at(watermark_ms).get() == expected
        subtask_epochs.end()


def test_entries_expire_by_the_wall_clock_wherever_it_jumps(aged: Aged) -> None:
    """Scenario 29: after a jump back they live longer, after a jump forward they are gone."""
    hour_ms, start_ms = 3_600_000, 10_000_000
    aged.at(start_ms, 100)
    aged.write(1)
    aged.end()
    aged.at(start_ms - hour_ms, 100)
    aged.check(1, [1], [1])
    aged.write(2)  # it counts from this time
    aged.check(2, [1, 2], [1, 2])
    aged.end()
    aged.at(start_ms - hour_ms + 100, 100)
    aged.check(None, [1], [1])
    aged.end()
    aged.at(start_ms + 99, 100)
    aged.check(None, [1], [1])
    aged.end()
    aged.at(start_ms + hour_ms, 100)
    aged.check(None, [], [])
    aged.end()
