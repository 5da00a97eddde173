"""A driver that writes to four sinks as ``docs/sinks.md`` advises, and may kill itself.

``python sinks_program.py WORK_DIRECTORY POSTGRES STEP...`` does one step after the other:

* ``run:FILES`` reads the input to its end with so many files per epoch;
* ``run:FILES:SINK:EPOCH`` dies in that epoch once that sink has committed it;
* ``more:DIRECTORY`` adds the input of that directory;
* ``rollback`` puts the location back to the newest checkpoint before the last run;
* ``fork:FILES`` starts a fork from that checkpoint, in the same tables;
* ``replace:FILES`` starts another query from it, which replaces the first in the tables.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from tests.query import model
from tests.query.model import Count

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"
SINKS = ("sqlite", "delta", "iceberg", "postgres")


def recipes(postgres: str) -> dict[str, Any]:
    """Return the functions that the documentation has; they make their tables."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    names["postgres"] = postgres
    names["make_postgres_tables"]()
    return names


class Program:
    """The query, with all sinks in the current directory."""

    def __init__(self, spark: SparkSession, postgres: str) -> None:
        self.spark = spark
        self.recipes = recipes(postgres)
        self.deaths: tuple[str, int] | None = None
        self.checkpoint: str | None = None

    def write(self, df: DataFrame, number: int) -> None:
        with Path("epochs.txt").open("a") as log:
            log.write(f"{ckpt.current_epoch()}\n")
        for name in SINKS:
            self.recipes[f"to_{name}"](df, number)
            if self.deaths == (name, number):
                os.killpg(os.getpgid(0), signal.SIGKILL)

    def run(self, files: str, *death: str) -> None:
        self.deaths = (death[0], int(death[1])) if death else None
        self.checkpoint = max(
            (path.parent.name for path in Path("location/pyspark_ckpt").glob("chk-*/_metadata")),
            key=lambda name: int(name.removeprefix("chk-")),
            default=None,
        )
        self.start(self.counts(files), "location")

    def more(self, directory: str) -> None:
        for path in Path(directory).iterdir():
            path.rename(Path("input") / path.name)

    def rollback(self) -> None:
        assert self.checkpoint is not None
        ckpt.location(str(Path("location").absolute())).rollback(self.checkpoint)

    def fork(self, files: str) -> None:
        self.start(self.counts(files), "fork", f"location/pyspark_ckpt/{self.checkpoint}")

    def replace(self, files: str) -> None:
        counts, path = self.counts(files), f"location/pyspark_ckpt/{self.checkpoint}"
        self.recipes["replace_original"](path, counts)
        self.start(counts, "replacement", path)

    def counts(self, files: str) -> DataFrame:
        rows = self.spark.readStream.schema("k string, v long")
        rows = rows.option("maxFilesPerTrigger", files).parquet(str(Path("input").absolute()))
        counts = ckpt.key_by(rows, "k").transformWithState(
            Count(), "k string, n long", "Append", "None", uid="count"
        )
        return counts.withColumnRenamed("k", "user")

    def start(self, counts: DataFrame, location: str, restored: str | None = None) -> None:
        writer = ckpt.write_stream(counts).foreachBatch(self.write)
        writer = writer.option("checkpointLocation", str(Path(location).absolute()))
        if restored is not None:
            writer = writer.restoreFrom(str(Path(restored).absolute()))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()


def main(work: Path, postgres: str, steps: list[str]) -> None:
    os.chdir(work)
    cloudpickle.register_pickle_by_value(model)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(work / "local"))
        .config("spark.ckpt.execution.checkpointing.interval", "1h")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    program = Program(spark, postgres)
    for step in steps:
        name, *arguments = step.split(":")
        getattr(program, name)(*arguments)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
