"""``handleExpiredTimers`` gets its keys as ``handleInputArrow`` got them, whatever their type."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.mode import modes_of_class
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sides import EpochInput
from pyspark_ckpt.operator.run.processing import EpochProcessing
from tests.unit.operator.rows.sent import sent_batch
from tests.unit.operator.subtask_epochs import NUMBER, SubtaskEpochs

FOREVER_DAYS = 2**31 - 1
FOREVER_US = 2**63 - 1
YEAR_1_US, YEAR_10_000_US = -62_135_596_800_000_000, 253_402_300_800_000_000
PAIR = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.StringType())])
LIST = T.ArrayType(T.DoubleType())
SENT: list[tuple[T.DataType, str, Sequence[Any]]] = [
    (T.TimestampType(), "UTC", [YEAR_10_000_US, -1, FOREVER_US, -FOREVER_US, None]),
    # 9999-12-31 in UTC is in the year 10,000 in Tokyo, and 0001-01-01 before the first in New York.
    (T.TimestampType(), "Asia/Tokyo", [YEAR_10_000_US - 1_000_000, 0]),
    (T.TimestampType(), "America/New_York", [YEAR_1_US, 0, None]),
    (T.DateType(), "UTC", [2_932_897, 0, FOREVER_DAYS, -FOREVER_DAYS, None]),
    (T.TimestampNTZType(), "Asia/Tokyo", [1_585_449_000_000_000, YEAR_1_US + 500_000, None]),
    (T.TimestampNTZType(), "UTC", [YEAR_10_000_US, FOREVER_US, -FOREVER_US]),
    (T.LongType(), "UTC", [2**63 - 1, -(2**63), 0, None]),
    (T.ByteType(), "UTC", [-128, 127, None]),
    (T.DoubleType(), "UTC", [math.nan, math.inf, -0.5, None]),
    (T.FloatType(), "UTC", [0.5, math.nan, None]),
    (T.BooleanType(), "UTC", [True, False, None]),
    (T.StringType(), "UTC", ["", "ä", None]),
    (T.BinaryType(), "UTC", [b"", b"\x00\xff", None]),
    (T.DecimalType(38, 18), "UTC", [Decimal("1.5"), Decimal("-0.000000000000000001"), None]),
]
EARLY_US = 1_699_162_200_000_000
"""The first 01:30 of two in New York."""
NOON = datetime.datetime(2023, 11, 14, 12, tzinfo=datetime.timezone.utc)
NOT_IN_PYTHON = (FOREVER_DAYS, -FOREVER_DAYS, 2_932_897)
YEAR_1700_US = -8_520_336_000_000_000
NESTED: list[tuple[T.DataType, str, Sequence[Any]]] = [
    (PAIR, "UTC", [(1, "x"), (None, None)]),
    (LIST, "UTC", [[], [0.5, None]]),
]
IN_ARROW: list[tuple[T.DataType, str, Sequence[Any]]] = [
    (T.ArrayType(T.DateType()), "UTC", [[FOREVER_DAYS], [-FOREVER_DAYS, None]]),
]


class Frames(ckpt.BatchProcessor):
    """Keeps the keys that come with rows, and those that come with timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.place = handle.getValueState("place", NUMBER)

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> None:
        self.came = keys
        self.place.updateMany(keys, pd.DataFrame({"n": keys.index}))
        self.handle.registerTimers(keys, [40] * len(keys))

    def handleExpiredTimers(self, keys: Any, timers: Any, timerValues: Any) -> None:
        self.fired = keys
        self.places = self.place.getMany(keys)["n"]

    def close(self) -> None:
        pass


