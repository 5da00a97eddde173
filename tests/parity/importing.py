"""One program that Spark begins, and that both Spark and this library continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.parity.engines import ENDS, PROVIDER, ROCKSDB, UTC, configured
from tests.query.harness import Feed

ENCODING = "spark.sql.streaming.stateStore.encodingFormat"


@dataclass
class Continued:
    """Spark runs a program over some files; then Spark and this library run it over the next."""

    spark: SparkSession
    base: Path
    ddl: str
    processor: Callable[[], StatefulProcessor]
    output: str
    keys: Sequence[str] = ("k",)
    time_mode: str = "None"
    pandas: bool = False
    watermark: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    source: Callable[[], DataFrame] | None = None

    def __post_init__(self) -> None:
        schema = self.spark.createDataFrame([], self.ddl).schema
        self.feed = Feed(self.base / "in", to_arrow_schema(schema, **UTC), self.ddl)
        self.native = self.base / "native"

    def stream(self) -> DataFrame:
        df = self.feed.stream(self.spark) if self.source is None else self.source()
        return df.withWatermark(self.watermark, "0 seconds") if self.watermark else df

    def made(self, keyed: Any, **more: Any) -> DataFrame:
        name = "transformWithStateInPandas" if self.pandas else "transformWithState"
        made: DataFrame = getattr(keyed, name)(
            self.processor(), self.output, "Update", self.time_mode, **more
        )
        return made

    def plan(self) -> DataFrame:
        return self.made(ckpt.key_by(self.stream(), *self.keys), uid="op")

    def run_native(self) -> list[Row]:
        """Let Spark process what there is; return what it emitted."""
        with configured(self.spark, {PROVIDER: ROCKSDB, **ENDS, **self.conf}):
            return run(self.made(self.stream().groupBy(*self.keys)).writeStream, self.native)

    def imported(self, **arguments: Any) -> ckpt.Savepoint:
        given = {"processor": self.processor(), "uid": "op", "spark": self.spark, **arguments}
        directory = str(self.base / "imported")
        return ckpt.import_checkpoint(str(self.native), directory, **given)

    def run_ours(self, savepoint: ckpt.Savepoint) -> list[Row]:
        """Restore the program from a savepoint; return what it emitted."""
        with configured(self.spark, ENDS):
            writer = ckpt.write_stream(self.plan()).restoreFrom(savepoint.path)
            return run(writer, self.base / "ours")

    def same(self, before: Sequence[Any], after: Sequence[Any]) -> list[Row]:
        """Run both over the files `after`, compare, and return Spark's rows, sorted."""
        self.feed.add(*before)
        assert self.run_native()
        savepoint = self.imported()
        self.feed.add(*after)
        ours, native = self.run_ours(savepoint), self.run_native()
        assert native, "Spark gave nothing: there is nothing to compare"
        different = set(map(str, ours)) ^ set(map(str, native))
        assert ours == native, "\n".join(sorted(different))
        return native


def run(writer: Any, location: Path) -> list[Row]:
    """Run a query to the end of its input; return all rows of all epochs, sorted."""
    emitted: dict[int, list[Row]] = {}

    def keep(df: DataFrame, epoch: int) -> None:
        emitted[epoch] = df.collect()

    query = (
        writer.foreachBatch(keep)
        .outputMode("update")
        .option("checkpointLocation", str(location))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [Row(epoch=epoch, **row.asDict()) for epoch, rows in emitted.items() for row in rows]
    return sorted(rows, key=str)
