"""A driver as users have it: Spark's default file system, generated code, files on a real disk.

``python program.py DIRECTORY CANARY`` stops and continues, restores at another parallelism and on
the other backend, rolls back and drains. Its output is compared with the model of the golden data.
Settings and options have the canary in their values, and the log has everything.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.golden import comparing, program
from tests.golden.continuing import write_input
from tests.golden.model import GOLDEN_EPOCHS, LATER_EPOCHS, RULES, Model, rows_of, run
from tests.golden.program import Sink

PREFIX = "spark.ckpt."
OPTIONS = {
    f"{PREFIX}state.backend.type": "rocksdb",
    f"{PREFIX}execution.checkpointing.interval": "100ms",
    f"{PREFIX}execution.checkpointing.num-retained": "10",
    f"{PREFIX}internal.execution.checkpointing.data-inline-threshold": "0b",
    f"{PREFIX}internal.state.changelog.materialize.min-size": "0b",
    f"{PREFIX}internal.state.changelog.materialize.max-segments": "1",
}


class Production:
    """The query of the golden data, below a directory."""

    def __init__(self, spark: SparkSession, base: Path, canary: str) -> None:
        self.spark, self.base = spark, base
        self.options = {**OPTIONS, "password": canary}
        self.location = base / "location"

    def add(self, *epochs: int) -> None:
        for number in epochs:
            write_input(self.base, number, rows_of(number), RULES[number])

    def start(self, sink: Sink, location: Path, restore: str | None = None) -> Any:
        writer = program.writer(self.spark, self.base, location, sink, self.options)
        return (writer if restore is None else writer.restoreFrom(restore)).start()

    def emitted(self, location: Path, restore: str | None = None) -> Sink:
        """Process all available input."""
        sink = Sink()
        query = self.start(sink, location, restore)
        query.processAllAvailable()
        query.stop()
        assert query.exception() is None
        return sink


def main(base: Path, canary: str) -> None:
    cloudpickle.register_pickle_by_value(program)
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("pyspark_ckpt").setLevel(logging.DEBUG)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(base / "local"))
        .config("spark.sql.warehouse.dir", str(base / "warehouse"))
        .config("spark.hadoop.fs.s3a.secret.key", canary)
        .getOrCreate()
    )
    production = Production(spark, base, canary)
    savepoint, checkpoint = stopped_after_the_first_epochs(production)
    before = run(GOLDEN_EPOCHS, Model(2))
    goes_on(production, before.counted)
    restored_elsewhere(production, savepoint, before.counted)
    rolled_back(production, checkpoint, before.counted)
    drained(production)
    says_what_is_wrong(production)
    permissions(base)
    spark.stop()
    print("all is well")


def stopped_after_the_first_epochs(production: Production) -> tuple[str, str]:
    production.add(*GOLDEN_EPOCHS)
    sink = Sink()
    query = production.start(sink, production.location)
    query.processAllAvailable()
    savepoint = query.triggerSavepoint(str(production.base / "savepoints")).path
    checkpoint = query.triggerCheckpoint()
    query.stop()
    comparing.check(sink, run(GOLDEN_EPOCHS, Model(2)).told, {})
    return savepoint, Path(checkpoint.path).name


def later(parallelism: int) -> list[Any]:
    model = run(GOLDEN_EPOCHS, Model(2))
    model.continue_at(parallelism)
    return run(LATER_EPOCHS, model).told


def goes_on(production: Production, counted: dict[str, int]) -> None:
    assert [str(path) for path in (production.base / "local").rglob("pyspark_ckpt")]
    for path in (production.base / "local").rglob("pyspark_ckpt"):
        shutil.rmtree(path)
    production.add(*LATER_EPOCHS)
    comparing.check(production.emitted(production.location), later(2), counted)


def restored_elsewhere(production: Production, savepoint: str, counted: dict[str, int]) -> None:
    production.spark.conf.set("spark.sql.shuffle.partitions", "3")
    production.options[f"{PREFIX}state.backend.type"] = "heap"
    sink = production.emitted(production.base / "fork", savepoint)
    dealt = {v for number in GOLDEN_EPOCHS for _, v, _ in rows_of(number)}
    comparing.check_rescaled(sink, later(3), counted, dealt)
    production.options[f"{PREFIX}state.backend.type"] = "rocksdb"
    production.spark.conf.set("spark.sql.shuffle.partitions", "2")


def rolled_back(production: Production, checkpoint: str, counted: dict[str, int]) -> None:
    ckpt.location(str(production.location)).rollback(checkpoint)
    comparing.check(production.emitted(production.location), later(2), counted)


def drained(production: Production) -> None:
    """Drain: all pending timers fire, in order."""
    model = run(GOLDEN_EPOCHS, Model(2))
    waiting = run(LATER_EPOCHS, model).timers()
    assert len(waiting) > 10
    sink = Sink()
    query = production.start(sink, production.location)
    query.stopWithSavepoint(str(production.base / "savepoints"), drain=True)
    comparing.check_timers(sink, waiting)


def says_what_is_wrong(production: Production) -> None:
    """Errors are printed, so that the test can check their text."""
    try:
        production.start(Sink(), production.base / "nowhere", str(production.base / "no savepoint"))
    except ckpt.errors.CheckpointNotFoundError as exc:
        print(exc)
    production.options[f"{PREFIX}state.backend.type"] = "tape"
    try:
        production.start(Sink(), production.base / "nowhere")
    except ckpt.errors.ConfigurationError as exc:
        print(exc)


def permissions(base: Path) -> None:
    """State on an executor's disk is for its user only."""
    copies = [path for path in (base / "local").rglob("pyspark_ckpt/*/*/*") if path.is_dir()]
    assert copies
    for path in copies:
        assert path.stat().st_mode & 0o777 == 0o700, path


if __name__ == "__main__":
    assert not tempfile.gettempdir().startswith("/dev/shm")
    main(Path(sys.argv[1]), sys.argv[2])