class Keys(ckpt.ArrowProcessor):
    """Keeps the keys that come with rows, and those that come with timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.place = handle.getValueState("place", NUMBER)

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> None:
        self.came = keys
        self.place.updateMany(keys, pa.table({"n": keys.column("key_position")}))
        self.handle.registerTimers(keys, [40] * len(keys))

    def handleExpiredTimers(self, keys: pa.Table, timers: pa.Table, timerValues: Any) -> None:
        self.fired = keys
        self.places = self.place.getMany(keys).column("n")

    def close(self) -> None:
        pass


def run(
    epochs: SubtaskEpochs,
    processor: ckpt.ArrowProcessor | ckpt.BatchProcessor,
    kind: T.DataType,
    values: Sequence[Any],
    zone: str = "UTC",
) -> None:
    """Run an epoch with a row of each key, whose timers are due at once."""
    schema = T.StructType([T.StructField("k", kind), T.StructField("n", T.LongType())])
    columns = InputColumns(schema, ["k"], zone)
    batch = sent_batch(schema, [(value, 1) for value in values])
    epochs.set_time(1000)
    handle = epochs.begin()
    epochs.leave_key()
    (mode,) = modes_of_class(processor)
    calls = mode.of_operator(columns, OutputRows(NUMBER, "u"))
    processing = EpochProcessing(
        processor, epochs.table, handle, epochs.clock, calls, columns.decode_key, "operator 'u'"
    )
    try:
        list(processing.run(lambda: EpochInput([[batch]]), 1))
    finally:
        epochs.drop()


@pytest.mark.parametrize(
    ("kind", "zone", "values"),
    [*SENT, *NESTED, *IN_ARROW],
    ids=lambda v: str(v)[:40].replace("\n", ""),
)
def test_keys_are_those_of_the_rows(
    subtask_epochs: SubtaskEpochs, kind: T.DataType, zone: str, values: Sequence[Any]
) -> None:
    processor = Keys()
    run(subtask_epochs, processor, kind, values, zone)
    assert len(processor.came) == len(values)
    assert processor.fired.schema == processor.came.schema
    # Timers of one time come in the order of the stored keys, as the keys of rows do.
    assert processor.places.to_pylist() == list(range(len(values)))
    if pa.types.is_floating(processor.came.schema.field("k").type):
        assert str(processor.fired) == str(processor.came)  # NaN is equal to no NaN
    else:
        assert processor.fired.equals(processor.came)
    if pa.types.is_timestamp(processor.came.schema.field("k").type) and zone == "UTC":
        assert set(pc.cast(processor.fired.column("k"), pa.int64()).to_pylist()) == set(values)


IN_FRAMES: list[tuple[T.DataType, str, Sequence[Any]]] = [
    *(one for one in SENT if not isinstance(one[0], T.TimestampType | T.TimestampNTZType)),
    (T.TimestampType(), "UTC", [-1, 0, None]),
    (T.TimestampType(), "America/New_York", [EARLY_US, EARLY_US + 3_600_000_000]),  # 01:30 twice
    (T.TimestampType(), "Asia/Tokyo", [EARLY_US + 1]),
    (T.TimestampNTZType(), "Asia/Tokyo", [1_585_449_000_000_000, YEAR_1700_US + 500_000, None]),
    (T.LongType(), "UTC", [1, -2]),
    (T.BooleanType(), "UTC", [True, False]),
    (T.DateType(), "UTC", [-719_162, 0, 2_932_896, None]),
    (T.DayTimeIntervalType(), "UTC", [datetime.timedelta(days=-1, microseconds=3), None]),
    *NESTED,
    (T.ArrayType(T.LongType()), "UTC", [[], [1, 2], None]),
    (T.ArrayType(T.ArrayType(T.LongType())), "UTC", [[], [[1], []]]),
    (T.ArrayType(T.StringType()), "UTC", [["x"]]),
    (T.StructType().add("at", T.TimestampType()), "Asia/Tokyo", [(NOON,)]),
    (T.ArrayType(T.TimestampType()), "Asia/Tokyo", [[NOON], []]),
    (T.ArrayType(T.TimestampNTZType()), "Asia/Tokyo", [[NOON.replace(tzinfo=None)]]),
]


@pytest.mark.parametrize(
    ("kind", "zone", "values"), IN_FRAMES, ids=lambda v: str(v)[:40].replace("\n", "")
)
def test_frames_of_keys_are_those_of_the_rows(
    subtask_epochs: SubtaskEpochs, kind: T.DataType, zone: str, values: Sequence[Any]
) -> None:
    if isinstance(kind, T.DateType):
        values = [value for value in values if value not in NOT_IN_PYTHON]
    processor = Frames()
    run(subtask_epochs, processor, kind, values, zone)
    assert len(processor.came) == len(values)
    pd.testing.assert_frame_equal(processor.fired, processor.came)
    assert processor.places.tolist() == list(range(len(values)))
    for fired, came in zip(processor.fired["k"], processor.came["k"], strict=True):
        assert type(fired) is type(came)
        assert repr(fired) == repr(came)


def test_one_by_one_such_a_key_is_an_error_that_says_what_to_do(
    subtask_epochs: SubtaskEpochs,
) -> None:
    class OneByOne(ckpt.ArrowProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> None:
            self.handle.registerTimers(keys, [40] * len(keys))

        def close(self) -> None:
            pass

    with pytest.raises(StateValueError, match=r"Python does not have.*in handleExpiredTimers"):
        run(subtask_epochs, OneByOne(), T.TimestampType(), [YEAR_10_000_US])
