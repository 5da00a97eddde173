"""A query whose completed checkpoints are outside of its files, and the commands that read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.query.harness import INLINE, INTERVAL, Job, completed, drop_local_copies
from tests.query.model import events_of, expected, expected_after

pytestmark = pytest.mark.slow

PREFIX = "spark.ckpt.high-availability"
TYPE = f"{PREFIX}.type"


@pytest.fixture(params=["zookeeper", "kubernetes"])
def store(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of each store: a real ZooKeeper server, a stub of Kubernetes' API."""
    if request.param == "zookeeper":
        address = request.getfixturevalue("zookeeper_address")
        return {TYPE: request.param, f"{PREFIX}.zookeeper.quorum": address}
    request.getfixturevalue("kubernetes")
    return {TYPE: request.param, f"{PREFIX}.kubernetes.namespace": "jobs"}


def ids(rows: list[Row]) -> list[int]:
    return [row.checkpoint_id for row in rows]


def printed(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> list[int]:
    """Return the ids of the completed checkpoints, as the command line prints them."""
    capsys.readouterr()
    assert main([command, str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    rows = rows["checkpoints" if command == "list" else command]
    return [row["checkpoint_id"] for row in rows if row["status"] == "completed"]


@pytest.mark.soak_variants
def test_a_query_and_its_readers_find_the_store(
    job: Job, store: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Checkpoint, restart, fork from chk-N; a _metadata without a pointer is not a checkpoint."""
    job = job.using({INTERVAL: "1h", INLINE: "0b", **store})
    with job.running() as query:
        for number in range(2):
            job.feed.add(events_of(number))
            query.processAllAvailable()
            query.triggerCheckpoint()
        assert ids(completed(query)) == [1, 2]
        for command in ("list", "history"):
            assert printed(command, job.location_path, capsys) == [1, 2]
    assert CompletedCheckpoints(LocalStorage(job.checkpoint_path)).ids() == []
    (job.checkpoint_path / "chk-7").mkdir()
    (job.checkpoint_path / "chk-7" / "_metadata").write_bytes(b"written, and never pointed to")
    drop_local_copies(job.spark)
    job.feed.add(events_of(2))
    query = job.run()
    assert job.result() == expected(job.feed.rows)
    assert ids(completed(query)) == [1, 2, 8]
    history = ckpt.location(str(job.location_path)).history()
    assert list(history.checkpoint_id) == [1, 2, 8]
    assert set(ckpt.location(str(job.checkpoint_path)).subtask_history().checkpoint_id) == {1, 2, 8}
    second = history.path[1]
    assert main(["verify", second]) == 0
    fork = job.but(location="loc2", out="out2")
    fork.run(restore=second)
    assert fork.result() == expected_after(job.feed.rows, 40)


@pytest.mark.usefixtures("kubernetes")
def test_a_start_with_another_store_fences_the_drivers_of_the_one_before(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so before Spark begins an epoch, also if it ends there."""
    job = job.using({INTERVAL: "1h", INLINE: "0b"})
    job.feed.add(events_of(0))
    job.run()
    before = CompletedCheckpoints(LocalStorage(job.checkpoint_path))
    before.claim()
    monkeypatch.setattr(QueryStart, "_start_spark", cut)
    with pytest.raises(InterruptedError):
        job.using({TYPE: "kubernetes", f"{PREFIX}.kubernetes.namespace": "jobs"}).start()
    with pytest.raises(ckpt.errors.FencedError):
        before.check()


def cut(*arguments: Any, **more: Any) -> None:
    """Stand in for a step, at which the driver dies."""
    raise InterruptedError
