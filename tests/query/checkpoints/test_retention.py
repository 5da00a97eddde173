"""Old checkpoints are deleted, but no file that anything retained still needs."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from tests.query.harness import (
    BACKEND,
    OFTEN,
    SAVEPOINT_DIR,
    Job,
    await_checkpoint,
    completed,
    digests,
    drop_local_copies,
    files_below,
)
from tests.query.model import Count, counted, counted_after, events_of, sequences

ROWS = 6


class Padded(Count):
    """Count with so much state for each key that images of all of it replace the changes."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, padding binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, padding = self.count.get() or (0, b"")
        assert padding == random.Random(n).randbytes(len(padding))
        for _ in rows:
            n += 1
            yield Row(k=key[0], n=n)
        self.count.update((n, random.Random(n).randbytes(80_000)))


def data_files(job: Job) -> set[str]:
    """Names of the data files in the checkpoints directory."""
    shared, owned = job.checkpoint_path / "shared", job.checkpoint_path / "taskowned"
    return {p.name for p in [*files_below(shared), *files_below(owned)]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "checkpoints"),
    [
        pytest.param("rocksdb", 50, marks=pytest.mark.soak),  # as test_many_checkpoints does
        ("heap", 20),
    ],
    ids=["rocksdb", "heap"],
)
def test_files_are_deleted_when_nothing_needs_them(
    job: Job, backend: str, checkpoints: int
) -> None:
    """After many checkpoints, all retained ones and an early savepoint restore; few files stay."""
    savepoints = job.base / "savepoints"
    job = job.but(processor=Padded, output="k string, n long")
    job = job.using({BACKEND: backend, SAVEPOINT_DIR: savepoints, **OFTEN})
    seen: set[str] = set()
    epoch = newest = 0
    with job.running() as query:
        while newest < checkpoints:
            job.feed.add(events_of(epoch, ROWS))
            query.processAllAvailable()
            newest = await_checkpoint(query, epoch).checkpoint_id
            if epoch == 2:
                savepoint = query.triggerSavepoint()
                digests_of_savepoint = digests(savepoints)
            seen |= data_files(job)
            epoch += 1
    retained = completed(query)
    directories = {p.name for p in job.checkpoint_path.glob("chk-*")}
    assert directories == {f"chk-{n}" for n in range(newest - 2, newest + 1)}
    assert sorted(r.checkpoint_id for r in retained) == list(range(newest - 2, newest + 1))
    assert {r.path for r in retained} == {str(job.checkpoint_path / d) for d in directories}
    left = data_files(job)
    assert max(r.files for r in retained) <= len(left) + 1  # its _metadata is elsewhere
    assert len(left) <= sum(r.files - 1 for r in retained)
    assert len(seen) > 1.5 * len(left)
    assert digests(savepoints) == digests_of_savepoint

    job.feed.add(events_of(epoch, ROWS))
    job.feed.files_per_epoch = 1000
    sources = [(savepoint.epoch, Path(savepoint.path))]
    sources += [(r.epoch, Path(r.path)) for r in retained]
    before = digests(savepoints, job.checkpoint_path)  # Spark may still write to its own state
    for from_epoch, path in sources:
        fork = job.but(location=f"loc-{path.name}", out=f"out-{path.name}")
        fork.run(restore=path)
        assert sequences(fork.result()) == counted_after(job.feed.rows, (from_epoch + 1) * ROWS), (
            path
        )
        shutil.rmtree(fork.location_path)
        shutil.rmtree(fork.base / fork.out)
    assert digests(savepoints, job.checkpoint_path) == before
    drop_local_copies(job.spark)
    job.run()
    assert sequences(job.result()) == counted(job.feed.rows)


@pytest.mark.slow
def test_local_copies_of_an_ended_query_go_while_another_one_runs(job: Job) -> None:
    """Copies that no task opened for a day are removed; the running query's copies stay."""
    drop_local_copies(job.spark)  # of other tests
    job = job.but(processor=Count, output="k string, n long").using({BACKEND: "rocksdb"})
    job.feed.add(events_of(0, ROWS))
    ended = job.run()
    copies = list(Path(job.spark.conf.get("spark.local.dir")).rglob(f"pyspark_ckpt/{ended.id}"))
    assert copies
    for path in copies:
        for lock in [*path.rglob("lock"), path.parent / "looked"]:
            os.utime(lock, (0, 0))
    other = job.but(location="loc2", out="out2")
    with other.running() as query:
        query.processAllAvailable()
        assert not any(path.exists() for path in copies)
        assert all((path.parent / query.id).is_dir() for path in copies)
    job.feed.add(events_of(1, ROWS))
    job.run()  # the ended one comes back
    assert sequences(job.result()) == counted(job.feed.rows)
