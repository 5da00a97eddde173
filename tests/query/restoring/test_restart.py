"""A query that is stopped and started again gives what an uninterrupted run gives."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.query.harness import (
    BACKEND,
    BACKENDS,
    INTERVAL,
    OFTEN,
    Job,
    await_progress,
    drop_local_copies,
)
from tests.query.model import OUTPUT, counted, events_of, expected, in_order, sequences


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.everywhere
@pytest.mark.parametrize("backend", BACKENDS)
def test_stopped_between_epochs(job: Job, backend: str) -> None:
    """Restarts after every few files change neither output nor state."""
    job = job.using({BACKEND: backend})
    for first in range(0, 6, 2):
        job.feed.add(*map(events_of, range(first, first + 2)))
        job.run()
    whole = job.but(location="loc2", out="out2")
    whole.run()
    assert job.result() == whole.result() == expected(job.feed.rows)
    assert sequences(job.result()) == counted(job.feed.rows)


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("interval", ["100ms", "1h"])
def test_stopped_in_the_middle(job: Job, interval: str) -> None:
    """A stop at any point of an epoch, with or without recent checkpoints, loses nothing."""
    job = job.using({INTERVAL: interval})
    job.feed.add(*map(events_of, range(7)))
    for epoch in (1, 3, 5):
        with job.running() as query:
            await_progress(query, epoch)
    job.run()
    assert job.result() == expected(job.feed.rows)


@pytest.mark.slow
@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark's class has another name in 4.0")
def test_the_offsets_of_the_first_epoch_were_interrupted(job: Job) -> None:
    """A driver ended while it wrote them: Spark 4.3 alone refuses to begin next to what is left."""
    job.start().stop()  # there is no row, so it ends before its first epoch
    offsets = job.location_path / "offsets"
    hadoop = job.spark._jsparkSession.sessionState().newHadoopConf()
    jvm = job.spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"file:{offsets}/0")
    files = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    stream = files.create(path.getParent(), hadoop).createAtomic(path, False)
    stream.write(ord("v"))
    stream.hflush()
    left = {file.name for file in offsets.iterdir()}
    assert any(name.endswith(".tmp") for name in left)
    job.feed.add(events_of(0))
    job.run()
    assert job.result() == expected(job.feed.rows)
    assert not left & {file.name for file in offsets.iterdir()}


@pytest.mark.slow
def test_a_strangers_file_beside_no_offsets_is_kept(job: Job) -> None:
    job.start().stop()
    strange = job.location_path / "offsets" / ".0.tmp"
    strange.touch()
    job.start().stop()
    assert strange.exists()


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("backend", "local_copy"),
    [
        ("rocksdb", "lost"),
        ("heap", "kept"),
        pytest.param("rocksdb", "kept", marks=pytest.mark.soak),
        pytest.param("heap", "lost", marks=pytest.mark.soak),
    ],
)
def test_epoch_that_failed_in_the_sink_runs_again(job: Job, backend: str, local_copy: str) -> None:
    """What an epoch did to the state before it failed is undone before it runs again."""
    collected: list[tuple] = []
    failures = [1, 4]

    def sink(batch: DataFrame, epoch: int) -> None:
        rows = batch.collect()
        if epoch in failures:
            failures.remove(epoch)
            raise RuntimeError("the sink is down")
        collected.extend(rows)

    job = job.using({BACKEND: backend, **OFTEN})
    job.feed.add(*map(events_of, range(6)))
    for _ in range(2):
        query = job.writer().foreachBatch(sink).trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match="the sink is down"):
            query.awaitTermination()
        if local_copy == "lost":
            assert drop_local_copies(job.spark)
    query = job.writer().foreachBatch(sink).trigger(availableNow=True).start()
    query.awaitTermination()
    assert not failures
    assert in_order(collected) == expected(job.feed.rows)


@pytest.mark.slow
@pytest.mark.everywhere
def test_local_copies_lost_between_runs(job: Job) -> None:
    """The checkpoint location alone has everything that a restart needs."""
    for epoch in range(4):
        job.feed.add(events_of(epoch))
        job.run()
        assert drop_local_copies(job.spark)
    assert job.result() == expected(job.feed.rows)


@pytest.mark.soak
@pytest.mark.everywhere
def test_foreach_batch_with_two_actions(job: Job) -> None:
    """Scenario 15: two actions on one batch apply the batch to the state once."""
    collected: list[tuple] = []
    counts: list[int] = []
    target = str(job.base / "written")

    def sink(batch: DataFrame, epoch: int) -> None:
        counts.append(batch.count())
        collected.extend(batch.collect())
        batch.write.mode("append").parquet(target)

    job.feed.add(*map(events_of, range(3)))
    job.writer().foreachBatch(sink).trigger(availableNow=True).start().awaitTermination()
    job.feed.add(*map(events_of, range(3, 5)))
    job.writer().foreachBatch(sink).trigger(availableNow=True).start().awaitTermination()
    assert in_order(collected) == expected(job.feed.rows)
    assert in_order(job.spark.read.schema(OUTPUT).parquet(target).collect()) == in_order(collected)
    assert sum(counts) == len(collected)


def test_sparks_file_source_may_take_two_files_after_a_stop(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without this library: one that ends between the source's log and the offsets' log.

    The source has noted a file that no epoch has taken. The next epoch takes it, and one more in
    spite of ``maxFilesPerTrigger``. So rows may come out in another order than in a run without a
    stop, and tests that end drivers at any moment do not compare the order.
    """
    source, location = tmp_path / "in", tmp_path / "location"
    source.mkdir()
    files: dict[int, list[int]] = {}

    def note(batch: DataFrame, epoch: int) -> None:
        files[epoch] = sorted(row.n for row in batch.collect())

    def run() -> None:
        stream = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
        writer = stream.parquet(str(source)).writeStream.foreachBatch(note)
        writer = writer.option("checkpointLocation", str(location)).trigger(availableNow=True)
        writer.start().awaitTermination()

    def add(n: int) -> None:
        path = source / f"{n}.parquet"
        pd.DataFrame({"n": [n]}).to_parquet(path)
        os.utime(path, (1_700_000_000 + 10 * n,) * 2)

    for n in (1, 2):
        add(n)
    run()
    (last,) = (epoch for epoch, rows in files.items() if rows == [2])
    for log in ("offsets", "commits"):
        for path in (location / log).glob(f"*{last}*"):
            path.unlink()
    add(3)
    run()
    assert files[last] == [2, 3]
