"""A driver that does what it is told, line by line, at a location on any storage.

``python program.py WORK_DIRECTORY CONF_JSON`` answers each line of its standard input, a JSON list
of a method, its arguments and options, with a line of JSON that begins with ``>``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.storage.servers.remote import RequestCounts

OUTPUT = "key string, n long, total long"


class Numbering(StatefulProcessor):
    """Numbers the rows of each key and adds up their values."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self._count.get() or (0, 0)
        for row in rows:
            n, total = n + 1, total + row.value
            yield Row(key=key[0], n=n, total=total)
        self._count.update((n, total))

    def close(self) -> None:
        pass


class Driver:
    """One driver and its query."""

    def __init__(self, work: Path, conf: dict[str, str]) -> None:
        self._work = work
        builder = (
            SparkSession.builder.master(conf.get("spark.master", "local[2]"))
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.local.dir", str(work / f"local-{os.getpid()}"))
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config(map=conf)
        )
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        self._query: ckpt.CheckpointedQuery | None = None

    def do(self, what: str, arguments: list[Any], options: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"done": getattr(self, what)(*arguments, **options)}
        except Exception as exc:
            return {"error": type(exc).__name__, "message": str(exc)[:2000]}

    def start(self, location: str, out: str, restore: str | None = None, **options: Any) -> str:
        parallelism = options.pop("parallelism", 1)
        self.spark.conf.set("spark.sql.shuffle.partitions", parallelism)
        rows = self.spark.readStream.schema("key string, value long")
        rows = rows.option("maxFilesPerTrigger", 1).parquet(str(self._work / "input"))
        counted = ckpt.key_by(rows, "key").transformWithState(
            Numbering(), OUTPUT, "Append", "None", uid="numbering"
        )
        writer = ckpt.write_stream(counted).format("parquet").option("path", out)
        writer = writer.option("checkpointLocation", location).options(**options)
        if restore is not None:
            writer = writer.restoreFrom(restore)
        self._query = writer.start()
        return str(self._query.id)

    def arm(self, kill_at: int) -> None:
        """From now on count the library's requests to storages; end by SIGKILL at one of them."""
        count, left = RequestCounts.add, iter(range(kill_at, -1, -1))

        def add(counts: RequestCounts, kind: str, number: int = 1) -> None:
            if next(left) == 0:
                os.killpg(0, signal.SIGKILL)  # with the JVM
            count(counts, kind, number)

        RequestCounts.add = add  # type: ignore[method-assign]

    def process(self) -> int:
        self._query.processAllAvailable()
        return int((self._query.lastProgress or {"batchId": -1})["batchId"])

    def checkpoint(self) -> str:
        return self._query.triggerCheckpoint().path

    def savepoint(self, directory: str) -> str:
        return self._query.triggerSavepoint(directory).path

    def stop(self) -> None:
        self._query.stop()

    def stop_with_savepoint(self, directory: str, drain: bool = False) -> str:
        return self._query.stopWithSavepoint(directory, drain=drain).path

    def rollback(self, location: str, to: str) -> str:
        return ckpt.location(location).rollback(to).kept

    def copy(self, source: str, target: str) -> None:
        """Copy a directory by Spark's own file system, as ``hadoop fs -cp`` does."""
        hadoop = self.spark._jvm.org.apache.hadoop.fs
        conf = self.spark._jsc.hadoopConfiguration()
        path = hadoop.Path(source)
        system = path.getFileSystem(conf)
        hadoop.FileUtil.copy(system, path, system, hadoop.Path(target), False, conf)

    def try_to_process(self) -> str | None:
        """Process what is there; return the class of the error if the query fails."""
        try:
            self._query.processAllAvailable()
        except Exception as exc:
            return type(exc).__name__
        return None

    def state(self) -> dict[str, Any]:
        failure = None if self._query.isActive else self._query.exception()
        return {
            "active": self._query.isActive,
            "epoch": int((self._query.lastProgress or {"batchId": -1})["batchId"]),
            "failure": failure and f"{type(failure).__name__}: {str(failure)[:1000]}",
        }

    def result(self, out: str) -> list[list[Any]]:
        rows = self.spark.read.schema(OUTPUT).parquet(out).collect()
        return sorted([row.key, row.n, row.total] for row in rows)


if __name__ == "__main__":
    driver = Driver(Path(sys.argv[1]), json.loads(sys.argv[2]))
    print(">", json.dumps({"done": "ready"}), flush=True)
    for line in sys.stdin:
        what, arguments, options = json.loads(line)
        print(">", json.dumps(driver.do(what, arguments, options)), flush=True)
