"""Count the modules of the library that a row, a checkpoint and a restore enter, in real runs.

A row is counted in an epoch of the test harness, which runs the engine of the executors. A
checkpoint and a restore are counted on the driver of a local Spark query::

    python -m tools.count_modules          # --names lists the modules
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import pyspark_ckpt as ckpt
from pyspark_ckpt.testing import ProcessorHarness

ROOT = str(Path(ckpt.__file__).parent)
FEW, MANY = 10, 1010
"""Rows of two epochs: what is called once more for each further row belongs to a row."""


class Calls:
    """Calls of functions of the library by module, in all threads that start under it."""

    def __init__(self) -> None:
        self.by_module: Counter[str] = Counter()
        self.stays = 0
        """How often a call goes from one module into another one."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count one event, as ``sys.setprofile`` gives it."""
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(ROOT):
            return
        self.by_module[name[len(ROOT) + 1 :]] += 1
        caller = frame.f_back
        if caller is None or caller.f_code.co_filename != name:
            self.stays += 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in this thread, and in those that start in the meantime."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


class Count(StatefulProcessor):
    """Counts the rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ask for the state."""
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Yield the new count."""
        (count,) = self._count.get() or (0,)
        count += sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(user=key[0], n=count)

    def close(self) -> None:
        """Do nothing."""


def of_a_row() -> dict[str, Calls]:
    """Return the calls of an epoch of one row, and those that each further row adds."""
    one, few, many = (_of_an_epoch(rows) for rows in (1, FEW, MANY))
    row = Calls()
    row.stays = (many.stays - few.stays) // (MANY - FEW)
    for name, calls in many.by_module.items():
        row.by_module[name] = (calls - few.by_module[name]) // (MANY - FEW)
    row.by_module = +row.by_module  # without zeros
    return {"an epoch of one row, in the harness": one, "of it, once more for each row": row}


def _of_an_epoch(rows: int) -> Calls:
    """Return the calls of an epoch that has a row for each of so many keys."""
    harness = ProcessorHarness(Count(), outputStructType="user string, n long")
    harness.test("ada", [Row(city="Oslo")])
    calls = Calls()
    with calls.counting():
        harness.testMany({str(key): [Row(city="Rome")] for key in range(rows)})
    return calls


def of_a_query() -> dict[str, Calls]:
    """Return the calls of a checkpoint and of a restore, on a driver."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    checkpoint, restore = Calls(), Calls()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "input").mkdir()
        (directory / "input" / "1.json").write_text('{"user": "ada"}\n', encoding="utf-8")

        def start(location: str, restore_from: str | None = None) -> ckpt.CheckpointedQuery:
            events = spark.readStream.schema("user string").json(str(directory / "input"))
            counts = ckpt.key_by(events, "user").transformWithState(
                Count(), "user string, n long", "Update", "None", uid="count"
            )
            writer = (
                ckpt.write_stream(counts)
                .outputMode("update")
                .format("noop")
                .option("checkpointLocation", str(directory / location))
            )
            if restore_from is not None:
                writer.restoreFrom(restore_from)
            return writer.start()

        first = start("first")
        first.processAllAvailable()
        with checkpoint.counting():
            path = first.triggerCheckpoint().path
        first.stop()
        with restore.counting():
            second = start("second", path)
        second.stop()
    spark.stop()
    return {"a checkpoint, in the caller's thread": checkpoint, "a restore": restore}


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="list the modules")
    arguments = parser.parse_args()
    for what, calls in {**of_a_row(), **of_a_query()}.items():
        modules = len(calls.by_module)
        print(f"{what}: {modules} modules, {calls.stays} calls from one to another")  # noqa: T201
        if arguments.names:
            for module, number in calls.by_module.most_common():
                print(f"    {number:6} {module}")  # noqa: T201


if __name__ == "__main__":
    main()
