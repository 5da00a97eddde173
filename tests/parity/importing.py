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
from tests.query.place import RemotePath

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
        self.native: Path | RemotePath = self.base / "native"
        self.imports = str(self.base / "imported")

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

    def run_native(self, location: Path | None = None) -> list[Row]:
        """Let Spark process what there is; return what it emitted."""
        with configured(self.spark, {PROVIDER: ROCKSDB, **ENDS, **self.conf}):
            made = self.made(self.stream().groupBy(*self.keys))
            return run(made.writeStream, self.native if location is None else location)

    def imported(self, **arguments: Any) -> ckpt.results.Savepoint:
        given = {"processor": self.processor(), "uid": "op", "spark": self.spark, **arguments}
        return ckpt.location(str(self.native)).import_checkpoint(self.imports, **given)

    def run_ours(self, savepoint: ckpt.results.Savepoint) -> list[Row]:
        """Restore the program from a savepoint; return what it emitted."""
        with configured(self.spark, ENDS):
            writer = ckpt.write_stream(self.plan()).restoreFrom(savepoint.path)
            return run(writer, self.base / "ours")

    def same(self, before: Sequence[Any], after: Sequence[Any]) -> list[Row]:
        """Run both over the files `after`, compare, and return Spark's rows, sorted.

        Another query of Spark is never stopped: it runs over all files. Both must equal it too.
        """
        self.feed.add(*before)
        earlier = self.run_native()
        assert earlier
        savepoint = self.imported()
        self.feed.add(*after)
        ours, native = self.run_ours(savepoint), self.run_native()
        assert native, "Spark gave nothing: there is nothing to compare"
        check_same(ours, native)
        check_same(sorted([*earlier, *ours], key=str), self.run_native(self.base / "never_stopped"))
        return native


def check_same(found: list[Row], expected: list[Row]) -> None:
    different = set(map(str, found)) ^ set(map(str, expected))
    assert found == expected, "\n".join(sorted(different))


def run(writer: Any, location: Path | RemotePath) -> list[Row]:
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
