"""What tests of whole queries share: input files, ways to run queries and to read output."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.history.records import CompletedCheckpoint
from tests.query.model import OUTPUT, Reveal, in_order
from tests.query.place import RemotePath
from tests.query.session_conf import session_conf

BACKEND = "spark.ckpt.state.backend.type"
INTERVAL = "spark.ckpt.execution.checkpointing.interval"
CHECKPOINT_DIR = "spark.ckpt.execution.checkpointing.dir"
SAVEPOINT_DIR = "spark.ckpt.execution.checkpointing.savepoint-dir"
RETAINED = "spark.ckpt.execution.checkpointing.num-retained"
PAUSE = "spark.ckpt.execution.checkpointing.min-pause"
TIMEOUT = "spark.ckpt.execution.checkpointing.timeout"
TOLERABLE = "spark.ckpt.execution.checkpointing.tolerable-failed-checkpoints"
RETENTION = "spark.ckpt.execution.checkpointing.externalized-checkpoint-retention"
INLINE = "spark.ckpt.internal.execution.checkpointing.data-inline-threshold"
HAND_OVER = "spark.ckpt.internal.execution.hand-over"
BACKENDS = ("rocksdb", "heap")
OFTEN = {INTERVAL: "100ms", INLINE: "0b"}  # many checkpoints, and separate files for all state
DEADLINE = 60.0

EVENT = pa.schema([("k", pa.string()), ("v", pa.int64())])


class Feed:
    """A directory of Parquet files that Spark's file source takes one by one, in order."""

    def __init__(self, path: Path, schema: pa.Schema = EVENT, ddl: str = "k string, v long"):
        self.path, self.schema, self.ddl = path, schema, ddl
        self.files, self.files_per_epoch = 0, 1
        self.rows: list[Any] = []
        path.mkdir(parents=True)

    def add(self, *files: Sequence[Sequence[Any]]) -> Feed:
        """Add files, each at once and younger than all before it."""
        for rows in files:
            columns = list(zip(*rows, strict=True)) or [[] for _ in self.schema]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
            hidden = self.path / f".{self.files}.tmp"
            pq.write_table(pa.Table.from_arrays(arrays, schema=self.schema), hidden)
            os.utime(hidden, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
            hidden.rename(self.path / f"f{self.files:05}.parquet")
            self.files += 1
            self.rows += [tuple(r) for r in rows]
        return self

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self.ddl)
        reader = reader.option("maxFilesPerTrigger", self.files_per_epoch)
        return reader.parquet(str(self.path))


@dataclass(frozen=True)
class Job:
    """One program: a feed, one keyed operator and a Parquet sink below `base`."""

    spark: SparkSession
    base: Path
    feed: Feed
    processor: Callable[[], StatefulProcessor] = Reveal
    output: str = OUTPUT
    uid: str | None = "op"
    keys: tuple[str, ...] = ("k",)
    location: str = "loc"
    out: str = "out"
    options: Mapping[str, Any] = field(default_factory=dict)
    time_mode: str = "None"
    watermark: str | None = None
    method: str = "transformWithState"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    plan: Callable[[Job], DataFrame] | None = None
    """Builds a query of another shape."""
    place: RemotePath | None = None
    """Where locations are, by default below `base`."""

    def but(self, **changes: Any) -> Job:
        return replace(self, **changes)

    def using(self, options: Mapping[str, Any] | None = None, **more: Any) -> Job:
        return self.but(options={**self.options, **(options or {}), **more})

    @property
    def location_path(self) -> Path:
        """The location; tests that are marked as `everywhere` use it as a `RemotePath`."""
        return cast("Path", (self.place or self.base) / self.location)

    @property
    def checkpoint_path(self) -> Path:
        return self.location_path / "pyspark_ckpt"

    def stream(self) -> DataFrame:
        df = self.feed.stream(self.spark)
        return df if self.watermark is None else df.withWatermark(self.watermark, "0 seconds")

    def df(self) -> DataFrame:
        if self.plan is not None:
            return self.plan(self)
        return self.process(ckpt.key_by(self.stream(), *self.keys))

    def process(self, keyed: ckpt.KeyedStream) -> DataFrame:
        """Run the job's processor over a keyed stream, as its fields say."""
        call = getattr(keyed, self.method)
        arguments = {"uid": self.uid, **self.arguments}
        return call(self.processor(), self.output, "Append", self.time_mode, **arguments)

    def writer(self, restore: str | Path | None = None) -> ckpt.CheckpointedStreamWriter:
        options = dict(self.options)
        of_plan = {HAND_OVER: options.pop(HAND_OVER)} if HAND_OVER in options else {}
        with session_conf(self.spark, of_plan):
            df = self.df()
        writer = ckpt.write_stream(df).format("parquet").outputMode("append")
        writer = writer.option("path", str(self.base / self.out))
        writer = writer.option("checkpointLocation", str(self.location_path))
        for key, value in options.items():
            writer = writer.option(key, value)
        return writer if restore is None else writer.restoreFrom(str(restore))

    def start(self, restore: str | Path | None = None) -> ckpt.CheckpointedQuery:
        return self.writer(restore).start()

    @contextmanager
    def running(self, restore: str | Path | None = None) -> Iterator[ckpt.CheckpointedQuery]:
        query = self.start(restore)
        try:
            yield query
        finally:
            query.stop()

    def run(self, restore: str | Path | None = None) -> ckpt.CheckpointedQuery:
        """Process all available input, then end."""
        query = self.writer(restore).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def result(self) -> list[Any]:
        """Read the sink back, sorted; nothing if no epoch was committed."""
        path = self.base / self.out
        if not (path / "_spark_metadata").exists():  # files without it are of failed tasks
            return []
        return in_order(self.spark.read.schema(self.output).parquet(str(path)).collect())

    def forget_location(self) -> None:
        if self.place is None:
            shutil.rmtree(self.location_path)
        else:
            (self.place / self.location).remove()


