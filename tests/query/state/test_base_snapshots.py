"""Base snapshots are uploaded while the query runs; a worker that dies changes nothing."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt.formats.handle import CHANGES_FORMAT
from pyspark_ckpt.operator.durable import local_snapshots as snapshot_upload
from pyspark_ckpt.storage.base import FileReference
from tests.query.harness import (
    BACKEND,
    INTERVAL,
    OFTEN,
    Job,
    await_checkpoint,
    drop_local_copies,
    newest_checkpoint,
)
from tests.query.leftovers import leftovers
from tests.query.model import Reveal, events_of, expected
from tests.query.stored import handles_of, metadata_of

SOON = {
    "spark.ckpt.internal.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.internal.state.changelog.materialize.max-segments": "2",
}
KILLS = 2


class KilledWhileUploading(Reveal):
    """Once armed, workers are killed, which no handler sees, when an upload begins with a file."""

    def __init__(self, marks: Path, files: int) -> None:
        self.marks, self.files = marks, files

    def init(self, handle: Any) -> None:
        super().init(handle)
        if TaskContext.get() is None:  # on the driver, where the states are declared
            return
        if getattr(snapshot_upload, "marks", None) != self.marks:  # a worker outlives its query
            snapshot_upload.marks = self.marks
            snapshot_upload.files_until_killed = self.files
        if not hasattr(snapshot_upload, "given_path"):
            snapshot_upload.given_path = snapshot_upload.snapshot_path
            snapshot_upload.snapshot_path = path_or_death


def path_or_death(*args: Any) -> Any:
    """Stand in for ``snapshot_path``, which is called when the upload of a file begins."""
    marks = snapshot_upload.marks
    if (marks / "armed").exists() and len(list(marks.glob("killed-*"))) < KILLS:
        snapshot_upload.files_until_killed -= 1
        if snapshot_upload.files_until_killed == 0:
            (marks / f"killed-{os.getpid()}-{threading.current_thread().name}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return snapshot_upload.given_path(*args)


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["rocksdb", pytest.param("heap", marks=pytest.mark.soak)])
def test_a_worker_killed_while_it_uploads_costs_nothing_but_the_upload(
    job: Job, backend: str
) -> None:
    """Scenario 18, in the upload: exact results, and only files that the newest handles need."""
    marks = job.base / "marks"
    marks.mkdir()
    files = 2 if backend == "rocksdb" else 1
    job = job.but(processor=lambda: KilledWhileUploading(marks, files))
    job = job.using({BACKEND: backend, **OFTEN, **SOON})
    with job.running() as query:
        job.feed.add(*map(events_of, range(4)))
        query.processAllAvailable()
        await_checkpoint(query)
        (marks / "armed").touch()
        number = 4
        while len(list(marks.glob("killed-*"))) < KILLS:
            job.feed.add(events_of(number), events_of(number + 1))
            query.processAllAvailable()
            number += 2
            assert number < 100, "no upload was killed"
        job.feed.add(*map(events_of, range(number, number + 6)))
        query.processAllAvailable()
        query.triggerCheckpoint()
        newest = newest_checkpoint(query)
    assert {path.name.split("-")[2] for path in marks.glob("killed-*")} == {"pyspark_ckpt uploads"}
    assert job.result() == expected(job.feed.rows)
    handles = handles_of(newest)
    formats = {handle.base.format for handle in handles if handle.base is not None}
    assert formats == {"rocksdb" if backend == "rocksdb" else CHANGES_FORMAT}
    assert all(len(handle.segments) <= 3 * 2 for handle in handles)

    job.feed.add(*map(events_of, range(number + 6, number + 8)))
    job.run()  # another run: the one before left no upload
    drop_local_copies(job.spark)
    job.feed.add(events_of(number + 8))
    job.run()
    assert job.result() == expected(job.feed.rows)
    assert leftovers(job.checkpoint_path) == set()


class Total(StatefulProcessor):
    """Count and sum of each key."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.total.get() or (0, 0)
        for row in rows:
            n, total = n + 1, total + row.v
        self.total.update((n, total))
        yield Row(k=key[0], n=n)

    def close(self) -> None:
        pass


@pytest.mark.soak
def test_one_percent_of_two_million_keys_is_uploaded_not_all(job: Job) -> None:
    """After 1 % of the keys changed, a checkpoint uploads at most 5 % of a full one."""
    keys, rng = 2_000_000, random.Random(1)
    job = job.but(processor=Total, output="k string, n long")
    job = job.using({
        BACKEND: "rocksdb",
        INTERVAL: "1h",
        "spark.ckpt.internal.state.changelog.materialize.max-segments": "1",
    })  # fmt: skip
    job.feed.add([(f"{n:08}", n) for n in range(keys)])
    seen: dict[str, FileReference] = {}
    shares = []
    with job.running() as query:
        for _ in range(4):
            query.processAllAvailable()
            for _ in range(3):  # epochs of a few keys, which pick up what was uploaded
                job.feed.add([(f"{n:08}", n) for n in rng.sample(range(keys), 200)])
                query.processAllAvailable()
            query.triggerCheckpoint()
            files = {file.path: file for file in metadata_of(newest_checkpoint(query)).files()}
            new_bytes = sum(file.size_bytes for path, file in files.items() if path not in seen)
            shares.append(new_bytes / sum(file.size_bytes for file in files.values()))
            seen.update(files)
            job.feed.add([(f"{n:08}", n) for n in rng.sample(range(keys), keys // 100)])
        progress = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
    print("share of bytes that were new:", [f"{share:.3f}" for share in shares])
    print("epochs in ms:", progress)
    assert shares[0] == 1
    assert max(shares[1:]) <= 0.05
