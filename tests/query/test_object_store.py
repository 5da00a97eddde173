"""Checkpoints and savepoints in S3, behind a real server, while Spark's own files stay local."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.checkpoint.completed_checkpoints import CompletedCheckpoints
from pyspark_ckpt.on_disk.storage import open_storage
from tests.query.harness import (
    CHECKPOINT_DIR,
    DEADLINE,
    OFTEN,
    SAVEPOINT_DIR,
    Job,
    await_checkpoint,
    drop_local_copies,
    refused,
)
from tests.query.model import events_of, expected, expected_after
from tests.query.stored import metadata_of


@pytest.fixture
def job(job: Job, s3_url: str, s3_environment: dict[str, str]) -> Iterator[Job]:
    """The workers are given what the driver has, as `spark.executorEnv` would."""
    environment = job.spark.sparkContext.environment
    before = dict(environment)
    environment.update(s3_environment)
    yield job.using(
        {CHECKPOINT_DIR: f"{s3_url}/checkpoints", SAVEPOINT_DIR: f"{s3_url}/savepoints", **OFTEN}
    )
    environment.clear()
    environment.update(before)


def test_a_bucket_that_is_not_there_is_refused_before_anything_begins(
    job: Job, s3_environment: dict[str, str]
) -> None:
    job.feed.add(events_of(0))
    for key in (CHECKPOINT_DIR, SAVEPOINT_DIR):
        with refused(FileNotFoundError, "s3://nobody-made-this", unchanged=job.base):
            job.using({key: "s3://nobody-made-this/dir"}).start()
    with refused(ckpt.CheckpointNotFoundError, "s3://nobody-made-this", unchanged=job.base):
        job.start(restore="s3://nobody-made-this/chk-1")


def test_a_query_lives_on_s3(job: Job, s3_url: str) -> None:
    """Scenarios 5 and 23: checkpoint, stop, rebuild, savepoint, fork onto local disk.

    Then another driver takes over.
    """
    job.feed.add(*map(events_of, range(3)))
    with job.running() as query:
        query.processAllAvailable()
        checkpoint = await_checkpoint(query, 2)
    assert checkpoint.path.startswith(f"{s3_url}/checkpoints/{query.id}/chk-")
    assert metadata_of(checkpoint.path).epoch == 2
    assert not job.checkpoint_path.exists()
    drop_local_copies(job.spark)
    job.feed.add(events_of(3))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint()
        assert job.result() == expected(job.feed.rows)
        assert savepoint.path.startswith(f"{s3_url}/savepoints/savepoint-")
        job.feed.add(events_of(4))
        query.processAllAvailable()
        following = await_checkpoint(query, 4)
        assert following.checkpoint_id > checkpoint.checkpoint_id
        store = CompletedCheckpoints(open_storage(following.path).parent())
        store.claim()
        job.feed.add(events_of(5))
        with pytest.raises(ckpt.FailedCheckpointsError, match="another driver"):
            query.awaitTermination(DEADLINE)
        assert not query.isActive
        assert following.checkpoint_id in store.ids()
    fork = job.but(location="loc2", out="out2").using({CHECKPOINT_DIR: job.base / "local"})
    fork.run(restore=savepoint.path)
    assert fork.result() == expected_after(job.feed.rows, 80)
    assert (job.base / "local").is_dir()
