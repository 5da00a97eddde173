"""The same program gives the same output and state on both backends, also across a restore."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.query.harness import BACKEND, BACKENDS, OFTEN, SAVEPOINT_DIR, Feed, Job, await_checkpoint
from tests.query.model import events_of, expected, expected_after


@dataclass(frozen=True)
class Origin:
    """A stopped query of two epochs, a savepoint, and one more epoch with a checkpoint."""

    job: Job
    savepoint: Path
    checkpoint: Path
    result: list


@pytest.fixture(scope="module")
def origins(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Origin]:
    origins = {}
    for backend in BACKENDS:
        base = tmp_path_factory.mktemp(backend)
        options = {BACKEND: backend, SAVEPOINT_DIR: base / "savepoints", **OFTEN}
        job = Job(spark, base, Feed(base / "in"), options=options)
        with job.running() as query:
            job.feed.add(events_of(0, 40), events_of(1, 40))
            query.processAllAvailable()
            savepoint = query.triggerSavepoint()
            job.feed.add(events_of(2, 40))
            query.processAllAvailable()
            checkpoint = await_checkpoint(query, 2)
        assert (savepoint.epoch, checkpoint.epoch) == (1, 2)
        origins[backend] = Origin(job, Path(savepoint.path), Path(checkpoint.path), job.result())
        job.feed.add(events_of(3, 40))
    return origins


def test_same_output(origins: dict[str, Origin]) -> None:
    """Value, list and map state behave alike on heap and on RocksDB, as the model says."""
    oracle = expected(e for epoch in range(3) for e in events_of(epoch, 40))
    assert origins["heap"].result == origins["rocksdb"].result == oracle


@pytest.mark.soak_variants
@pytest.mark.parametrize("source", ["savepoint", "checkpoint"])
@pytest.mark.parametrize(("started_on", "restored_on"), [("rocksdb", "heap"), ("heap", "rocksdb")])
def test_restore(
    origins: dict[str, Origin], tmp_path: Path, started_on: str, restored_on: str, source: str
) -> None:
    """Scenario 41: each backend reads all state of the other, from both kinds of snapshots."""
    origin = origins[started_on]
    fork = origin.job.but(base=tmp_path).using({BACKEND: restored_on})
    fork.run(restore=getattr(origin, source))
    before = 80 if source == "savepoint" else 120
    assert fork.result() == expected_after(origin.job.feed.rows, before)
