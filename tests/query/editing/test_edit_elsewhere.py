"""Edits, first savepoints and imports on S3; edits of a savepoint on HDFS."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.storage.open import open_storage
from tests.query.editing.test_first_savepoint import Tables
from tests.query.harness import SAVEPOINT_DIR, Job
from tests.query.model import events_of, expected_after

EVERYTHING = [event for epoch in range(3) for event in events_of(epoch)]


@pytest.fixture
def s3_job(job: Job, s3_url: str, s3_environment: dict[str, str]) -> Iterator[Job]:
    """A job whose workers get the driver's environment, and whose savepoints are on S3."""
    environment = job.spark.sparkContext.environment
    before = dict(environment)
    environment.update(s3_environment)
    yield job.using({SAVEPOINT_DIR: f"{s3_url}/savepoints"})
    environment.clear()
    environment.update(before)


def digests_at(url: str) -> dict[str, str]:
    """Return the digests of all files below a directory of any storage."""
    storage = open_storage(url)
    above = storage.parent()
    files = above.files_below(storage.name)
    return {path: hashlib.sha256(above.read(path)).hexdigest() for path in files}


def saved(job: Job, directory: str) -> str:
    """Run two epochs, take a savepoint, and give the query input for a third."""
    job.feed.add(events_of(0), events_of(1))
    with job.running() as query:
        query.processAllAvailable()
        path = query.triggerSavepoint(directory).path
    job.feed.add(events_of(2))
    return path


def check_edits(job: Job, directory: str, base: Path) -> None:
    """Edit a savepoint in a directory there; restored, the query continues as without an edit."""
    source = saved(job, f"{directory}/savepoints")
    before = digests_at(source)

    def same(rows: Any) -> Any:
        return rows

    edited = ckpt.edit_state(source).change("op", "tally", same).save(f"{directory}/edited")
    assert before
    assert digests_at(source) == before
    assert edited.path.startswith(f"{directory}/edited/savepoint-")
    fork = job.but(base=base, location="fork", out="fork-out", place=None)
    fork.run(edited.path)
    assert fork.result() == expected_after(EVERYTHING, 40)
    person = job.spark.createDataFrame([("k1",)], "k string")
    (erasure,) = ckpt.location(f"{directory}/edited").erase_keys({"op": person})
    assert erasure.mentions == 0
    with ckpt.location(erasure.savepoint.path).state() as snapshot:
        assert snapshot.state("op", "count").get("k1") is None
        assert snapshot.state("op", "count").get("k2") is not None


@pytest.mark.soak
def test_edits_on_s3(s3_job: Job, s3_url: str, tmp_path: Path) -> None:
    check_edits(s3_job, s3_url, tmp_path)


@pytest.mark.external
def test_edits_on_hdfs(job: Job, hdfs_url: str, tmp_path: Path) -> None:
    check_edits(job, hdfs_url, tmp_path)


@pytest.mark.soak
def test_a_first_savepoint_on_s3(s3_job: Job, s3_url: str) -> None:
    history = events_of(0) + events_of(1)
    edit = Tables(history).put(ckpt.edit_state(query=s3_job.df()), s3_job.spark)
    first = edit.save(f"{s3_url}/first")
    assert ckpt.location(first.path).verify()
    s3_job.feed.add(events_of(2))
    s3_job.run(first.path)
    assert s3_job.result() == expected_after(EVERYTHING, 40)


@pytest.mark.soak
def test_a_failed_edit_leaves_nothing_on_s3(s3_job: Job, s3_url: str) -> None:
    rows = s3_job.spark.createDataFrame([("a", 1, 1), ("a", 2, 2)], "k string, n long, total long")
    edit = ckpt.edit_state(query=s3_job.df()).put("op", "count", rows)
    with pytest.raises(ckpt.errors.StateValueError, match="two values at one place"):
        edit.save(f"{s3_url}/first")
    assert not digests_at(f"{s3_url}/first")
