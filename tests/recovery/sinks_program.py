"""A driver that writes to SQLite and Delta as ``docs/restore.md`` advises, and may kill itself.

``python sinks_program.py WORK_DIRECTORY STEP...`` does one step after the other:

* ``run:FILES`` reads the input to its end with so many files per epoch;
* ``run:FILES:SINK:EPOCH`` dies in that epoch once that sink has committed it;
* ``more`` adds the input of ``WORK_DIRECTORY/later``;
* ``rollback`` puts the location back to the newest checkpoint before the last run.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from deltalake import write_deltalake
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from tests.query import model
from tests.query.model import Count

DELTA_SCHEMA = "query_id string, epoch int, k string, n long"


def recipes() -> dict[str, Any]:
    """Return the functions that the documentation has."""
    text = (Path(__file__).parents[2] / "docs" / "restore.md").read_text()
    names: dict[str, Any] = {"ckpt": ckpt}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if "def to_" in block:
            exec(compile(block, "restore.md", "exec"), names)
    return names


class Program:
    """The query, with both sinks in the current directory."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.recipes = recipes()
        self.deaths: tuple[str, int] | None = None
        self.checkpoint: str | None = None

    def make_sinks(self) -> None:
        if Path("counts.db").exists():
            return
        with sqlite3.connect("counts.db") as db:
            db.execute("CREATE TABLE counts (query_id, epoch, k, n)")
            db.execute("CREATE TABLE done (query_id, epoch, PRIMARY KEY (query_id, epoch))")
        write_deltalake("counts", self.spark.createDataFrame([], DELTA_SCHEMA).toArrow())

    def write(self, df: DataFrame, number: int) -> None:
        with Path("epochs.txt").open("a") as log:
            log.write(f"{ckpt.current_epoch()}\n")
        for name in ("sqlite", "delta"):
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
        rows = self.spark.readStream.schema("k string, v long")
        rows = rows.option("maxFilesPerTrigger", files).parquet(str(Path("input").absolute()))
        counts = ckpt.key_by(rows, "k").transformWithState(
            Count(), "k string, n long", "Append", "None", uid="count"
        )
        writer = ckpt.write_stream(counts).foreachBatch(self.write)
        writer = writer.option("checkpointLocation", str(Path("location").absolute()))
        writer.trigger(availableNow=True).start().awaitTermination()

    def more(self) -> None:
        for path in Path("later").iterdir():
            path.rename(Path("input") / path.name)

    def rollback(self) -> None:
        assert self.checkpoint is not None
        ckpt.rollback(str(Path("location").absolute()), self.checkpoint)


def main(work: Path, steps: list[str]) -> None:
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
    program = Program(spark)
    program.make_sinks()
    for step in steps:
        name, *arguments = step.split(":")
        getattr(program, name)(*arguments)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
