"""A driver on ``local-cluster[2,1,1024]``: each executor is its own JVM.

``python program.py WORK_DIRECTORY BACKEND HEARTBEAT_TIMEOUT [KEY=VALUE ...]`` numbers the rows of
the files in ``WORK_DIRECTORY/input`` until ``marks/finish`` exists. The keys are of Spark's conf,
``spark.master`` included. During the run, ``marks/status`` has what the driver
knows: how many executors it has, and how many tasks of the stateful stage have ended.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.cluster.phases import MARKS, HeldNumbering
from tests.recovery.program import INPUT_SCHEMA, OUTPUT_SCHEMA

PARALLELISM = 2


def main(work: Path, backend: str, heartbeat_timeout: str, *conf: str) -> None:
    builder = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.heartbeatInterval", "500ms")
        .config("spark.network.timeoutInterval", "500ms")
        .config("spark.storage.blockManagerHeartbeatTimeoutMs", heartbeat_timeout)
        # Spark kills an executor that stands still after ten seconds; until then the others must
        # not wait for what they would fetch from it.
        .config("spark.shuffle.io.connectionTimeout", "2s")
        .config("spark.shuffle.io.maxRetries", 0)
        .config("spark.locality.wait", "0s")
        .config("spark.deploy.maxExecutorRetries", -1)
        .config("spark.task.maxFailures", 100)
        .config("spark.stage.maxConsecutiveAttempts", 100)
        .config("spark.sql.shuffle.partitions", PARALLELISM)
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.local.dir", str(work / "local"))
        .config("spark.ckpt.state.backend.type", backend)
        .config("spark.ckpt.execution.checkpointing.interval", "300ms")
        .config("spark.ckpt.internal.execution.checkpointing.data-inline-threshold", "0b")
    )
    for setting in conf:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.schema(INPUT_SCHEMA).option("maxFilesPerTrigger", 1)
    numbered = ckpt.key_by(rows.parquet(str(work / "input")), "key").transformWithState(
        HeldNumbering(), OUTPUT_SCHEMA, "Append", "None", uid="numbering"
    )
    query = (
        ckpt.write_stream(numbered)
        .format("parquet")
        .option("path", str(work / "output"))
        .option("checkpointLocation", str(work / "location"))
        .start()
    )
    marks = Path(os.environ[MARKS])
    while not (marks / "finish").exists() and not query.awaitTermination(0.05):
        _tell(spark, marks)
    query.processAllAvailable()
    query.stop()
    spark.stop()


def _tell(spark: SparkSession, marks: Path) -> None:
    """Replace the status as a whole."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    ended = [s.numCompletedTasks for s in stages if s is not None and s.numTasks == PARALLELISM]
    executors = spark._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is one of them
    hidden = marks / "status.new"
    hidden.write_text(json.dumps({"executors": executors, "tasks_ended": max(ended, default=0)}))
    hidden.replace(marks / "status")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
