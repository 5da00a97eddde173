"""The types of a test's rows: found in their values as createDataFrame finds them, or given."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.testing import ProcessorHarness
from tests.unit.testing.processors import Processor


class Seen(Processor):
    """Yields rows and frames as it gets them."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield from rows


UTC = datetime.timezone.utc
AT = datetime.datetime(2024, 2, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (1, 1),
        (1.5, 1.5),
        (Decimal("1.50"), Decimal("1.5")),
        (None, None),
        (AT, AT),
        (AT.replace(tzinfo=None), AT.replace(tzinfo=None)),  # as with TwsTester
        (np.int32(7), 7),
        (np.array([1, 2]), [1, 2]),
        (pd.Timestamp("2024-02-29 12:00", tz="UTC"), AT),
        (pd.NaT, None),
        (Row(a=1, b=Row(c="x")), {"a": 1, "b": {"c": "x"}}),
        (("x", 1), {"_1": "x", "_2": 1}),
        ({"a": 1}, [("a", 1)]),
        ([1, None], [1, None]),
        (b"x", b"x"),
    ],
    ids=repr,
)
def test_a_value_is_as_in_a_column(value: Any, seen: Any) -> None:
    (row,) = ProcessorHarness(Seen()).test("ada", [Row(v=value)])
    assert row == Row(v=seen)
    assert type(row.v) is type(seen)


def test_a_column_of_times_with_and_without_a_zone_has_instants() -> None:
    local = AT.replace(tzinfo=None)
    rows = ProcessorHarness(Seen()).test("ada", [Row(at=local), Row(at=AT)])
    assert [row.at.astimezone(UTC) for row in rows] == [local.astimezone(UTC), AT]
    assert all(row.at.tzinfo is not None for row in rows)


def test_a_time_in_a_row_compares_with_one_in_a_state() -> None:
    class Latest(Processor):
        def init(self, handle: Any) -> None:
            self.last = handle.getValueState("last", "at timestamp")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            (last,) = self.last.get() or (datetime.datetime.min,)  # noqa: DTZ901
            last = max([last, *(row.at for row in rows if row.at is not None)])
            self.last.update((last,))
            yield Row(last=last)

    harness = ProcessorHarness(Latest())
    assert harness.test("ada", [Row(at=None)]) == [Row(last=datetime.datetime.min)]  # noqa: DTZ901
    at = AT.replace(tzinfo=None)
    assert harness.test("ada", [Row(at=at)]) == [Row(last=at)]


def test_columns_are_those_of_all_rows_so_far() -> None:
    harness = ProcessorHarness(Seen())
    assert harness.test("ada", [Row(n=1)]) == [Row(n=1)]
    with_text = harness.test("ada", [Row(n=1.5), Row(text="x")])
    assert with_text == [Row(n=1.5, text=None), Row(n=None, text="x")]
    (row,) = harness.test("bob", [Row(n=2)])
    assert (repr(row), row.__fields__) == ("Row(n=2.0, text=None)", ["n", "text"])
    restored = ProcessorHarness.restored(Seen(), harness.snapshot())
    assert restored.test("bob", [Row(n=2)]) == [row]


def test_an_epoch_that_fails_has_shown_no_column() -> None:
    harness = ProcessorHarness(Seen(), outputStructType="n long")
    with pytest.raises(ckpt.errors.StateValueError, match="'n' is bigint"):
        harness.test("ada", [Row(n="x")])
    assert harness.test("ada", [Row(n=1)]) == [Row(n=1)]


def test_frames_have_the_types_that_pyspark_gives_them() -> None:
    harness = ProcessorHarness(Seen(), conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
    given = pd.DataFrame(
        {
            "n": pd.array([1, None], "Int64"),
            "small": np.array([1, 2], "int8"),
            "text": ["x", None],
            "at": pd.to_datetime(["2024-02-29 12:00", None]),
            "kind": pd.Categorical(["a", "b"]),
            "inner": [[1], None],
        }
    )
    seen = harness.testInPandas("ada", given)
    text = pd.Series(["x", None]).dtype  # another one in pandas 3
    assert seen.dtypes.tolist() == [
        "float64", "int64", text, "datetime64[ns]", text, "object",
    ]  # fmt: skip
    assert seen["at"].tolist()[0] == given["at"][0]
    assert [seen[name].tolist()[0] for name in ("n", "text", "kind")] == [1, "x", "a"]
    assert seen["inner"][0].tolist() == [1]
    more = harness.testInPandas("bob", pd.DataFrame({"small": [1000], "new": [True]}))
    assert more.columns.tolist() == [*given.columns, "new"]
    assert more["small"].tolist() == [1000]


def test_types_may_be_given() -> None:
    schema = "n double, day date, text string"
    harness = ProcessorHarness(Seen(), inputStructType=schema)
    day = datetime.date(2024, 2, 29)
    (row,) = harness.test("ada", [Row(n=1, day=day)])
    assert repr(row) == f"Row(n=1.0, day={day!r}, text=None)"
    with pytest.raises(
        ckpt.errors.PlanError, match=r"rows do not fit their columns .*'n' is double"
    ):
        harness.test("ada", [Row(n="x")])


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, 2**63, [1, "x"]], ids=lambda value: type(value).__name__
)
def test_what_no_column_has_is_refused(value: Any) -> None:
    with pytest.raises(ckpt.errors.PlanError, match=r"give values as to spark\.createDataFrame"):
        ProcessorHarness(Seen()).test("ada", [Row(v=value)])


def test_what_is_no_row_is_refused() -> None:
    rows: Any = [1]
    with pytest.raises(ckpt.errors.PlanError, match=r"int is no pyspark\.sql\.Row"):
        ProcessorHarness(Seen()).test("ada", rows)
