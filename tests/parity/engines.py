"""One program, run by PySpark's own operator and by this library."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from chispa import assert_df_equality
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StatefulProcessor, StreamingQuery

import pyspark_ckpt as ckpt
from tests.query.harness import DEADLINE, Feed

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"
ENDS = {NO_DATA_BATCHES: "false"}
"""Epochs are exactly the files; without it PySpark's processing time mode never ends."""

# Before 4.2 PySpark knows no other zone.
UTC = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}

Steps = Callable[[Feed, StreamingQuery, Callable[[], int]], None]
"""Feeds a running query; given the feed, the query and how many rows the sink has."""


@dataclass
class Both:
    """One processor over one input of several epochs (a file each), for both engines.

    `files` go in before the start. With `steps` the query is started with the default trigger
    and fed by them; otherwise it processes the available input and ends.
    """

    spark: SparkSession
    base: Path
    ddl: str
    files: Sequence[Any]
    processor: Callable[[], StatefulProcessor]
    output: str
    keys: Sequence[str] = ("k",)
    time_mode: str = "None"
    pandas: bool = False
    watermark: str = ""
    initial: tuple[DataFrame, str] | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    steps: Steps | None = None

    def same(self, but_for: str = "") -> list[Row]:
        """Run both, compare their output with chispa, and return PySpark's, sorted.

        For rows whose column ``what`` is `but_for`, only the number is compared.
        """
        native = self.run("pyspark")
        rows = sorted(native.collect(), key=str)
        assert rows, "PySpark gave nothing: there is nothing to compare"
        ours = self.run("ckpt")
        if but_for:
            assert ours.count() == native.count()
            ours, native = (df.where(df["what"] != but_for) for df in (ours, native))
        assert_same_rows(ours, native)
        return rows

    def run(self, engine: str) -> DataFrame:
        """Run one of the engines, ``pyspark`` or ``ckpt``, and return the content of its sink."""
        feed = self._feed(engine)
        out = self.base / engine / "out"
        with configured(self.spark, {PROVIDER: ROCKSDB, **self.conf}):
            writer = self._writer(engine, self._input(feed))
            writer = writer.format("parquet").outputMode("append").option("path", str(out))
            writer = writer.option("checkpointLocation", str(self.base / engine / "loc"))
            if self.steps is None:
                writer.trigger(availableNow=True).start().awaitTermination()
            else:
                query = writer.start()
                try:
                    self.steps(feed, query, lambda: self._result(out).count())
                finally:
                    query.stop()
        return self._result(out)

    def _feed(self, engine: str) -> Feed:
        schema = self.spark.createDataFrame([], self.ddl).schema
        arrow = to_arrow_schema(schema, **UTC)
        return Feed(self.base / engine / "in", arrow, self.ddl).add(*self.files)

    def _input(self, feed: Feed) -> DataFrame:
        df = feed.stream(self.spark)
        return df.withWatermark(self.watermark, "0 seconds") if self.watermark else df

    def _writer(self, engine: str, df: DataFrame) -> Any:
        ours = engine == "ckpt"
        keyed: Any = ckpt.key_by(df, *self.keys) if ours else df.groupBy(*self.keys)
        name = "transformWithStateInPandas" if self.pandas else "transformWithState"
        initial = None if self.initial is None else self.initial[0].groupBy(self.initial[1])
        call = getattr(keyed, name)
        uid = {"uid": "op"} if ours else {}
        made = call(
            self.processor(), self.output, "Append", self.time_mode, initialState=initial, **uid
        )
        return ckpt.write_stream(made) if ours else made.writeStream

    def _result(self, out: Path) -> DataFrame:
        if not (out / "_spark_metadata").exists():  # no epoch is committed yet
            return self.spark.createDataFrame([], self.output)
        return self.spark.read.schema(self.output).parquet(str(out))


def assert_same_rows(ours: DataFrame, native: DataFrame) -> None:
    """Compare with chispa in any order of rows; it cannot sort by maps itself."""
    columns = [f.name for f in native.schema if not isinstance(f.dataType, T.MapType)]
    assert_df_equality(ours.orderBy(*columns), native.orderBy(*columns))


@contextmanager
def configured(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Set session conf and put back what was there."""
    before = {key: spark.conf.get(key, None) for key in conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def wait_until(query: StreamingQuery, condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds; fail when the query has ended or the deadline is over."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if not query.isActive:
            raise AssertionError(f"the query ended before {what}") from query.exception()
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)
