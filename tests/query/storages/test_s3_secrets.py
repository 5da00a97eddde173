"""Credentials of S3 come from the environment, and no output of the library shows them."""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

import fsspec
import pytest
from pyspark.errors import StreamingQueryException

import pyspark_ckpt as ckpt
from pyspark_ckpt.storage import retrying as retrying_storage
from pyspark_ckpt.storage.servers import s3 as s3_storage
from tests.query.harness import (
    CHECKPOINT_DIR,
    DEADLINE,
    OFTEN,
    SAVEPOINT_DIR,
    TOLERABLE,
    Job,
    await_checkpoint,
    files_below,
)
from tests.query.model import events_of, expected
from tests.servers.refusing_s3 import Refusing, nothing, refusing_s3
from tests.servers.s3_front import Request

ID, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"


@pytest.fixture
def canaries() -> dict[str, str]:
    return {name: f"canary{secrets.token_hex(8)}" for name in (ID, SECRET, TOKEN)}


@pytest.fixture
def front(
    job: Job,
    canaries: dict[str, str],
    s3_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Refusing]:
    """The server that driver and workers ask, with credentials that nothing else has."""
    monkeypatch.setattr(retrying_storage, "PAUSES_SECONDS", (0.01, 0.01))
    with refusing_s3(s3_environment["AWS_ENDPOINT_URL"]) as front:
        changed = {**s3_environment, **canaries, "AWS_ENDPOINT_URL": front.url}
        environment = job.spark.sparkContext.environment
        before = dict(environment)
        environment.update(changed)
        for name, value in changed.items():
            monkeypatch.setenv(name, value)
        ours = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
        monkeypatch.setattr(s3_storage, "_file_system", lambda: ours)
        yield front
        environment.clear()
        environment.update(before)


@dataclass
class Heard(ckpt.CheckpointListener):
    """Everything that a user may see."""

    texts: list[str] = field(default_factory=list)

    def onCheckpointAborted(self, checkpoint: object) -> None:
        self.texts.append(repr(checkpoint))

    def error(self, error: BaseException) -> None:
        self.texts += [repr(error), *traceback.format_exception(error)]


def is_of_tasks(request: Request) -> bool:
    return request.method == "PUT" and "/taskowned/" in request.path


def is_of_driver(request: Request) -> bool:
    return "/taskowned/" not in request.path


@pytest.mark.soak
def test_what_s3_refuses_is_reported_without_credentials(
    job: Job,
    front: Refusing,
    canaries: dict[str, str],
    s3_url: str,
    s3_environment: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Scenario 45: a driver and tasks whose requests S3 refuses, and quotes in its answers."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "pyspark_ckpt")
    heard = Heard()
    job = job.using({CHECKPOINT_DIR: f"{s3_url}/c", SAVEPOINT_DIR: f"{s3_url}/s", **OFTEN})
    query = runs_until_s3_refuses_its_driver(job, front, heard)
    for refused in (job.start, lambda: job.but(location="loc2").start(restore=f"{s3_url}/s/x")):
        with pytest.raises((OSError, ckpt.errors.CkptError)) as failed:
            refused()
        heard.error(failed.value)
    fails_in_its_tasks(job, front, heard)
    front.refuses = nothing
    heard.texts += map(repr, query.checkpoints().collect())
    heard.texts += map(repr, ckpt.location(f"{s3_url}/c/{query.id}").history())
    assert {row.status for row in query.checkpoints().collect()} == {"completed", "aborted"}
    job.run()
    assert job.result() == expected(job.feed.rows)

    quoted = "".join(front.quoted)
    for name in (ID, TOKEN):
        assert canaries[name] in quoted, "the server has not answered as S3 does"
    said = "".join([*heard.texts, caplog.text])
    assert "signature we calculated does not match" in said
    assert "token is malformed" in said
    files = {str(path): path.read_bytes() for path in files_below(job.base)}
    bucket = fsspec.filesystem("s3", use_listings_cache=False)
    files |= {name: bucket.cat_file(name) for name in bucket.find(s3_url)}
    for what in ("/_metadata", "/history/", "/taskowned/", "/offsets/"):
        assert any(what in name for name in files), what
    for canary in canaries.values():
        assert canary not in said
        assert [name for name, content in files.items() if canary.encode() in content] == []


def runs_until_s3_refuses_its_driver(
    job: Job, front: Refusing, heard: Heard
) -> ckpt.CheckpointedQuery:
    query = job.using({TOLERABLE: 1}).start()
    query.addCheckpointListener(heard)
    job.feed.add(events_of(0))
    query.processAllAvailable()
    await_checkpoint(query, 0)
    query.triggerSavepoint()
    front.refuses = is_of_driver
    with pytest.raises((OSError, ckpt.errors.CkptError)) as failed:
        query.triggerSavepoint()
    heard.error(failed.value)
    job.feed.add(events_of(1))
    with pytest.raises(ckpt.errors.FailedCheckpointsError) as failed:
        query.awaitTermination(DEADLINE)
    heard.error(failed.value)
    heard.error(query.exception())
    return query


def fails_in_its_tasks(job: Job, front: Refusing, heard: Heard) -> None:
    front.refuses = is_of_tasks
    job.feed.add(events_of(2))
    query = job.start()
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(DEADLINE)
    assert "taskowned" in str(failed.value)
    heard.error(failed.value)
    heard.error(query.exception())
