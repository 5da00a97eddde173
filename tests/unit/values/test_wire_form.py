"""The converters that all encodings share."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_ckpt.values.plain import aware_timestamp, aware_timestamps

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_FLOATS_END = 2**32 * 1_000_000
_YEAR_1, _YEAR_9999 = (
    (datetime.datetime(year, 6, 1, tzinfo=datetime.timezone.utc) - _EPOCH)
    // datetime.timedelta(microseconds=1)
    for year in (1, 9999)
)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
@given(microseconds=st.integers(_YEAR_1, _YEAR_9999) | st.integers(-_FLOATS_END, _FLOATS_END))
@example(microseconds=-1)
@example(microseconds=_FLOATS_END - 1)
@example(microseconds=1 - _FLOATS_END)
@example(microseconds=_FLOATS_END)
@example(microseconds=1_699_163_999_999_999)  # New York's clock has this hour twice
@example(microseconds=1_699_167_599_999_999)
def test_a_timestamp_is_exact_to_the_microsecond(zone: str, microseconds: int) -> None:
    shown = aware_timestamp(ZoneInfo(zone), microseconds)
    assert (shown - _EPOCH) // datetime.timedelta(microseconds=1) == microseconds
    expected = (_EPOCH + datetime.timedelta(microseconds=microseconds)).astimezone(ZoneInfo(zone))
    assert (shown.replace(tzinfo=None), shown.fold) == (
        expected.replace(tzinfo=None),
        expected.fold,
    )


_SOME_MICROSECONDS = st.integers(1 - _FLOATS_END, _FLOATS_END - 1)
_ANY_MICROSECONDS = st.none() | st.integers(_YEAR_1, _YEAR_9999)


@given(column=st.lists(_SOME_MICROSECONDS) | st.lists(_ANY_MICROSECONDS))
@example(column=[1_699_163_999_999_999, 1_699_167_599_999_999])
@example(column=[0, -_FLOATS_END])
@example(column=[0, _FLOATS_END - 1, None])
def test_a_column_of_timestamps_is_as_each_of_them(column: list[int | None]) -> None:
    zone = ZoneInfo("America/New_York")
    each = [None if value is None else aware_timestamp(zone, value) for value in column]
    shown = aware_timestamps(zone, column)
    assert shown == each
    assert [getattr(one, "fold", None) for one in shown] == [
        getattr(one, "fold", None) for one in each
    ]
