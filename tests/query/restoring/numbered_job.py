"""Programs that number the rows of each key, and their queries, which are restarted in place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import (
    Job,
    completed,
)

PARTITIONS = "spark.sql.shuffle.partitions"
SOON = {
    "spark.ckpt.internal.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.internal.state.changelog.materialize.max-segments": "1",
}
NUMBERED = "k string, n long, what string"
PATIENCE_S = 120
KEYS = [f"k{number}" for number in range(20)]


class Numbered(StatefulProcessor):
    """Number the rows of each key."""

    what = "a"

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            n = (self.n.get() or (0,))[0] + 1
            self.n.update((n,))
            yield Row(k=key[0], n=n, what=self.what)

    def close(self) -> None:
        pass


class Gate:
    """A place where a thread of the test's choice waits until the test lets it pass."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Wait here, the first time and every time until the gate is opened."""
        self._reached.set()
        assert self._open.wait(PATIENCE_S)

    def await_arrival(self) -> None:
        """Wait until somebody is here."""
        assert self._reached.wait(PATIENCE_S)

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    def open(self) -> None:
        """Let everybody pass."""
        self._open.set()


class Mended(Numbered):
    what = "b"


class Other(Numbered):
    """A program whose state has another name."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("m", "n long")
        handle.deleteIfExists("n")


class Renamed(Numbered):
    """A program that does not fit the state."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n string")


def writer_of(
    job: Job, build: Callable[[], DataFrame] | None = None
) -> ckpt.CheckpointedStreamWriter:
    """Return the writer of a query that is given as a function."""
    writer = ckpt.write_stream(job.df if build is None else build)
    writer = writer.format("parquet").outputMode("append")
    writer = writer.option("path", str(job.base / job.out))
    writer = writer.option("checkpointLocation", str(job.location_path))
    for key, value in job.options.items():
        writer = writer.option(key, value)
    return writer


def batch_writer_of(
    job: Job, sink: Callable[[DataFrame, int], None]
) -> ckpt.CheckpointedStreamWriter:
    """Return the writer of a query that is given as a function, into ``foreachBatch``."""
    writer = ckpt.write_stream(job.df).outputMode("append").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(job.location_path))
    for key, value in job.options.items():
        writer = writer.option(key, value)
    return writer


def epoch_of(job: Job) -> None:
    job.feed.add([(key, 0) for key in KEYS])


def check_numbered(job: Job, epochs: int) -> None:
    """Each key has 1, 2, 3... once."""
    found = sorted((k, n) for k, n, _ in job.result())
    assert found == sorted((key, n + 1) for key in KEYS for n in range(epochs))


def subtasks_of(query: ckpt.CheckpointedQuery) -> set[int]:
    query.triggerCheckpoint()
    newest = max(completed(query), key=lambda row: row.checkpoint_id)
    return set(ckpt.location(newest.path.rpartition("/")[0]).subtask_history().query(
        f"checkpoint_id == {newest.checkpoint_id}"
    )["subtask"])  # fmt: skip
