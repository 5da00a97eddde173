"""An instant that a user sees as a local time is the same instant when it is written again."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.user import microseconds_of

INSTANT = T.TimestampType()
LATE, EARLY = 1699165800_000001, 1699163100_000000
"""Two instants of the hour that New York had twice: 06:30 and 05:45 UTC on 2023-11-05."""

of_any_zone = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
_in_range = st.integers(-62_135_400_000_000_000, 253_402_200_000_000_000)


@of_any_zone
@given(_in_range)
@example(LATE)
@example(EARLY)
def test_a_local_time_is_its_instant(local_time_zone: str, microseconds: int) -> None:
    shown = INSTANT.fromInternal(microseconds)
    assert microseconds_of(shown) == microseconds, local_time_zone


@pytest.mark.usefixtures("local_time_zone")
@pytest.mark.parametrize("first", [LATE, EARLY])
def test_every_way_out_keeps_the_instants_of_a_repeated_hour(first: int) -> None:
    time.mktime(time.localtime(first // 1_000_000))  # it remembers which offset it took last
    instants = [first, LATE, EARLY]
    shown = [INSTANT.fromInternal(one) for one in instants]
    codec = TupleCodec(T.StructType([T.StructField("at", INSTANT)]), "state 's'")
    assert [codec.plain.decode(codec.encode((one,)))[0] for one in shown] == instants
    rows = OutputRows(T.StructType([T.StructField("at", INSTANT)]), "u")
    times = rows.batch([(one,) for one in shown]).column("c0")
    assert times.cast(pa.int64()).to_pylist() == instants
    rows = OutputRows(T.StructType([T.StructField("all", T.ArrayType(INSTANT))]), "u")
    times = rows.batch([(shown,)]).column("c0").flatten()
    assert times.cast(pa.int64()).to_pylist() == instants


@pytest.mark.usefixtures("local_time_zone")
@pytest.mark.parametrize(
    "local",
    [
        datetime.datetime.fromisoformat("0001-01-01 00:00:00"),
        datetime.datetime.fromisoformat("9999-12-31 23:59:59.999999"),
        datetime.datetime.fromisoformat("2024-07-01 12:00:00.000007"),
        pd.Timestamp(2024, 7, 1, 12, 0, 0, 7),
        datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.timezone.utc),
    ],
)
def test_other_times_are_the_instants_that_spark_takes(local: Any) -> None:
    assert microseconds_of(local) == INSTANT.toInternal(local)


@pytest.mark.parametrize("value", [pd.NaT, "2024-07-01", 7, datetime.date(2024, 7, 1)])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        microseconds_of(value)
