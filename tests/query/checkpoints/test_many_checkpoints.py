"""A thousand checkpoints in a row: nothing grows, on the store, on local disk or in a process.

Files are counted after each of them, so after the fiftieth too; the oldest that is
retained and an early savepoint restore.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from pyspark_ckpt.stores.directory import IDS_OF_MARK
from tests.query.harness import (
    BACKEND,
    INLINE,
    INTERVAL,
    SAVEPOINT_DIR,
    Job,
    completed,
    digests,
    drop_local_copies,
    files_below,
)
from tests.query.leftovers import leftovers
from tests.query.model import Count, counted, counted_after, events_of, sequences

RETAINED = 3
ROWS = 6
PADDING_BYTES = 80_000  # so that base snapshots take the place of changes
MIB = 1 << 20
MOST_SLACK = 20
SLACK = ("files on the store", "local files")
SEGMENTS = "spark.ckpt.internal.state.changelog.materialize.max-segments"


class Padded(Count):
    """Count with so much state for each key that base snapshots replace the changes."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.padding = handle.getValueState("padding", "bytes binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        self.padding.update((os.urandom(PADDING_BYTES),))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("backend", "checkpoints"),
    [
        ("rocksdb", 45),
        pytest.param("rocksdb", 1000, marks=pytest.mark.soak),
        pytest.param("heap", 1000, marks=pytest.mark.soak),
    ],
)
def test_nothing_grows_with_the_checkpoints(job: Job, backend: str, checkpoints: int) -> None:
    """The numbers of files, bytes, file descriptors and threads, and the memory, do not grow."""
    drop_local_copies(job.spark)  # of other tests
    savepoints = job.base / "savepoints"
    job = job.but(processor=Padded, output="k string, n long")
    job = job.using({BACKEND: backend, INLINE: "0b", INTERVAL: "1h", SEGMENTS: "2"})
    job = job.using({SAVEPOINT_DIR: savepoints})
    use: list[dict[str, int]] = []
    with job.running() as query:
        for number in range(checkpoints):
            job.feed.add(events_of(number, ROWS))
            query.processAllAvailable()
            assert query.triggerCheckpoint().epoch == number
            if number == 2:
                savepoint = query.triggerSavepoint()
                digests_of_savepoint = digests(savepoints)
            use.append(files_and_bytes(job))
            assert leftovers(job.checkpoint_path) == set()
            if number % 8 == 0:
                use[-1].update(resources(job.spark))
        retained = completed(query)
    marks = list((job.checkpoint_path / "drivers").iterdir())  # which stay for ever
    assert len(marks) <= checkpoints // IDS_OF_MARK + 2
    assert [row.epoch for row in retained] == list(range(checkpoints - RETAINED, checkpoints))
    assert sequences(job.result()) == counted(job.feed.rows)
    check_flat(use)
    assert digests(savepoints) == digests_of_savepoint
    check_sources(job, savepoint, min(retained, key=lambda row: row.epoch))


IDLE_FROM = 2


