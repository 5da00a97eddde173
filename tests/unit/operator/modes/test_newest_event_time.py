"""The newest event time of a key's rows is the same in every mode, to the millisecond."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.operator.modes.mode import MODES, Mode
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.time import WATERMARK_DELAY
from tests.unit.operator.rows.sent import in_new_york, sent_batch

OUTPUT = OutputRows(T.StructType([T.StructField("k", T.LongType())]), "u")
EVERY = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)

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
    columns = columns_of()
    groups = [key for key, _ in rows]
    return columns.arriving(sent_batch(columns.schema, rows, *groups, change=in_new_york))


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


@EVERY
@pytest.mark.parametrize(("times", "newest"), ROWS)
def test_it_is_the_greatest_time_that_was_sent(
    mode: Mode, times: list[int | None], newest: int | None
) -> None:
    part = mode.of_operator(columns_of(), OUTPUT).part([sent(*[(1, at) for at in times])])
    assert part.newest_event_time_ms(0) == newest


@EVERY
def test_each_call_has_its_own(mode: Mode) -> None:
    every = [(key, at) for key, (times, _) in enumerate(ROWS) for at in times]
    batches = [sent(*every[::2]), sent(*every[1::2])]
    part = mode.of_operator(columns_of(), OUTPUT).part(batches)
    if mode.has_key_calls:
        found = [part.newest_event_time_ms(position) for position in range(len(ROWS))]
        assert found == [newest for _, newest in ROWS]
    else:
        assert part.newest_event_time_ms(0) == LATE // 1000


@EVERY
def test_without_a_watermark_there_is_none(mode: Mode) -> None:
    part = mode.of_operator(columns_of(with_time=False), OUTPUT).part([sent((1, EARLY))])
    assert part.newest_event_time_ms(0) is None
