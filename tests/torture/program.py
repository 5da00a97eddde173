"""A driver of the tortured query on ``local-cluster``: ``python -m tests.torture.program SPEC``.

The file SPEC has the query's directories and settings as JSON. Among the marks, ``finish`` ends the
query once it has processed everything. ``savepoint`` has it take one and name it in
``savepoint-at``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.torture.query import tortured
from tests.torture.slowness import MARKS

CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.executor.memory": "512m",
    "spark.executor.heartbeatInterval": "500ms",
    "spark.network.timeoutInterval": "500ms",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "4s",
    "spark.shuffle.io.connectionTimeout": "2s",
    "spark.shuffle.io.maxRetries": "0",
    "spark.locality.wait": "0s",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "100",
    "spark.stage.maxConsecutiveAttempts": "100",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
    "spark.ckpt.execution.checkpointing.interval": "300ms",
    "spark.ckpt.internal.execution.checkpointing.data-inline-threshold": "200b",
    "spark.ckpt.execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "spark.ckpt.internal.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.internal.state.changelog.materialize.max-segments": "4",
}


def main(spec: dict[str, Any]) -> None:
    marks = Path(os.environ[MARKS])
    builder = SparkSession.builder.master("local-cluster[2,1,512]").config(map=CONF)
    spark = builder.config(map=spec["conf"]).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    writer = ckpt.write_stream(tortured(spark, Path(spec["input"]))).format("parquet")
    writer = writer.option("path", spec["output"]).option("checkpointLocation", spec["location"])
    if spec.get("restore"):
        writer = writer.restoreFrom(spec["restore"])
    query = writer.start()
    (marks / "started").touch()
    while not (marks / "finish").exists() and not query.awaitTermination(0.05):
        if (marks / "savepoint").exists():
            _savepoint(query, marks)
    query.processAllAvailable()
    query.stop()
    if query.exception() is not None:
        raise query.exception()
    spark.stop()


def _savepoint(query: ckpt.CheckpointedQuery, marks: Path) -> None:
    directory, kind = json.loads((marks / "savepoint").read_text())
    try:
        path = query.triggerSavepoint(directory, kind).path
    except ckpt.errors.CheckpointAbortedError:
        return  # asked again until it succeeds
    hidden = marks / "savepoint-at.new"
    hidden.write_text(path)
    (marks / "savepoint").unlink()
    hidden.rename(marks / "savepoint-at")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
