"""Values of Spark that Python does not have are refused with the column, the value and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import HAND_OVER, Feed, Job

LATIN = "cast(X'4FE9' as string)"
"""Spark's text of the two bytes ``O`` and ``é`` in Latin-1."""
SHOWN = r"has the text b'O\\xe9', which is not UTF-8"
NO_TEXT = pa.array([b"O\xe9"], pa.binary()).view(pa.string())


class Rows(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for _ in rows:
            yield Row(n=1)

    def close(self) -> None: ...


class Frames(Rows):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            yield pd.DataFrame({"n": [1] * len(frame)})


class Batches(ckpt.BatchProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield pd.DataFrame({"n": [1] * len(rows)})

    def close(self) -> None: ...


class Tables(ckpt.ArrowProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield pa.table({"n": [1] * len(rows)})

    def close(self) -> None: ...


METHODS: dict[str, Callable[[], StatefulProcessor]] = {
    "transformWithState": Rows,
    "transformWithStateInPandas": Frames,
    "transformWithStateInBatches": Batches,
    "transformWithStateInArrow": Tables,
}
ROWS, *OTHERS = METHODS
ARROW = OTHERS[-1]
PLACES = {
    "city": f"1 as k, {LATIN} as city",
    "k": f"{LATIN} as k",
    "pair": f"1 as k, struct(2 as a, {LATIN} as `a.b`) as pair",
    "names": f"1 as k, array('ø\ufffd', null, {LATIN}) as names",
    "by_name": f"1 as k, map({LATIN}, 1) as by_name",
    "deep": f"1 as k, map(1, array(struct({LATIN} as x))) as deep",
}
"""Columns that have such a text somewhere."""


def processed(spark: SparkSession, columns: str, method: str, keys: Any = "k") -> list[Any]:
    rows = spark.sql(f"select {columns}")
    keyed = getattr(ckpt.key_by(rows, keys), method)
    return list(keyed(METHODS[method](), "n long", "Append", "None", uid="op").collect())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name"),
    [
        *((ROWS, name) for name in PLACES),
        *(
            pytest.param(method, name, marks=pytest.mark.soak)
            for method in OTHERS
            for name in PLACES
            if method != ARROW or name == "k"  # a table has any bytes
        ),
    ],
)
def test_a_text_that_is_no_utf8(spark: SparkSession, method: str, name: str) -> None:
    with pytest.raises(PythonException, match=rf"column '{name}' is .* {SHOWN}.*make_valid_utf8"):
        processed(spark, PLACES[name], method)


@pytest.mark.slow
def test_a_key_of_an_expression_has_its_name(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match=r"column 'concat\(city, city\)' .*xe9O\\xe9"):
        processed(spark, PLACES["city"], ARROW, F.concat("city", "city"))


@pytest.mark.slow
def test_what_is_there_in_utf8_or_in_arrow_is_right(spark: SparkSession) -> None:
    """A replacement character may be in a text; a table has any bytes."""
    replaced = "1 as k, array('\ufffd') as names, '\ufffd' as city"
    assert len(processed(spark, replaced, ROWS)) == 1
    for name in PLACES:
        if name != "k":
            assert len(processed(spark, PLACES[name], ARROW)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("hand_over", ["arrow", "packed"])
def test_in_a_query(job: Job, hand_over: str) -> None:
    job.feed.add([("a", 1), ("b", 2)])

    def plan(own: Job) -> Any:
        rows = own.stream().selectExpr("k", f"if(v = 2, {LATIN}, 'x') as city")
        return own.process(ckpt.key_by(rows, "k"))

    job = job.but(processor=Rows, output="n long", plan=plan)
    with pytest.raises(ckpt.errors.InputRowsError, match=rf"column 'city' is string and {SHOWN}"):
        job.using({HAND_OVER: hand_over}).run()


@pytest.mark.slow
def test_a_file_in_another_encoding(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """The advice of the error works."""
    (tmp_path / "cities.txt").write_bytes("Århus".encode("latin-1"))
    cities = spark.read.text(str(tmp_path / "cities.txt"))

    def counted(rows: Any) -> list[Any]:
        keyed = ckpt.key_by(rows, "value")
        return list(keyed.transformWithState(Rows(), "n long", "Append", "None").collect())

    with pytest.raises(PythonException, match=r"b'\\xc5rhus', which is not UTF-8") as caught:
        counted(cities)
    for advice in ("decode(cast(value as binary), 'ISO-8859-1')", "make_valid_utf8(value)"):
        assert advice in str(caught.value)
        assert len(counted(cities.selectExpr(f"{advice} as value"))) == 1


class Keeps(Tables):
    """Write a text that is not UTF-8 into a state."""

    def init(self, handle: Any) -> None:
        self.name = handle.getValueState("name", "name string")
        self.names = handle.getValueState("names", "names array<string>")

    def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if rows.column("state")[0].as_py() == "name":
            self.name.updateMany(keys, pa.table({"name": NO_TEXT}))
        else:
            nested = pa.ListArray.from_arrays([0, 1], NO_TEXT)
            self.names.updateMany(keys, pa.table({"names": nested}))
        yield pa.table({"n": [1]})


class Yields(Tables):
    def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield pa.table({"names": pa.ListArray.from_arrays([0, 1], NO_TEXT)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "columns", "output", "message"),
    [
        (Keeps, "1 as k, 'name' as state", "n long", f"column 'name' is string and {SHOWN}"),
        (
            Keeps,
            "1 as k, 'names' as state",
            "n long",
            f"column 'names' is array<string> and {SHOWN}",
        ),
        (Yields, "1 as k", "names array<string>", f"output column 'names' .*{SHOWN}"),
    ],
)
def test_in_a_table_of_the_processor(
    spark: SparkSession, processor: Any, columns: str, output: str, message: str
) -> None:
    keyed = ckpt.key_by(spark.sql(f"select {columns}"), "k")
    with pytest.raises(PythonException, match=message):
        keyed.transformWithStateInArrow(processor(), output, "Append", "None", uid="op").collect()


@pytest.mark.slow
def test_a_time_that_pandas_does_not_have(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match=r"column 'at' is .*2300-01-01.*from 1677 to 2262"):
        processed(spark, "1 as k, timestamp '2300-01-01' as at", "transformWithStateInPandas")
