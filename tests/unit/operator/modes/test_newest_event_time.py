"""The newest event time of a key's rows is the same in every mode, to the millisecond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark_ckpt.operator.values.transport import MASK

from pyspark_ckpt.operator.modes.arrow import ArrowPart
from pyspark_ckpt.operator.modes.batches import BatchPart
from pyspark_ckpt.operator.modes.pandas import PandasPart
from pyspark_ckpt.operator.modes.rows import RowsPart
from pyspark_ckpt.operator.rows.input import KEY_GROUP, InputColumns
from pyspark_ckpt.operator.time import NEVER_LATE, WATERMARK_DELAY

BY_KEY: list[Callable[..., Any]] = [RowsPart, PandasPart]
ALL_KEYS: list[Callable[..., Any]] = [BatchPart, ArrowPart]

EARLY, LATE = 1699163400_000000, 1699164600_000000
"""01:50 and, twenty minutes later, 01:10 in New York."""


def columns_of(*, with_time: bool = True) -> InputColumns:
    metadata = {WATERMARK_DELAY: 0} if with_time else None
    schema = T.StructType(
        [
            T.StructField("k", T.LongType(), nullable=False),
            T.StructField("at", T.TimestampType(), metadata=metadata),
        ]
    )
    return InputColumns(schema, ["k"], "America/New_York")


def sent(*rows: tuple[int, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            KEY_GROUP: pa.array([key for key, _ in rows], pa.int32()),
            "c0": pa.array([key for key, _ in rows], pa.int64()),
            "c1": pa.array([NEVER_LATE if at is None else at for _, at in rows], pa.int64()),
            f"{MASK}0": pa.array([int(at is None) for _, at in rows], pa.int64()),
        }
    )


ROWS = [
    ([EARLY, LATE], LATE // 1000),
    ([LATE, EARLY], LATE // 1000),
    ([EARLY], EARLY // 1000),
    ([1088562142_324000], 1088562142_324),
    ([1088562142_324999], 1088562142_324),
    ([None, 7_000, None], 7),
    ([-1, -1_001], -1),
    ([None], None),
]


@pytest.mark.parametrize("make", [*BY_KEY, *ALL_KEYS])
@pytest.mark.parametrize(("times", "newest"), ROWS)
def test_it_is_the_greatest_time_that_was_sent(
    make: Callable[..., Any], times: list[int | None], newest: int | None
) -> None:
    part = make(columns_of(), [sent(*[(1, at) for at in times])])
    assert part.newest_event_time_ms(0) == newest


def test_each_key_has_its_own() -> None:
    every = [(key, at) for key, (times, _) in enumerate(ROWS) for at in times]
    for make in BY_KEY:
        part = make(columns_of(), [sent(*every[::2]), sent(*every[1::2])])
        found = [part.newest_event_time_ms(position) for position in range(len(ROWS))]
        assert found == [newest for _, newest in ROWS]
    for make in ALL_KEYS:
        assert make(columns_of(), [sent(*every)]).newest_event_time_ms(0) == LATE // 1000


@pytest.mark.parametrize("make", [*BY_KEY, *ALL_KEYS])
def test_without_a_watermark_there_is_none(make: Callable[..., Any]) -> None:
    part = make(columns_of(with_time=False), [sent((1, EARLY))])
    assert part.newest_event_time_ms(0) is None
