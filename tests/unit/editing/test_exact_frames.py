"""Rows that a function on pandas frames returns as it got them do not change."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

from pyspark_ckpt.editing.typed_frames import RowsFunction
from pyspark_ckpt.errors import ProcessorError

LARGE = (1 << 53) + 1
NESTED = pa.struct([("n", pa.int64()), ("x", pa.float64())])
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int16()),
        ("x", pa.float64()),
        ("short", pa.float32()),
        ("numbers", pa.list_(pa.int64())),
        ("nested", NESTED),
        ("by", pa.map_(pa.string(), pa.int64())),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("sum", pa.decimal128(38, 6)),
        ("is", pa.bool_()),
        ("text", pa.string()),
        ("raw", pa.binary()),
    ]
)
WHEN = dt.datetime(1500, 1, 1, 0, 0, 0, 1, tzinfo=dt.timezone.utc)
ROWS = [
    (
        LARGE, -3, math.nan, 0.1, [1, None, LARGE], {"n": LARGE, "x": math.nan}, [("a", LARGE)],
        WHEN, WHEN.date(), Decimal("12345678901234567890.123456"), True, "", b"\0",
    ),
    (None,) * len(SCHEMA),
    (
        LARGE + 2, 7, -0.0, math.inf, [], {"n": None, "x": None}, [],
        WHEN, None, None, False, "a", b"",
    ),
]  # fmt: skip
COLUMNS = zip(zip(*ROWS, strict=True), SCHEMA.types, strict=True)
TABLE = pa.table([pa.array(values, column) for values, column in COLUMNS], SCHEMA)


def test_every_value_is_as_it_was() -> None:
    same = RowsFunction(lambda frame: frame, as_pandas=True, where="here")
    for part in (TABLE, TABLE.slice(0, 1), TABLE.slice(1, 1)):
        made = same(part, SCHEMA)
        assert made.schema == SCHEMA
        assert repr(made.to_pylist()) == repr(part.to_pylist())


def test_a_function_computes_with_numbers_beside_nulls() -> None:
    def twice(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(n=frame["n"] * 2, x=frame["x"] + 1)

    made = RowsFunction(twice, as_pandas=True, where="here")(TABLE, SCHEMA)
    assert made["n"].to_pylist() == [2 * LARGE, None, 2 * LARGE + 4]
    assert made["x"].to_pylist()[1:] == [None, 1.0]


MS = 1_700_000_000_000
NUMBERS = {
    "int64": [MS, MS, MS],
    "with null": pd.array([MS, None, MS], "Int64"),
    "of Arrow": pd.array([MS, None, MS], "int64[pyarrow]"),
    "float": [float(MS), math.nan, 0.5],
    "objects": pd.Series([MS, None, MS], dtype=object),
}


@pytest.mark.parametrize("column", ["at", "day", "is"])
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_numbers_are_no_times(column: str, numbers: object) -> None:
    """Arrow would take milliseconds for microseconds."""
    as_frame = RowsFunction(lambda rows: rows.assign(**{column: numbers}), True, "here")
    with pytest.raises(ProcessorError, match=f"here: .*{column}"):
        as_frame(TABLE, SCHEMA)
    array = pa.array(pd.Series(numbers), from_pandas=True)
    place = SCHEMA.names.index(column)
    as_table = RowsFunction(lambda rows: rows.set_column(place, column, array), False, "here")
    with pytest.raises(ProcessorError, match=f"is not {SCHEMA.field(column).type}".split("[")[0]):
        as_table(TABLE, SCHEMA)


def test_a_column_of_nulls_fits_each_type() -> None:
    as_frame = RowsFunction(lambda rows: rows.assign(at=None, day=None, **{"is": None}), True, "x")
    as_table = RowsFunction(
        lambda rows: pa.table([pa.nulls(len(rows))] * len(SCHEMA), SCHEMA.names), False, "x"
    )
    assert as_frame(TABLE, SCHEMA)["at"].null_count == len(TABLE)
    assert as_table(TABLE, SCHEMA).to_pylist() == [dict.fromkeys(SCHEMA.names)] * len(TABLE)
