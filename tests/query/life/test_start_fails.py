"""A start that fails leaves no query of Spark's running without checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.spark.state_reader import check_state_can_be_read
from tests.query.harness import Job, refused
from tests.query.life import interrupted_program
from tests.query.model import events_of, expected_after, in_order


@pytest.mark.soak
def test_a_damaged_note_of_the_restore_is_seen_before_spark_starts(job: Job) -> None:
    """Nothing is written, no query is left; without the note the query continues."""
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints"))
    fork = job.but(location="loc2", out="out2")
    fork.run(restore=savepoint.path)
    job.feed.add(events_of(1))
    note = fork.checkpoint_path / "origin.json"
    whole = note.read_bytes()
    note.write_bytes(whole[:-20])
    with refused(ckpt.errors.CorruptFileError, "origin.json", unchanged=fork.base / "loc2"):
        fork.writer().format("noop").start()  # a file sink would read it earlier
    assert active(job.spark) == []
    note.write_bytes(whole)
    assert fork.run().lastRestore == savepoint_restore(savepoint)
    assert fork.result() == in_order(expected_after(job.feed.rows, 20))


def savepoint_restore(savepoint: ckpt.results.Savepoint) -> object:
    return ckpt.results.RestoredFrom(
        savepoint.path, savepoint.epoch, savepoint.query_id, "NO_CLAIM"
    )


def test_a_location_in_which_spark_finds_no_state_is_refused(spark: SparkSession) -> None:
    """Spark escapes the path of its source for state twice: a space is then no space."""
    path_of = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    for char in (*map(chr, range(1, 127)), "\u00a0", "\u2028", "ü", "日"):
        path = f"/a/b{char}c"
        if path_of(path).toUri().getPath() != path:  # a slash, or the end of a line
            continue
        if path_of(path).toUri().toString() == path:
            check_state_can_be_read(path)
            continue
        with pytest.raises(ckpt.errors.ConfigurationError, match="Spark's own reader of state"):
            check_state_can_be_read(path)


@pytest.mark.soak
def test_a_path_with_a_space_is_refused_and_one_with_other_signs_is_not(job: Job) -> None:
    job.feed.add(events_of(0))
    spaced = job.but(location="my data")
    with pytest.raises(ckpt.errors.ConfigurationError, match=r"my data.*use another path"):
        spaced.start()
    assert active(job.spark) == []
    assert not spaced.location_path.exists()
    other = job.but(location="ü+*,;=@~$&'()!-:x")
    with other.running() as query:
        query.processAllAvailable()
        assert query.triggerCheckpoint().epoch == 0
    assert other.result() == in_order(expected_after(job.feed.rows, 0))


def test_a_start_that_fails_after_spark_began_stops_the_query(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, no thread can be started."""

    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    job.feed.add(events_of(0))
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            job.start()
    assert active(job.spark) == []


@pytest.mark.slow
@pytest.mark.own_jvm
@pytest.mark.soak_variants
@pytest.mark.parametrize("location", ["location", ""])
def test_a_start_that_is_interrupted_leaves_no_query(tmp_path: Path, location: str) -> None:
    """Spark's start goes on after the interrupt, and nobody would know its query."""
    ended = subprocess.run(
        [sys.executable, interrupted_program.__file__, location and str(tmp_path / location)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found == {"interrupted": True, "active": [], "listeners": 1}


def active(spark: SparkSession) -> list[str]:
    return [query.id for query in spark.streams.active]
