"""A query whose location, sink and savepoints are on a storage that is not a local disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import location
from tests.external.conftest import Place
from tests.external.driver import AskedError, Driver, Input

NAME = "spark.ckpt.execution.checkpointing"


@pytest.mark.soak
@pytest.mark.own_jvm
def test_it_runs_stops_goes_on_and_is_forked(
    spark_driver: Driver, place: Place, rows: Input, tmp_path: Path
) -> None:
    """The short form. The fork is on a local disk, but writes to a file sink on the storage."""
    ask, at = spark_driver.ask, place.url
    rows.add()
    ask("start", f"{at}/loc", f"{at}/out")
    ask("process")
    assert "/loc/pyspark_ckpt/chk-" in ask("checkpoint")
    ask("stop")
    ask("start", f"{at}/loc", f"{at}/out")
    savepoint = ask("stop_with_savepoint", f"{at}/savepoints")
    assert ask("result", f"{at}/out") == rows.expected()
    location(savepoint).verify()
    rows.add()
    ask("start", str(tmp_path / "fork"), f"{at}/fork-out", restore=savepoint)
    ask("process")
    ask("stop")
    assert ask("result", f"{at}/fork-out") == rows.expected(first=1)


@pytest.mark.own_jvm
@pytest.mark.external
def test_its_whole_life(spark_driver: Driver, place: Place, rows: Input) -> None:
    """Rolled back and forward again, drained, forked at another parallelism and backend."""
    ask, at = spark_driver.ask, place.url
    rows.add(2)
    ask("start", f"{at}/loc", f"{at}/out")
    ask("process")
    first = ask("checkpoint")
    rows.add()
    ask("process")
    ask("checkpoint")
    savepoint = ask("savepoint", f"{at}/savepoints")
    ask("stop")
    kept = ask("rollback", f"{at}/loc", first.rpartition("/")[2])
    with pytest.raises(AskedError, match=r"RestoreError.*new path"):
        ask("start", f"{at}/loc", f"{at}/out")
    ask("start", f"{at}/loc", f"{at}/out2")
    ask("process")
    assert ask("result", f"{at}/out2") == rows.expected(first=2)
    ask("stop_with_savepoint", f"{at}/savepoints", drain=True)
    ask("rollback", f"{at}/loc", kept.rpartition("/")[2])
    rows.add()
    ask("start", f"{at}/loc", f"{at}/out")
    ask("process")
    ask("stop")
    assert ask("result", f"{at}/out") == rows.expected()
    backend = {"spark.ckpt.state.backend.type": "heap"}
    ask("start", f"{at}/fork", f"{at}/fork-out", restore=savepoint, parallelism=3, **backend)
    ask("process")
    assert ask("result", f"{at}/fork-out") == rows.expected(first=3)
    ask("checkpoint")
    ask("stop")
    told = location(f"{at}/fork").history()
    assert "completed" in set(told.status)


@pytest.mark.own_jvm
@pytest.mark.external
def test_a_copied_location_does_not_own_its_checkpoints(
    spark_driver: Driver, place: Place, rows: Input
) -> None:
    ask, at = spark_driver.ask, place.url
    elsewhere: dict[str, Any] = {f"{NAME}.dir": f"{at}/checkpoints"}
    rows.add()
    ask("start", f"{at}/loc", f"{at}/out", **elsewhere)
    ask("process")
    ask("checkpoint")
    ask("stop")
    ask("copy", f"{at}/loc", f"{at}/copy")
    with pytest.raises(AskedError, match=r"RestoreError.*may be a copy"):
        ask("start", f"{at}/copy", f"{at}/copy-out", **elsewhere)
    ask("start", f"{at}/loc", f"{at}/out", **elsewhere)
    rows.add()
    ask("process")
    ask("stop")
    assert ask("result", f"{at}/out") == rows.expected()
