"""A driver that promotes one program after the other, each after a shadow of one epoch.

``python promoting_program.py WORK BACKEND SINK VERSIONS``: numbers the rows of ``WORK/input`` into
``WORK/output``, by the file sink (``file``), into an external table (``table``), or by
``foreachBatch`` with a directory per epoch (``batch``). Each row has the version of the program
that wrote it. The complete savepoints of ``WORK/savepoints`` say which version is the right one, as
after a kill in production.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import open_storage
from tests.recovery import program

STACKS_AFTER_SECONDS = 580
"""The test kills it after 600."""

OUTPUT = f"{program.OUTPUT_SCHEMA}, version long"


class Versioned(program.Numbering):
    """Numbering that also says its version."""

    def __init__(self, version: int) -> None:
        self.version = version

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(**row.asDict(), version=self.version)


def complete_savepoints(directory: Path) -> list[int]:
    """Return the epochs of the complete savepoints, oldest first."""
    complete = directory.glob("savepoint-*/_metadata")
    return sorted(read_metadata(open_storage(str(path.parent))).epoch for path in complete)


def main(work: Path, backend: str, sink: str, versions: int) -> None:
    cloudpickle.register_pickle_by_value(program)
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(work / "local"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.task.maxFailures", 8)
        .config("spark.sql.streaming.fileSink.log.compactInterval", 100_000)
        .config("spark.ckpt.state.backend.type", backend)
        .config("spark.ckpt.execution.checkpointing.interval", "300ms")
        .config("spark.ckpt.internal.execution.checkpointing.data-inline-threshold", "1kb")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def program_of(version: int) -> Callable[[], DataFrame]:
        def build() -> DataFrame:
            rows = spark.readStream.schema(program.INPUT_SCHEMA).option("maxFilesPerTrigger", 1)
            return ckpt.key_by(rows.parquet(str(work / "input")), "key").transformWithState(
                Versioned(version), OUTPUT, "Append", "None", uid="numbering"
            )

        return build

    def keep(df: DataFrame, epoch: int) -> None:
        df.write.mode("overwrite").parquet(str(work / "output" / f"epoch-{epoch}"))

    version = len(complete_savepoints(work / "savepoints"))
    print(f"version {version}", flush=True)
    writer = ckpt.write_stream(program_of(version))
    writer = writer.option("checkpointLocation", str(work / "location"))
    if sink == "batch":
        query = writer.foreachBatch(keep).start()
    elif sink == "table":
        query = writer.toTable("numbered", format="parquet", path=str(work / "output"))
    else:
        query = writer.format("parquet").option("path", str(work / "output")).start()
    while query.lastProgress is None:  # no epoch yet
        assert not query.awaitTermination(1)
    while version < versions:
        version += 1
        candidate = program_of(version)
        shadow = ckpt.shadow(query, candidate, epochs=1, ignore=["output.version"])
        shadow.awaitTermination()
        assert shadow.report.is_equal, shadow.report
        print(f"promoting {version}", flush=True)
        promotion = shadow.promote(str(work / "savepoints"))
        print(f"promoted {version}: {promotion.restart.pause_ms} ms", flush=True)
    print("last", flush=True)
    while not (work / "all-written").exists():
        assert not query.awaitTermination(0.2)
    query.processAllAvailable()
    query.stop()
    left = [path.name for path in (work / "location").iterdir() if path.name.startswith("_shadow")]
    assert not left, left
    spark.stop()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(STACKS_AFTER_SECONDS)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