def busy_and_idle(job: Job) -> DataFrame:
    """Three operators of the same input: two are busy, the third gets its last rows early."""
    rows = job.stream()
    early = rows.filter(F.col("v") < IDLE_FROM * ROWS)
    results = []
    for uid, df in {"busy": rows, "as busy": rows, "idle": early}.items():
        keyed = ckpt.key_by(df.withColumn("k", F.concat(F.lit(f"{uid} "), "k")), "k")
        results.append(keyed.transformWithState(Padded(), job.output, "Append", "None", uid=uid))
    return reduce(DataFrame.union, results)


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["heap", pytest.param("rocksdb", marks=pytest.mark.soak)])
def test_idle_operators_keep_no_files_of_others(job: Job, backend: str) -> None:
    """As many files are left with an idle operator as its own and the busy ones' need."""
    epochs = 24
    job = job.but(plan=busy_and_idle, output="k string, n long")
    job = job.using({BACKEND: backend, INLINE: "0b", INTERVAL: "1h", SEGMENTS: "2"})
    counts = []
    with job.running() as query:
        for number in range(epochs):
            job.feed.add(events_of(number, ROWS))
            query.processAllAvailable()
            assert query.triggerCheckpoint().epoch == number
            assert leftovers(job.checkpoint_path) == set()
            counts.append(len(data_files(job)))
    print("data files after each epoch:", counts)
    assert max(counts[2 * epochs // 3 :]) <= 1.3 * max(counts[epochs // 3 : 2 * epochs // 3])
    rows = job.feed.rows
    expected = [(f"{uid} {k}", v) for uid in ("busy", "as busy") for k, v in rows]
    expected += [(f"idle {k}", v) for k, v in rows if v < IDLE_FROM * ROWS]
    assert sequences(job.result()) == counted(expected)


def data_files(job: Job) -> list[Path]:
    """Segments and files of base snapshots; there are as many source logs as epochs."""
    stored = [*files_below(job.checkpoint_path / "shared")]
    stored += files_below(job.checkpoint_path / "taskowned")
    return [file for file in stored if not file.name.startswith("source-")]


def check_sources(job: Job, *sources: Any) -> None:
    """Run a fork from each savepoint or checkpoint, to the end of the input and one file more."""
    job.feed.add(events_of(job.feed.files, ROWS))
    job.feed.files_per_epoch = 1000
    for source in sources:
        fork = job.but(location=f"loc-{source.epoch}", out=f"out-{source.epoch}")
        fork.run(restore=source.path)
        rest = counted_after(job.feed.rows, (source.epoch + 1) * ROWS)
        assert sequences(fork.result()) == rest, source.path


def files_and_bytes(job: Job) -> dict[str, int]:
    """Return what is on disk after a checkpoint has been completed and cleaned up."""
    # Marks of ids are counted at the end, and notes on the run have their own bound.
    others = {job.checkpoint_path / "drivers", job.checkpoint_path / "history" / "runs"}
    stored = [file for file in files_below(job.checkpoint_path) if file.parent not in others]
    local = [
        file
        for directory in Path(job.spark.conf.get("spark.local.dir")).rglob("pyspark_ckpt")
        for file in files_below(directory)
    ]
    return {
        "files on the store": len(stored),
        "bytes on the store": sum(size_of(file) for file in stored),
        "local files": len(local),
        "local bytes": sum(size_of(file) for file in local),
    }


def resources(spark: SparkSession) -> dict[str, int]:
    """Return the resources that the processes use."""
    jvm = jvm_of(spark)
    workers = {*jvm.children(recursive=True)} - {*jvm.children()}  # the children of the daemon
    use = {**used_by("driver", [psutil.Process()]), **used_by("workers", workers)}
    return {
        **use,
        "file descriptors of jvm": jvm.num_fds(),
        "threads of jvm": jvm.num_threads(),
        "memory of jvm": heap_of_jvm(spark),
    }


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # just replaced by an upload in the background
        return 0


def jvm_of(spark: SparkSession) -> psutil.Process:
    return psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())


def used_by(name: str, processes: Iterable[psutil.Process]) -> dict[str, int]:
    """Return the most that one of the processes uses."""
    found: dict[str, int] = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # Spark ends idle workers
            descriptors, sockets = descriptors_of(process)
            for what, n in (
                ("file descriptors", descriptors),
                ("sockets", sockets),
                ("threads", process.num_threads()),
                ("memory", process.memory_info().rss),
            ):
                key = f"{what} of {name}"
                found[key] = max(n, found.get(key, 0))
    return found


def descriptors_of(process: psutil.Process) -> tuple[int, int]:
    """Return the number of open file descriptors without sockets, and of sockets.

    Py4J opens a socket whenever two threads call Java at once, so their number depends on timing.
    """
    sockets = others = 0
    with suppress(FileNotFoundError):  # the process has ended
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # just closed
                if str(descriptor.readlink()).startswith("socket:"):
                    sockets += 1
                else:
                    others += 1
    return others, sockets


def heap_of_jvm(spark: SparkSession) -> int:
    """Return the bytes of objects in use; the memory of the process never shrinks."""
    spark._jvm.java.lang.System.gc()
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    return runtime.totalMemory() - runtime.freeMemory()


def check_flat(use: Sequence[dict[str, int]]) -> None:
    """Compare the maxima of the second and the last third; the first third warms up.

    What is counted exactly in the workers must not rise at all. RocksDB compacts, the JVM's pools
    fill, Py4J opens sockets and earlier tests end threads of the driver when they like to: a file,
    thread or socket left by every checkpoint is more than their slack in a third of a run.
    """
    third = len(use) // 3
    slack = min(MOST_SLACK, 2 * third // 3)
    for what in sorted({what for each in use for what in each}):
        before = max(each[what] for each in use[third : 2 * third] if what in each)
        after = max(each[what] for each in use[2 * third :] if what in each)
        print(f"{what}: {before}, then {after}")
        if "bytes" in what:
            assert after <= 1.5 * before + MIB, what
        elif "memory" in what:
            assert after <= 1.2 * before + 16 * MIB, what
        elif what.endswith((" jvm", " driver")) or "sockets" in what or what in SLACK:
            assert after <= before + slack, what
        else:
            assert after <= before, what
