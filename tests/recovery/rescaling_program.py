"""A driver that rescales its query again and again, and may kill itself at a file operation.

``python rescaling_program.py WORK BACKEND SINK KILL_AT``: numbers the rows of ``WORK/input`` into
``WORK/output``, by the file sink (``file``) or by ``foreachBatch`` with one directory per epoch
(``batch``). At operation KILL_AT on files within a rescale it kills itself. With -1 it rescales
twice, processes all input, and ends.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from tests.faults.disk import Disk
from tests.recovery import program
from tests.recovery.restoring_program import _Killing

DEADLINE_SECONDS = 280
NUMBERS = (4, 2, 3, 1)


def main(work: Path, backend: str, sink: str, kill_at: int) -> None:
    cloudpickle.register_pickle_by_value(program)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(work / "local"))
        .config("spark.ckpt.state.backend.type", backend)
        .config("spark.ckpt.execution.checkpointing.interval", "300ms")
        .config("spark.ckpt.internal.execution.checkpointing.data-inline-threshold", "1kb")
        .config("spark.ckpt.internal.state.changelog.materialize.min-size", "0b")
        .config("spark.ckpt.internal.state.changelog.materialize.max-segments", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    disk = Disk(work)  # it reads all files, so nothing may change during this
    disk.done = _Killing(kill_at)
    query = _start(spark, work, sink)
    while query.lastProgress is None:  # no epoch yet
        assert not query.awaitTermination(1)
    before = _parallelism(work)
    following = NUMBERS[(NUMBERS.index(before) + 1) % len(NUMBERS)]
    with disk.watched():
        done = query.rescale(following)
    print(f"operations: {len(disk.done)}", done, flush=True)
    query.rescale(NUMBERS[(NUMBERS.index(following) + 1) % len(NUMBERS)])
    query.processAllAvailable()
    query.stop()
    spark.stop()


def _parallelism(work: Path) -> int:
    stores = (work / "location" / "state" / "0").iterdir()
    return sum(store.name.isdecimal() for store in stores)


def _start(spark: SparkSession, work: Path, sink: str) -> ckpt.CheckpointedQuery:
    def build() -> DataFrame:
        rows = spark.readStream.schema(program.INPUT_SCHEMA).option("maxFilesPerTrigger", 1)
        return ckpt.key_by(rows.parquet(str(work / "input")), "key").transformWithState(
            program.Numbering(), program.OUTPUT_SCHEMA, "Append", "None", uid="numbering"
        )

    def keep(df: DataFrame, epoch: int) -> None:
        df.write.mode("overwrite").parquet(str(work / "output" / f"epoch-{epoch}"))

    writer = ckpt.write_stream(build).option("checkpointLocation", str(work / "location"))
    if sink == "batch":
        return writer.foreachBatch(keep).start()
    return writer.format("parquet").option("path", str(work / "output")).start()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(DEADLINE_SECONDS, exit=True)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
