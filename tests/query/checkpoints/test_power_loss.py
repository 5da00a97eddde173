"""Spark does not sync its own files: after a power loss its newest epochs may be gone.

A checkpoint is durable, and the cleaner keeps what the two epochs before it need.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.stores.place import RUN_AGAIN
from tests.golden import comparing, program
from tests.golden.continuing import write_input
from tests.golden.model import GOLDEN_EPOCHS, LATER_EPOCHS, RULES, Model, rows_of
from tests.golden.model import run as run_model
from tests.golden.program import Sink
from tests.query.harness import BACKEND, OFTEN, drop_local_copies

NEWEST_EPOCH = 4
"""It has no rows: those are in the epochs before it."""

OPTIONS = {**OFTEN, BACKEND: "rocksdb"}


@pytest.fixture
def location(spark: SparkSession, tmp_path: Path) -> Path:
    """Of a query that has ended, with a checkpoint of its newest epoch."""
    told(spark, tmp_path, tmp_path / "location", GOLDEN_EPOCHS)
    newest_of(tmp_path / "location")
    assert drop_local_copies(spark)
    return tmp_path / "location"


def told(
    spark: SparkSession, base: Path, location: Path, epochs: range, restore: Path | None = None
) -> Sink:
    for number in epochs:
        write_input(base, number, rows_of(number), RULES[number])
    sink = Sink()
    writer = program.writer(spark, base, location, sink, OPTIONS)
    query = (writer if restore is None else writer.restoreFrom(str(restore))).start()
    query.processAllAvailable()
    query.stop()
    return sink


def newest_of(location: Path) -> Path:
    checkpoints = (location / "pyspark_ckpt").glob("chk-*")
    newest = max(checkpoints, key=lambda path: int(path.name.removeprefix("chk-")))
    assert ckpt.location(str(newest)).verify().epoch == NEWEST_EPOCH
    return newest


def lose(location: Path, epochs: int) -> None:
    """Delete the files that Spark wrote in the newest epochs."""
    for epoch in range(NEWEST_EPOCH - epochs + 1, NEWEST_EPOCH + 1):
        paths = [location / "offsets" / f"{epoch}", location / "commits" / f"{epoch}"]
        paths += location.glob(f"sources/*/{epoch}")
        paths += location.glob(f"state/*/*/{epoch + 1}.delta")
        assert len(paths) >= 4, paths
        for path in paths:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.soak_variants
@pytest.mark.parametrize("lost", [1, RUN_AGAIN])
def test_a_query_continues_from_the_epoch_that_spark_still_has(
    spark: SparkSession, tmp_path: Path, location: Path, lost: int
) -> None:
    """Scenario 9: the epochs run again, from handles older than the newest checkpoint's."""
    lose(location, lost)
    held = [number for number in GOLDEN_EPOCHS if number <= NEWEST_EPOCH - lost]
    model = Model(2)
    for number in held:
        model.epoch(number)
    counted = model.counted
    model.continue_at(2)
    again = [number for number in (*GOLDEN_EPOCHS, *LATER_EPOCHS) if number not in held]
    sink = told(spark, tmp_path, location, LATER_EPOCHS)
    comparing.check(sink, run_model(again, model).told, counted)


@pytest.mark.soak
def test_a_checkpoint_that_is_newer_than_what_spark_has_restores(
    spark: SparkSession, tmp_path: Path, location: Path
) -> None:
    """Scenario 9: also when Spark has lost more than can be run again."""
    lose(location, NEWEST_EPOCH)
    sink = told(spark, tmp_path, tmp_path / "new", LATER_EPOCHS, newest_of(location))
    model = run_model(GOLDEN_EPOCHS, Model(2))
    counted = model.counted
    model.continue_at(2)
    comparing.check(sink, run_model(LATER_EPOCHS, model).told, counted)
