"""The times that timers get, one or many, in whatever form: that instant, or a refusal."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pyspark_ckpt.errors import StateValueError
from tests.unit.operator.subtask_epochs import SubtaskEpochs

LEAST, MOST = -(2**63), 2**63 - 1
KEYS = pa.table({"key_position": [0, 1, 1]})
TIMES = [5, LEAST, MOST]


@pytest.mark.parametrize("keys", [KEYS, pd.DataFrame(index=[0, 1, 1])], ids=["Arrow", "pandas"])
@pytest.mark.parametrize(
    "times",
    [
        TIMES,
        iter(TIMES),
        np.array(TIMES),
        np.array(TIMES, ">i8"),
        pd.Series(TIMES, index=[7, 7, 7]),
        pa.array(TIMES),
        pa.chunked_array([TIMES[:1], TIMES[1:]]),
        pa.array(TIMES, pa.decimal128(20)),
        [np.int64(5), float(LEAST), MOST],
    ],
    ids=lambda times: type(times).__name__,
)
def test_times_of_any_form(subtask_epochs: SubtaskEpochs, keys: Any, times: Any) -> None:
    if not isinstance(times, list) and iter(times) is times:
        times = iter(TIMES)  # of this test only
    handle = subtask_epochs.begin()
    handle.registerTimers(keys, times)
    found = []
    for position in range(2):
        subtask_epochs.to_key(position)
        found.append(list(handle.listTimers()))
    assert found == [[5], [LEAST, MOST]]


NOON_MS = 1_767_268_800_000
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)
ABROAD = NOON.astimezone(datetime.timezone(datetime.timedelta(hours=-5, minutes=-30)))


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        (5, 5),
        (LEAST, LEAST),
        (MOST, MOST),
        (np.int8(-5), -5),
        (np.uint64(5), 5),
        (np.array(5), 5),
        (np.array(NOON_MS, "M8[ms]"), NOON_MS),
        (5.0, 5),
        (np.float32(5), 5),
        (Decimal("5.0"), 5),
        (pa.scalar(5), 5),
        (pa.scalar(NOON_MS * 1000, pa.timestamp("us", "Asia/Tokyo")), NOON_MS),
        (NOON, NOON_MS),
        (ABROAD, NOON_MS),
        (pd.Timestamp(NOON), NOON_MS),
        (pd.Timestamp(ABROAD).as_unit("s"), NOON_MS),
        (datetime.datetime(1, 1, 1, tzinfo=datetime.timezone.utc), -62_135_596_800_000),
        *(
            (np.datetime64("2026-01-01T12", unit), NOON_MS)
            for unit in ("h", "m", "s", "ms", "us", "ns")
        ),
        *((np.datetime64("2026-01-01", unit), NOON_MS - 43_200_000) for unit in ("Y", "M", "D")),
        (np.datetime64("2026-01-01", "W"), NOON_MS - 43_200_000),  # a Thursday, as in 1970
        (np.datetime64("2024-02-29", "D"), 1_709_164_800_000),
        (np.datetime64("2024-03", "M"), 1_709_251_200_000),
        (np.datetime64("1600-03", "M"), -11_670_912_000_000),
        (np.datetime64("-0001", "Y"), -62_198_755_200_000),
        (np.datetime64(5, "25s"), 125_000),
        (np.datetime64(-3_000_000_000_000, "fs"), -3),
        (np.datetime64(3_000_000_000_000_000, "as"), 3),
    ],
    ids=repr,
)
def test_one_time_and_many_are_the_same_instant(
    subtask_epochs: SubtaskEpochs, given: Any, milliseconds: int
) -> None:
    handle = subtask_epochs.begin()
    handle.registerTimer(given)
    assert list(handle.listTimers()) == [milliseconds]
    handle.deleteTimer(given)
    assert list(handle.listTimers()) == []
    columns = [[given, 1, given]]
    if isinstance(given, np.generic):
        columns.append(np.array([given] * 3))
    if isinstance(given, pa.Scalar):
        columns.append(pa.array([given.as_py()] * 3, given.type))
    if isinstance(given, datetime.datetime) and given.year > 1:
        columns.append(pd.Series([given] * 3))
    for times in columns:
        handle.registerTimers(KEYS, times)
        for position in range(2):
            subtask_epochs.to_key(position)
            assert milliseconds in list(handle.listTimers())
        handle.deleteTimers(KEYS, times)
        subtask_epochs.to_key(0)
        assert list(handle.listTimers()) == []


def test_a_column_of_times_keeps_each(subtask_epochs: SubtaskEpochs) -> None:
    handle = subtask_epochs.begin()
    times = np.array([NOON_MS, -1, 10**15])
    for unit, per_ms in (("ms", 1), ("us", 1_000)):
        for column in (
            (times * per_ms).astype(f"M8[{unit}]"),
            pa.chunked_array([times * per_ms]).cast(pa.timestamp(unit, "Europe/Oslo")),
        ):
            handle.registerTimers(KEYS, column)
            found = []
            for position in range(2):
                subtask_epochs.to_key(position)
                found.append(list(handle.listTimers()))
            assert found == [[NOON_MS], [-1, 10**15]]
            handle.deleteTimers(KEYS, column)
            subtask_epochs.to_key(0)
            assert list(handle.listTimers()) == []


WRONG = [
    1.5,
    np.float32(0.25),
    Decimal("0.5"),
    math.nan,
    math.inf,
    None,
    pd.NaT,
    pd.NA,
    np.datetime64("NaT"),
    np.datetime64("NaT", "ns"),
    pa.scalar(None, pa.int64()),
    2**63,
    LEAST - 1,
    np.uint64(2**63),
    2.0**63,
    "5",
    b"12",
    bytearray(b"1"),
    True,
    np.True_,
    int,
    5j,
    [5],
    np.array([5]),
    np.ma.masked,
    np.timedelta64(5, "ms"),
    datetime.timedelta(1),
    datetime.date(2026, 1, 1),
    datetime.datetime(2026, 1, 1),  # noqa: DTZ001
    pd.Timestamp("2026-01-01"),
    pa.scalar(5, pa.timestamp("ms")),
    NOON.replace(microsecond=1),
    pd.Timestamp(NOON) + pd.Timedelta(1, "ns"),
    np.datetime64("2026-01-01T12:00:00.0000001"),
    np.datetime64(10**18, "Y"),
    np.datetime64(2**62, "s"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_what_is_no_time_is_refused(subtask_epochs: SubtaskEpochs, wrong: Any) -> None:
    handle = subtask_epochs.begin()
    handle.registerTimer(1)
    with pytest.raises(StateValueError) as raised:
        handle.registerTimer(wrong)
    assert f"operator 'u': registerTimer got the time {wrong!r}: " in str(raised.value)
    with pytest.raises(StateValueError) as raised:
        handle.registerTimers(KEYS, [5, wrong, 6])
    assert f"operator 'u': registerTimers got the time {wrong!r}: " in str(raised.value)
    with pytest.raises(StateValueError, match="deleteTimer got the time"):
        handle.deleteTimer(wrong)
    with pytest.raises(StateValueError, match="deleteTimers got the time"):
        handle.deleteTimers(KEYS, [wrong, 5, 6])
    assert list(handle.listTimers()) == [1]


@pytest.mark.parametrize("times", ["567", b"567", {5, 6, 7}, {5: 1, 6: 1, 7: 1}, 5, None])
def test_what_is_no_list_of_times_is_refused(subtask_epochs: SubtaskEpochs, times: Any) -> None:
    handle = subtask_epochs.begin()
    with pytest.raises(StateValueError, match="registerTimers got the times"):
        handle.registerTimers(KEYS, times)
    assert list(handle.listTimers()) == []


@pytest.mark.parametrize(
    "times",
    [
        pa.array([5, None, 6]),
        pa.array([5, 2**63, 6], pa.uint64()),
        np.ma.masked_less(np.array([5, -1, 6]), 0),
        pa.array([5.0, math.nan, 6.0]),
        np.array([5, "NaT", 6], "M8[ns]"),
        np.array([5, 6, 7], "M8[ns]"),
        np.array([5, 6, 7], "m8[ms]"),
        np.array([True, False, True]),
        pa.array([5, 6, 7], pa.timestamp("ms")),
        pa.array([5, 6, 7], pa.timestamp("ns", "UTC")),
        pa.array([5, None, 7], pa.timestamp("ms", "UTC")),
        pd.Series(pd.to_datetime(["2026-01-01", "2026-01-02", "2026-01-03"])),
    ],
    ids=[
        "null",
        "unsigned",
        "masked",
        "NaN",
        "NaT",
        "nanoseconds",
        "durations",
        "truth values",
        "no zone",
        "Arrow nanoseconds",
        "Arrow null",
        "pandas without zone",
    ],
)
def test_columns_with_what_is_no_time_are_refused(
    subtask_epochs: SubtaskEpochs, times: Any
) -> None:
    handle = subtask_epochs.begin()
    with pytest.raises(StateValueError, match="got the time"):
        handle.registerTimers(KEYS, times)


def test_a_table_of_times_is_refused(subtask_epochs: SubtaskEpochs) -> None:
    handle = subtask_epochs.begin()
    with pytest.raises(StateValueError, match="got 3 by 1 times for 3 keys"):
        handle.registerTimers(KEYS, np.array([[5], [6], [7]]))


@pytest.mark.parametrize("times", [[], [5, 6], np.array([5]), pa.array([5, 6, 7, 8])], ids=len)
def test_a_time_for_each_key(subtask_epochs: SubtaskEpochs, times: Any) -> None:
    handle = subtask_epochs.begin()
    with pytest.raises(StateValueError, match=f"got {len(times)} times for 3 keys"):
        handle.registerTimers(KEYS, times)
