"""A driver that restores the golden savepoint and may kill itself at one of its file operations.

``python restoring_program.py DIRECTORY SAVEPOINT PARALLELISM KILL_AT``: restores below DIRECTORY,
or continues there if the restore is complete. At operation KILL_AT on files below DIRECTORY it
kills itself. With -1 it processes the next input and compares the query's output with the golden
data's model.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.faults.disk import Disk
from tests.golden import comparing, program
from tests.golden.continuing import expected_of, run
from tests.golden.program import Sink

OPTIONS = {"spark.ckpt.state.backend.type": "rocksdb"}


class _Killing(list[str]):
    """Kills this process after a number of noted operations."""

    def __init__(self, kill_at: int) -> None:
        self._kill_at = kill_at

    def append(self, operation: str) -> None:
        if len(self) == self._kill_at:
            print(f"killed at {len(self)}: {operation}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        super().append(operation)


def main(base: Path, savepoint: Path, parallelism: int, kill_at: int) -> None:
    cloudpickle.register_pickle_by_value(program)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", parallelism)
        .config("spark.local.dir", str(base.parent / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    location = base / "location"
    if kill_at < 0:
        _finish(spark, base, location, savepoint, parallelism)
    else:
        for name in ("rows", "rules"):
            (base / name).mkdir(parents=True, exist_ok=True)
        disk = Disk(base)
        disk.done = _Killing(kill_at)
        with disk.watched():
            writer = program.writer(spark, base, location, Sink(), OPTIONS)
            query = writer.restoreFrom(str(savepoint)).start()
            print(f"operations: {len(disk.done)}", flush=True)
        query.stop()
    spark.stop()


def _finish(
    spark: SparkSession, base: Path, location: Path, savepoint: Path, parallelism: int
) -> None:
    expected: Any = expected_of(savepoint.parent)
    sink = run(spark, base, location, expected, OPTIONS, savepoint)
    told, counted = expected[f"told_by_{parallelism}"], expected["counted"]
    if parallelism == 2:
        comparing.check(sink, told, counted)
    else:
        comparing.check_rescaled(sink, told, counted, set(expected["dealt"]))
    print("all is well", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
