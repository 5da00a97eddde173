"""Times of an edit beyond Spark's timestamps are shown as the last of them, and kept inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.editing.encoding import StoredValues
from pyspark_ckpt.editing.typed_frames import (
    BEYOND,
    as_written,
    columns_of,
    shown_times,
    stored_times,
    timer_columns,
)
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.snapshot.columns import StateValues
from pyspark_ckpt.stored.binary_column import BinaryColumn
from tests.unit.operator.subtask_epochs import NUMBER, SubtaskEpochs, heap_epochs

LONG = 1 << 63
LAST = LONG // 1000
TIMERS = timer_columns(NUMBER)


@pytest.fixture
def epochs(tmp_path: Path) -> Iterator[SubtaskEpochs]:
    with heap_epochs(tmp_path) as made:
        yield made


def state_of(epochs: SubtaskEpochs, duration_ms: int) -> StateDescriptor:
    epochs.begin().getValueState("s", NUMBER, StateTtlConfig(duration_ms))
    epochs.end()
    return epochs.states[0]


def frame(spark: SparkSession, name: str, times: list[int | None]) -> DataFrame:
    schema = T.StructType().add("n", "long").add(name, "long")
    return spark.createDataFrame(list(enumerate(times)), schema)


def numbers(rows: DataFrame, name: str) -> list[int | None]:
    shown = rows.schema[name].dataType == T.TimestampType()
    times = rows.orderBy("n").select(F.unix_micros(name) if shown else name)
    return [row[0] for row in times.collect()]


@pytest.mark.slow
def test_timers_of_any_millisecond(spark: SparkSession) -> None:
    times = [0, -7, LAST, -LAST, LONG - 1, -LONG, 10**18]
    rows = stored_times(frame(spark, "fires_at", times), TIMERS, None, in_ms=True)
    assert numbers(rows, "fires_at") == times
    shown = shown_times(rows, TIMERS, None)
    assert shown.schema["fires_at"].dataType == T.TimestampType()
    ends = [LONG - 1, -LONG, LONG - 1]
    assert numbers(shown, "fires_at") == [0, -7000, LAST * 1000, -LAST * 1000, *ends]
    given = stored_times(shown, TIMERS, None, in_ms=False)
    assert numbers(given, "fires_at") == [*times[:-1], LONG - 1]


@pytest.mark.parametrize("duration_ms", [1000, LAST - 10, 10**18, LONG - 1, LONG * 10])
def test_entries_of_any_age_and_time_to_live(
    spark: SparkSession, epochs: SubtaskEpochs, duration_ms: int
) -> None:
    state = state_of(epochs, duration_ms)
    columns = columns_of(T.StructType(), state)
    written = [None, 0, 7, 11, LAST - 999, LONG // 2 - 1]
    shown = shown_times(frame(spark, "expires_at", written), columns, state)
    ends = [each and min(each + duration_ms, LONG) for each in written[2:]]
    expected = [LONG - 1 if end and end > LAST else end and end * 1000 for end in ends]
    assert numbers(shown, "expires_at")[0] is None
    assert numbers(shown, "expires_at")[2:] == expected
    given = numbers(stored_times(shown, columns, state, in_ms=False), "expires_at")
    for before, now in zip(written, given, strict=True):
        is_beyond = before is not None and before + duration_ms > LAST
        assert now == (BEYOND if is_beyond else before)


@pytest.mark.parametrize("duration_ms", [1000, 10**18, LONG * 10])
@pytest.mark.parametrize("now_ms", [1_764_000_000_000, None])
def test_an_entry_for_ever_stays_one(
    epochs: SubtaskEpochs, duration_ms: int, now_ms: int | None
) -> None:
    """Also under a shorter time to live later, it has an age that is not above its own."""
    state = state_of(epochs, duration_ms)
    put = StoredValues(0, state, now_ms, has_times=True)
    values = put._values([pa.array([1, 1]), pa.array([BEYOND, 5])], 2)
    found = StateValues(state, "s").aged(BinaryColumn.of(values)).expires_ms
    written = StateValues(as_written(state), "s").aged(BinaryColumn.of(values)).expires_ms
    assert found is not None
    assert written is not None
    assert written[1] == 5
    assert found[1] == min(5 + duration_ms, LONG - 1)
    if now_ms is None:
        assert found[0] == written[0] == -1
    else:
        assert found[0] > LAST
        assert written[0] >= now_ms


def test_entries_without_a_stamp_end_with_the_last_millisecond(epochs: SubtaskEpochs) -> None:
    state = state_of(epochs, LONG - 1)
    assert state.ttl is not None
    state = msgspec.structs.replace(state, ttl=msgspec.structs.replace(state.ttl, since_ms=9))
    column = BinaryColumn.of(pa.array([b"\x91\x01"], pa.binary()))
    found = StateValues(state, "s").aged(column).expires_ms
    assert found is not None
    assert found.tolist() == [LONG - 1]