def run_in_pyspark(job: Job) -> DataFrame:
    """Run the job's processor with PySpark's own transformWithState and return the output."""
    conf, provider = job.spark.conf, "spark.sql.streaming.stateStore.providerClass"
    before = conf.get(provider)
    conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        keyed = job.feed.stream(job.spark).groupBy(*job.keys)
        df = keyed.transformWithState(job.processor(), job.output, "Append", "None")
        writer = df.writeStream.outputMode("append").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(job.base / "loc-pyspark"))
        writer.start(str(job.base / "out-pyspark"), "parquet").awaitTermination()
    finally:
        conf.set(provider, before)
    return job.spark.read.schema(job.output).parquet(str(job.base / "out-pyspark"))


def completed(query: ckpt.CheckpointedQuery, kind: str = "checkpoint") -> list[Row]:
    rows = query.checkpoints().collect()
    return [r for r in rows if r.status == "completed" and r.kind == kind]


def until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def await_progress(query: ckpt.CheckpointedQuery, epoch: int) -> None:
    """Wait until the epoch is over, however far the query is by then."""
    deadline = time.monotonic() + DEADLINE
    while query.isActive and time.monotonic() < deadline:
        if (query.lastProgress or {}).get("batchId", -1) >= epoch:
            return
        time.sleep(0.02)
    msg = f"epoch {epoch} never ended: {query.lastProgress}"
    raise AssertionError(msg)


class _Awaited(ckpt.CheckpointListener):
    """A listener that waits for a checkpoint of an epoch or a later one."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.came = epoch, threading.Event()

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        if checkpoint.epoch >= self.epoch:
            self.came.set()


def await_checkpoint(query: ckpt.CheckpointedQuery, epoch: int = 0) -> Row:
    """Wait until a checkpoint of this epoch or a later one is completed; return the newest."""
    awaited = _Awaited(epoch)
    query.addCheckpointListener(awaited)
    try:
        if all(row.epoch < epoch for row in completed(query)):
            awaited.came.wait(DEADLINE)
        found = [row for row in completed(query) if row.epoch >= epoch]
        assert found, f"no checkpoint of epoch {epoch} or later: {query.checkpoints().collect()}"
        return max(found, key=lambda row: row.checkpoint_id)
    finally:
        query.removeCheckpointListener(awaited)


def await_rows(query: ckpt.CheckpointedQuery, job: Job, rows: int) -> list[Any]:
    """Wait until the sink has this many rows; return them all."""
    deadline = time.monotonic() + DEADLINE
    log = job.base / job.out / "_spark_metadata"
    seen = -1
    while query.isActive and time.monotonic() < deadline:
        epochs = len(list(log.glob("[0-9]*"))) if log.exists() else 0
        if epochs > seen:  # to read it takes longer than an epoch
            seen = epochs
            found = job.result()
            if len(found) >= rows:
                return found
        time.sleep(0.02)
    msg = f"{rows} rows never came, there are {job.result()}"
    raise AssertionError(msg) from query.exception()


def newest_checkpoint(query: ckpt.CheckpointedQuery) -> str:
    """Return the path of the last completed checkpoint."""
    return max(completed(query), key=lambda row: row.checkpoint_id).path


def files_below(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.exists() else []


def digests(*paths: Path) -> dict[str, str]:
    """Return the digest of each file below the paths, to see whether anything changed.

    Snapshots that Spark makes of its state in the background are left out.
    """
    return {
        str(f): hashlib.sha256(f.read_bytes()).hexdigest()
        for p in paths
        for f in files_below(p)
        if f.suffix != ".snapshot" or not f.with_suffix(".delta").exists()
    }


def gist(error: BaseException) -> str:
    """Return the error's text without the Python traceback and the plan that Spark adds."""
    lines = str(error).split("=== Streaming Query ===")[0].splitlines()
    text = "\n".join(line for line in lines if not line.startswith("  "))
    return f"{type(error).__name__}: {text}"


@contextmanager
def refused(
    error: type[BaseException], *mentions: object, unchanged: Path
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect an error that mentions all of this, and that nothing below a path was touched."""
    before = digests(unchanged)
    with pytest.raises(error) as caught:
        yield caught
    print(gist(caught.value))
    for text in mentions:
        assert str(text).lower() in str(caught.value).lower()
    changed = {path for path, _ in digests(unchanged).items() ^ before.items()}
    assert not changed


def flip_bit(path: Path, position: int = -1) -> None:
    """Change one bit of the byte at a position, by default the one in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position < 0 else position] ^= 0x10
    path.write_bytes(data)


def drop_local_copies(spark: SparkSession) -> int:
    """Delete the state that executors keep on local disk; return how many there were."""
    found = list(Path(spark.conf.get("spark.local.dir")).rglob("pyspark_ckpt"))
    for path in found:
        # A worker may still upload from it; then a file can appear while it is deleted.
        until(lambda each=path: _is_deleted(each), f"{path} stays")
    return len(found)


def _is_deleted(path: Path) -> bool:
    with suppress(OSError):
        shutil.rmtree(path)
    return not path.exists()
