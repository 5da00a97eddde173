"""What a processor may do with its rows, and the same processors run by PySpark itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import Job, gist, run_in_pyspark
from tests.query.model import OUTPUT, Count, Reveal, events_of, expected, in_order, sequences


class OtherOrder(Count):
    """Fields of rows are named, in another order than the output schema."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(n=row.n, k=row.k)


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("processor", "output"), [(Reveal, OUTPUT), (OtherOrder, "k string, n long")]
)
def test_as_pyspark_does(job: Job, processor: type[StatefulProcessor], output: str) -> None:
    """The same processor on the same input gives what PySpark's transformWithState gives."""
    job = job.but(processor=processor, output=output)
    job.feed.add(*map(events_of, range(2)), [(None, 3), ("", 14)])
    job.run()
    ours = job.spark.read.parquet(str(job.base / "out"))
    assert_df_equality(ours, run_in_pyspark(job), ignore_row_order=True)
    if processor is Reveal:
        assert job.result() == expected(job.feed.rows)


class Numpy(StatefulProcessor):
    """State, map keys and output are numpy scalars."""

    schema = "i int, l long, f float, d double, b boolean, s string"

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", self.schema)
        self.items = handle.getListState("items", "d double")
        self.map = handle.getMapState("map", "k long", "v float")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            v = row.v
            self.value.update(
                (np.int32(v), np.int64(v), np.float32(v), np.float64(v), np.bool_(v), np.str_(v))
            )
            self.items.put([(x,) for x in np.linspace(0, v, 3)])
            self.map.updateValue((np.int64(v),), (np.float32(v / 2),))
        kept = self.value.get()
        items = [x for (x,) in self.items.get()]
        assert all(type(x) in (int, float, bool, str) for x in (*kept, *items))
        assert self.map.containsKey((v,))
        (half,) = self.map.getValue((v,))
        yield Row(k=np.str_(key[0]), n=np.int64(kept[1]), state=f"{tuple(kept)} {items} {half}")


def test_numpy_scalars(job: Job) -> None:
    """NumPy scalars are accepted where their type fits, and come back as Python objects."""
    job.feed.add([("a", 3), ("b", 0)])
    job.but(processor=Numpy).run()
    assert job.result() == [
        ("a", 3, "(3, 3, 3.0, 3.0, True, '3') [0.0, 1.5, 3.0] 1.5"),
        ("b", 0, "(0, 0, 0.0, 0.0, False, '0') [0.0, 0.0, 0.0] 0.0"),
    ]


class FirstRow(StatefulProcessor):
    """Take one row of each key, or none if the key is lazy, and leave the others."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        first = None if key[0] == "lazy" else next(rows)
        n = (self.count.get() or (0,))[0] + 1
        self.count.update((n,))
        return iter([Row(key[0], n, f"{first and first.v}")])


@pytest.mark.soak
def test_input_that_is_not_consumed(job: Job) -> None:
    """The next key or epoch does not see rows that a processor leaves; each key has one call."""
    rows = [(k, v) for k in ("a", "lazy", "b", "c", "d") for v in range(4)]
    job.feed.add(rows, rows)
    job.but(processor=FirstRow).run()
    wanted = [(k, n, "None" if k == "lazy" else "0") for k, _ in rows[::4] for n in (1, 2)]
    assert job.result() == in_order(wanted)


class Many(StatefulProcessor):
    """Fifty thousand rows for each row of the key `many`, one for others."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            for _ in range(50_000 if key[0] == "many" else 1):
                n = (self.count.get() or (0,))[0] + 1
                self.count.update((n,))
                yield Row(k=key[0], n=n, state="x" * 20)

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_large_output(job: Job) -> None:
    """One key may emit far more rows than fit into one batch of Arrow."""
    job.feed.add([("a", 1), ("many", 1), ("b", 1), ("c", 1), ("a", 2)])
    job.but(processor=Many).run()
    df = job.spark.read.parquet(str(job.base / "out"))
    distinct = F.count_distinct("n")
    found = df.groupBy("k").agg(F.count("*"), distinct, F.min("n"), F.max("n"), F.min("state"))
    x = "x" * 20
    assert in_order(found.collect()) == [
        ("a", 2, 2, 1, 2, x),
        ("b", 1, 1, 1, 1, x),
        ("c", 1, 1, 1, 1, x),
        ("many", 50_000, 50_000, 1, 50_000, x),
    ]


def test_update_mode(job: Job) -> None:
    """In Update mode the operator's rows reach a sink that takes updates."""
    collected: list[Row] = []

    def sink(batch: DataFrame, epoch: int) -> None:
        collected.extend(batch.collect())

    keyed = ckpt.key_by(job.feed.stream(job.spark), F.col("k"))
    df = keyed.transformWithState(
        statefulProcessor=Count(),
        outputStructType="k string, n long",
        outputMode="Update",
        timeMode="None",
        uid="../an odd/uid é",
    )
    for epoch in range(2):
        job.feed.add(events_of(epoch))
        writer = ckpt.write_stream(df).foreachBatch(sink).outputMode("update")
        writer = writer.option("checkpointLocation", str(job.location_path))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert sequences(collected) == sequences((k, n) for k, n, _ in expected(job.feed.rows))


class KeepsMisfits(Count):
    """Emit the error of each value that does not fit the state."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.count.update((7,))
        for value in [("many",), (2**63,), (1, 2), ()]:
            with pytest.raises(TypeError) as caught:
                self.count.update(value)
            yield Row(k=repr(value), n=self.count.get()[0], state=str(caught.value))


def test_state_that_does_not_fit(job: Job) -> None:
    """A value that does not fit its state is refused by name, and the old value stays."""
    job.feed.add([("a", 1)])
    job.but(processor=KeepsMisfits).run()
    result = job.result()
    assert [(k, n) for k, n, _ in result] == [
        ("('many',)", 7),
        ("()", 7),
        ("(1, 2)", 7),
        ("(9223372036854775808,)", 7),
    ]
    for value, _, message in result:
        for text in ("'op'", "'count'", value, "bigint"):
            assert text in message


class EmitsMisfits(Count):
    """Emit a row that does not fit the output."""

    def __init__(self, row: Row) -> None:
        self.row = row

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield self.row


@pytest.mark.soak_variants
@pytest.mark.parametrize("row", [Row(k="a", n="many"), Row("a", 1, 2)], ids=["type", "width"])
def test_output_that_does_not_fit(job: Job, row: Row) -> None:
    """A row that does not fit the output is an error that names operator and column."""
    job.feed.add([("a", 1)])
    job = job.but(processor=lambda: EmitsMisfits(row), output="k string, n long")
    with pytest.raises(ckpt.errors.StateValueError, match="operator 'op'") as caught:
        job.run()
    print(gist(caught.value))
    assert "'n'" in str(caught.value) or "2 columns" in str(caught.value)
    assert job.result() == []
