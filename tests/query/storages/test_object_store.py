"""Checkpoints and savepoints in S3 of a real server, while Spark's own files stay local."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.checkpoint import file_check
from pyspark_ckpt.checkpoint.file_check import check_files
from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.restore import copies
from pyspark_ckpt.restore.copies import HandleCopy, copy_handles
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.query.harness import (
    CHECKPOINT_DIR,
    OFTEN,
    SAVEPOINT_DIR,
    Job,
    await_checkpoint,
    drop_local_copies,
    refused,
)
from tests.query.model import events_of, expected, expected_after
from tests.query.stored import metadata_of
from tests.servers.s3_front import Request
from tests.servers.waiting_s3 import Waiting, waiting_s3


@pytest.fixture
def job(job: Job, s3_url: str, s3_environment: dict[str, str]) -> Iterator[Job]:
    """Return a job whose workers get the driver's environment, as with `spark.executorEnv`."""
    environment = job.spark.sparkContext.environment
    before = dict(environment)
    environment.update(s3_environment)
    yield job.using(
        {CHECKPOINT_DIR: f"{s3_url}/checkpoints", SAVEPOINT_DIR: f"{s3_url}/savepoints", **OFTEN}
    )
    environment.clear()
    environment.update(before)


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_refused_before_anything_begins(
    job: Job, s3_environment: dict[str, str]
) -> None:
    job.feed.add(events_of(0))
    for key in (CHECKPOINT_DIR, SAVEPOINT_DIR):
        with refused(FileNotFoundError, "s3://nobody-made-this", unchanged=job.base):
            job.using({key: "s3://nobody-made-this/dir"}).start()
    with refused(ckpt.errors.CheckpointNotFoundError, "s3://nobody-made-this", unchanged=job.base):
        job.start(restore="s3://nobody-made-this/chk-1")


@pytest.mark.slow
def test_a_query_uses_s3(job: Job, s3_url: str) -> None:
    """Scenarios 5 and 23: checkpoint, stop, rebuild, savepoint, fork onto local disk.

    A second driver, which commits no epoch, does not end it.
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
        store.claim()  # and commits no epoch
        job.feed.add(events_of(5))
        query.processAllAvailable()
        assert await_checkpoint(query, 5).checkpoint_id > following.checkpoint_id
        with pytest.raises(ckpt.errors.FencedError):
            store.check()
    fork = job.but(location="loc2", out="out2").using({CHECKPOINT_DIR: job.base / "local"})
    fork.run(restore=savepoint.path)
    assert fork.result() == expected_after(job.feed.rows, 80)
    assert (job.base / "local").is_dir()


@contextmanager
def workers_store(job: Job, s3_environment: dict[str, str], together: int) -> Iterator[Waiting]:
    """Yield a store that executors ask, and the driver does not.

    It answers none of their first requests before enough of them are under way.
    """

    def is_read(request: Request) -> bool:
        return request.method in ("HEAD", "GET") and "/shared/state-" in request.path

    with waiting_s3(s3_environment["AWS_ENDPOINT_URL"], together, is_read) as waiting:
        job.spark.sparkContext.environment["AWS_ENDPOINT_URL"] = waiting.url
        yield waiting


def state_files(storage: Storage, number: int) -> list[FileReference]:
    return [storage.write(f"shared/state-{each}", [b"x" * each]) for each in range(number)]


@pytest.mark.soak
def test_executors_check_many_files(
    job: Job, s3_url: str, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors ask for each file once, and for several at the same time."""
    storage = open_storage(s3_url)
    files = state_files(storage, 12)
    with workers_store(job, s3_environment, together=8) as store:
        check_files(storage, files, job.spark)
        assert store.came == 0  # a few are left to the driver
        monkeypatch.setattr(file_check, "ON_DRIVER", 8)
        monkeypatch.setattr(file_check, "AT_ONCE", 4)
        check_files(storage, files, job.spark)
        assert (store.came, store.gave_up) == (12, 0)
        storage.delete([files[5].path, files[9].path])
        with pytest.raises(ckpt.errors.CorruptFileError, match="shared/state-5 is missing"):
            check_files(storage, files, job.spark)


@pytest.mark.soak
def test_a_restore_at_equal_parallelism_is_copied_by_the_executors(
    job: Job, s3_url: str, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reads no file of the state; the copies are whole."""
    storage, target = open_storage(f"{s3_url}/a"), open_storage(f"{s3_url}/b")
    operator = OperatorDescriptor(uid="op", parallelism=6, max_parallelism=8, key_schema="{}")
    handles = []
    for subtask, file in enumerate(state_files(storage, 6)):
        base = BaseSnapshot("1-b", 1, 1, (BaseFile("state.chg", file),))
        first = operator.first_handle("old", subtask, 1)
        handles.append(msgspec.structs.replace(first, base=base))
    copy = HandleCopy(operator, "new", 3)
    monkeypatch.setattr(copies, "MOST_FILES", 4)
    with workers_store(job, s3_environment, together=2) as store:  # as many as there are cores
        made = copy_handles(job.spark, handles, copy, storage, target)
        looks_and_reads = 6 + 5  # one file is empty
        assert (store.came, store.gave_up) == (looks_and_reads, 0)
    assert [(each.subtask, each.query_id, each.epoch) for each in made] == [
        (subtask, "new", 3) for subtask in range(6)
    ]
    for before, after in zip(handles, made, strict=True):
        (old,), (new,) = before.files(), after.files()
        assert (new.size_bytes, new.sha256) == (old.size_bytes, old.sha256)
        assert target.read(new.path) == storage.read(old.path)
    storage.delete([handles[2].files()[0].path])
    job.spark.sparkContext.environment.update(s3_environment)
    with pytest.raises(ckpt.errors.CorruptFileError, match="shared/state-2 is missing"):
        copy_handles(job.spark, handles, copy, storage, target)
