"""How many requests a query sends to S3, from the driver and all tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import fsspec
import pytest

from pyspark_ckpt.storage.servers import s3 as s3_storage
from pyspark_ckpt.storage.servers.remote import between
from tests.query.harness import CHECKPOINT_DIR, INLINE, INTERVAL, Job
from tests.query.model import events_of, expected
from tests.servers.counting_server import Counting, counting_server

PARALLELISM = "spark.ckpt.parallelism.default"
Counts = dict[str, int]


@pytest.fixture
def driver(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    """The requests of the driver."""
    with counting_server(s3_environment["AWS_ENDPOINT_URL"]) as counting:
        file_system = fsspec.filesystem(
            "s3", use_listings_cache=False, skip_instance_cache=True, endpoint_url=counting.url
        )
        monkeypatch.setattr(s3_storage, "_file_system", lambda: file_system)
        yield counting


@pytest.fixture
def tasks(job: Job, s3_environment: dict[str, str]) -> Iterator[Counting]:
    """The requests of tasks."""
    environment = job.spark.sparkContext.environment
    before = dict(environment)
    with counting_server(s3_environment["AWS_ENDPOINT_URL"]) as counting:
        environment.update(s3_environment | {"AWS_ENDPOINT_URL": counting.url})
        yield counting
        environment.clear()
        environment.update(before)


def requests(
    job: Job, driver: Counting, tasks: Counting, parallelism: int, inline: str
) -> tuple[Counts, Counts]:
    """Return what driver and tasks ask for in one epoch and its checkpoint.

    The query's own counts are those of the servers.
    """
    name = f"{parallelism}-{inline}"
    job = job.but(location=f"loc-{name}", out=f"out-{name}").using(
        {PARALLELISM: str(parallelism), INLINE: inline, INTERVAL: "1h"}
    )
    job.spark.conf.set(PARALLELISM, parallelism)
    try:
        with job.running() as query:
            query.processAllAvailable()
            query.triggerCheckpoint()
            shown_before = query.triggerCheckpoint().requests  # the same one, so also its counts
            before = driver.so_far(), tasks.so_far()
            job.feed.add(events_of(job.feed.files))
            query.processAllAvailable()
            shown = query.triggerCheckpoint().requests
            sent = between(before[0], driver.so_far()), between(before[1], tasks.so_far())
            assert job.result() == expected(job.feed.rows)
            *_, in_table, last = [row.requests for row in query.checkpoints().collect()]
            assert (in_table, last) == (shown_before, shown)
            assert shown is not None
            assert shown["put"] == sent[0]["put"]
            (progress,) = query.lastOperatorProgress
            assert progress["numRequests"] == sum(sent[1].values())
    finally:
        job.spark.conf.unset(PARALLELISM)
    # The driver also looks for requests of users while it waits, so the number depends on time.
    return {kind: number for kind, number in sent[0].items() if kind != "list"}, sent[1]


@pytest.mark.soak
def test_writes_grow_by_one_for_each_subtask_with_a_file_of_its_own(
    job: Job,
    driver: Counting,
    tasks: Counting,
    s3_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pyspark_ckpt.checkpoint.runner")
    job = job.using({CHECKPOINT_DIR: f"{s3_url}/checkpoints"})
    job.feed.add(events_of(0))
    few_driver, few = requests(job, driver, tasks, 2, "0b")
    many_driver, many = requests(job, driver, tasks, 5, "0b")
    inline_driver, inline = requests(job, driver, tasks, 5, "1m")
    print(f"2 subtasks: driver {few_driver}, tasks {few}")
    print(f"5 subtasks: driver {many_driver}, tasks {many}")
    print(f"5 subtasks, inline: driver {inline_driver}, tasks {inline}")
    assert few.get("put", 0) <= 2
    assert many.get("put", 0) <= 5
    assert inline.get("put", 0) == 0
    assert many_driver["put"] == few_driver["put"] == inline_driver["put"]
    *_, completed = [
        record.getMessage() for record in caplog.records if "bytes; requests" in record.msg
    ]
    assert f"{many_driver['put']} put" in completed
