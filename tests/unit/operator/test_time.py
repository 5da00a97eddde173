"""The clock of an epoch: the times that processors get, and the time that timers follow."""

from __future__ import annotations

import pytest

from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.time import DRAIN_TIME_MS, EpochClock


@pytest.mark.parametrize(
    ("mode", "watermark_ms", "times", "timers_now_ms"),
    [
        (TimeMode.NONE, None, (-1, -1), None),
        (TimeMode.NONE, 50, (-1, -1), None),
        (TimeMode.PROCESSING_TIME, None, (100, 0), 100),
        (TimeMode.PROCESSING_TIME, 0, (100, 0), 100),
        (TimeMode.EVENT_TIME, 0, (100, 0), 0),
        (TimeMode.EVENT_TIME, 50, (100, 50), 50),
    ],
)
def test_times_by_mode(
    mode: TimeMode, watermark_ms: int | None, times: tuple[int, int], timers_now_ms: int | None
) -> None:
    clock = EpochClock(mode, 100, watermark_ms)
    values = clock.timer_values
    assert (
        values.getCurrentProcessingTimeInMs(),
        values.getCurrentWatermarkInMs(),
    ) == times
    assert clock.timers_now_ms == timers_now_ms


@pytest.mark.parametrize("mode", TimeMode)
def test_while_draining_every_event_time_timer_is_due_and_no_state_ages(mode: TimeMode) -> None:
    clock = EpochClock(mode, 100, 50, drained_at_ms=70)
    assert clock.watermark_ms == 50
    times = clock.timer_values.getCurrentWatermarkInMs()
    assert times == (-1 if mode is TimeMode.NONE else DRAIN_TIME_MS)
    if mode is TimeMode.EVENT_TIME:
        assert clock.timers_now_ms == 2**63 - 1
        assert clock.earliest_timeout_ms == 70
    else:
        assert clock.timers_now_ms == EpochClock(mode, 100, 50).timers_now_ms


def test_modes_have_pysparks_names() -> None:
    assert [TimeMode(name) for name in ("None", "ProcessingTime", "EventTime")] == list(TimeMode)
