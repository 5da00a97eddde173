"""Scenario 1 for a restore: any operation of the driver fails, and the next try succeeds."""

from __future__ import annotations

import os
import random
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.restore import rescale
from pyspark_ckpt.storage.open import Storage
from tests.faults.disk import Disk
from tests.golden import archives, comparing, program
from tests.golden.continuing import expected_of, run
from tests.golden.program import Sink
from tests.query.harness import BACKEND, Job, digests, refused
from tests.query.model import events_of, expected_after
from tests.query.session_conf import session_conf

ALL = 10_000


class Restores:
    """Restores of one savepoint into a fresh location each."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark, self.base = spark, base
        self.savepoint = shutil.copytree(archives.newest("heap") / "native", base / "savepoint")
        self.expected = expected_of(archives.newest("heap"))
        self.options = {BACKEND: "heap"}

    def start(self, below: Path, *, restore: bool = True) -> Any:
        writer = program.writer(self.spark, below, below / "location", Sink(), self.options)
        return (writer.restoreFrom(str(self.savepoint)) if restore else writer).start()

    def with_a_fault(self, number: int | None) -> tuple[list[str], BaseException | None]:
        """Restore while one operation fails; return all operations, and what was raised."""
        below = self.base / f"{number}"
        for name in ("rows", "rules"):
            (below / name).mkdir(parents=True)
        disk = Disk(below)
        disk.fails_at = number
        with disk.watched():
            try:
                query = self.start(below)
            except Exception as exc:
                return disk.done, exc
            done = disk.done[:]
            query.stop()
        return done, None

    def succeed(self, number: int, parallelism: int) -> None:
        """Restore there again, or continue, and process the next input."""
        below = self.base / f"{number}"
        has_started = (below / "location" / "commits").exists()
        has_started &= not is_unfinished(below / "location")
        restore = None if has_started else self.savepoint
        parallelism = 2 if has_started else parallelism
        with session_conf(self.spark, {"spark.sql.shuffle.partitions": str(parallelism)}):
            sink = run(self.spark, below, below / "location", self.expected, self.options, restore)
        told, counted = self.expected[f"told_by_{parallelism}"], self.expected["counted"]
        if parallelism == 2:
            comparing.check(sink, told, counted)
        else:
            comparing.check_rescaled(sink, told, counted, set(self.expected["dealt"]))


def is_unfinished(location: Path) -> bool:
    """Return whether a restore has changed a location and not written its end."""
    numbers = [int(path.name) for path in location.glob("_seedings/*") if path.name.isdigit()]
    newest = location / "_seedings" / str(max(numbers, default=0))
    return newest.with_name(f"{newest.name}-fresh").exists() and newest.read_bytes() == b"begun\n"


@pytest.mark.soak
@pytest.mark.parametrize("faults", [3, pytest.param(ALL, marks=pytest.mark.soak)])
def test_each_single_operation_of_a_restore_fails_in_turn(
    spark: SparkSession, tmp_path: Path, faults: int
) -> None:
    """Scenarios 1 and 39: an error, a location that says so, and then the same or another p."""
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    restores = Restores(spark, tmp_path)
    operations, error = restores.with_a_fault(None)
    assert error is None
    before = digests(restores.savepoint)
    kinds = {operation.partition(" ")[0] for operation in operations}
    assert kinds >= {"open", "fsync", "link", "mkdir"}
    third = len(operations) // 3
    places = [range(third), range(third, 2 * third), range(2 * third, len(operations))]
    chosen = [chance.choice(place) for place in places]
    if faults == ALL:
        chosen = [*range(len(operations))]
    for number in chosen:
        done, error = restores.with_a_fault(number)
        # The threads of the query go on after the start, which then may have returned.
        what = done[number] if number < len(done) else "behind the start"
        print(f"fault {number} of {len(operations)}: {what} -> {error!r}")
        location = tmp_path / f"{number}" / "location"
        if error is not None:
            assert isinstance(error, (OSError, ckpt.errors.CkptError)), error
        if is_unfinished(location):
            with refused(ckpt.errors.RestoreError, "has not ended", unchanged=location):
                restores.start(location.parent, restore=False)
        restores.succeed(number, chance.choice([2, 3]))
    assert digests(restores.savepoint) == before


def test_handles_that_cannot_be_read_are_no_empty_state(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a session in which Spark skips files that it cannot read."""
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        saved = query.triggerSavepoint(str(job.base / "savepoints")).path
    real = rescale._write_handles

    def damaged(directory: Storage, seed: rescale.Seed) -> None:
        real(directory, seed)
        path = Path(directory.url) / "handles.parquet"
        path.write_bytes(b"no Parquet")
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    fork = job.but(location="fork", out="fork_out")
    skips = {f"spark.sql.files.ignore{kind}Files": "true" for kind in ("Corrupt", "Missing")}
    with monkeypatch.context() as patched, session_conf(job.spark, skips):
        patched.setattr(rescale, "_write_handles", damaged)
        with pytest.raises(StreamingQueryException, match=r"handles\.parquet"):
            fork.run(saved)
    job.feed.add(events_of(1))
    fork.run(saved)
    assert fork.result() == expected_after(job.feed.rows, 20)
