"""Every public function and method of a location works in a thread without an active session.

The calls are made of the list of public functions: a new one has to be added here.
"""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.query.harness import INTERVAL, RETAINED, Feed, Job
from tests.query.restoring.numbered_job import NUMBERED, PARTITIONS, Numbered
from tests.query.session_conf import session_conf

METHODS = {
    name: method
    for name, method in vars(ckpt.Location).items()
    if inspect.isfunction(method) and not name.startswith("_")
}
FUNCTIONS = METHODS | {
    name: function for name in ckpt.__all__ if inspect.isfunction(function := getattr(ckpt, name))
}
TAKE_A_SESSION = sorted(
    name
    for name, function in FUNCTIONS.items()
    if "spark" in inspect.signature(function).parameters
)
BY_PLACE = ("attach", "disable", "enable")
"""They take a session by its place, and need one."""

OPTIONAL = [name for name in TAKE_A_SESSION if name not in BY_PLACE]
"""They take the active session, or the default one, if none is given."""

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


CALLED_WITHOUT = """
import sys
import pyspark_ckpt as ckpt
from pyspark import SparkContext
from pyspark.sql import SparkSession

calls = {
    "edit_state": lambda **more: ckpt.edit_state("/nowhere", **more),
    "erase_keys": lambda **more: ckpt.location("/nowhere").erase_keys({}, **more),
    "import_checkpoint": lambda **more: ckpt.location("/nowhere").import_checkpoint(**more),
    "rollback": lambda **more: ckpt.location("/nowhere").rollback("chk-1", **more),
}

def said(**more):
    for name in sys.argv[1].split(","):
        try:
            calls[name](**more)
        except ckpt.errors.CkptError as exc:
            print(exc)

said()
assert SparkContext._active_spark_context is None
if len(sys.argv) > 2:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.stop()  # PySpark keeps it as its default session
    said()
    said(spark=spark)
    assert SparkContext._active_spark_context is None
"""


@dataclass(frozen=True)
class World:
    """A query, which ends with the first test, a location, one of Spark, and a savepoint."""

    job: Job
    query: ckpt.CheckpointedQuery
    ended: Path
    savepoint: str
    native: str

    def fresh(self, name: str) -> str:
        return f"{self.job.base}/{name}-{uuid4().hex}"


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.mktemp("threads")
    job = Job(spark, base, Feed(base / "in"), Numbered, NUMBERED).using({INTERVAL: "1h"})
    job.feed.add([("a", 1), ("b", 2)])
    with session_conf(spark, {PARTITIONS: "2", PROVIDER: ROCKSDB}):
        keyed = job.stream().groupBy("k")
        native = keyed.transformWithState(Numbered(), NUMBERED, "Append", "None").writeStream
        native = native.option("checkpointLocation", str(base / "native"))
        native.trigger(availableNow=True).start(
            str(base / "of-spark"), "parquet"
        ).awaitTermination()
    with session_conf(spark, {PARTITIONS: "2"}):
        query = job.start()
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(base / "savepoints"))
        query.triggerCheckpoint()
        ended = job.but(location="ended", out="out-ended").using({RETAINED: "2"})
        ended.run()
        yield World(job, query, ended.location_path, savepoint.path, str(base / "native"))
        query.stop()


def call(name: str, world: World, **more: Any) -> Any:
    """Call a public function as a user does, with a session only if `more` has one."""
    job, savepoint = world.job, ckpt.location(world.savepoint)
    checkpoints = ckpt.location(job.checkpoint_path)

    def erase_keys() -> Any:
        kept = savepoint.rename_uid({}, world.fresh("private"))
        return ckpt.location(Path(kept.path).parent).erase_keys({}, **more)

    def rollback() -> Any:
        copy = world.fresh("copy")
        shutil.copytree(world.ended, copy)
        return ckpt.location(copy).rollback("chk-1", **more)

    def enable() -> None:
        ckpt.enable(job.spark)
        ckpt.disable(job.spark)

    def current_epoch() -> None:
        with pytest.raises(ckpt.errors.UnknownEpochError):
            ckpt.current_epoch()

    def dispose() -> Any:
        return ckpt.location(savepoint.rename_uid({}, world.fresh("unwanted")).path).dispose()

    calls: dict[str, Callable[[], Any]] = {
        "attach": lambda: ckpt.attach(job.spark, world.query.id),
        "capture": lambda: ckpt.location(job.location_path).capture(1),
        "current_epoch": current_epoch,
        "diff": lambda: savepoint.diff(savepoint),
        "disable": lambda: ckpt.disable(job.spark),
        "dispose": dispose,
        "edit_state": lambda: ckpt.edit_state(world.savepoint, **more).save(world.fresh("edited")),
        "enable": enable,
        "erase_keys": erase_keys,
        "history": checkpoints.history,
        "import_checkpoint": lambda: ckpt.location(world.native).import_checkpoint(
            world.fresh("imported"), processor=Numbered(), uid="op", **more
        ),
        "key_by": lambda: ckpt.key_by(job.stream(), "k"),
        "lineage": checkpoints.lineage,
        "list": checkpoints.list,
        "local_files_conf": ckpt.local_files_conf,
        "location": lambda: ckpt.location(world.savepoint),
        "plan": lambda: savepoint.plan(job.df()).check(),
        "read_conf_file": lambda: ckpt.read_conf_file("conf/heap.conf"),
        "rename_uid": lambda: savepoint.rename_uid({}, world.fresh("renamed")),
        "rollback": rollback,
        "shadow": lambda: ckpt.shadow(job.start(), job.df()).discard(),
        "show": savepoint.show,
        "state": lambda: savepoint.state().state("op", "n").to_pandas(),
        "subtask_history": checkpoints.subtask_history,
        "verify": savepoint.verify,
        "write_stream": lambda: (
            ckpt.write_stream(job.df()).restoreFrom(world.savepoint).planRestore()
        ),
    }
    assert calls.keys() == FUNCTIONS.keys(), "a public function has no call here"
    return calls[name]()


def in_another_thread(work: Callable[[], Any]) -> None:
    """Run something in a thread that has no active session."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            assert SparkSession.getActiveSession() is None
            work()
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "shadow" else ())
        for name in sorted(FUNCTIONS)
    ],
)
def test_a_public_function_in_another_thread(name: str, world: World) -> None:
    in_another_thread(partial(call, name, world))


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_function_takes_a_session(name: str, world: World) -> None:
    """It works in this one, and says so if it gets something else."""
    given = world.job.spark.newSession()
    in_another_thread(partial(call, name, world, spark=given))
    with pytest.raises(
        ckpt.errors.CkptError, match=f"{name} got int for spark: give a SparkSession"
    ):
        call(name, world, spark=3)


@pytest.mark.parametrize(
    "more", [[], pytest.param(["stopped"], marks=[pytest.mark.slow, pytest.mark.own_jvm])]
)
def test_without_a_running_session(more: list[str]) -> None:
    """Nobody makes one."""
    command = [sys.executable, "-c", CALLED_WITHOUT, ",".join(OPTIONAL), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = [f"{name} needs a Spark session, and this process has none" for name in OPTIONAL]
    if more:
        expected += [
            f"{name} needs a Spark session, and this one was stop" for name in OPTIONAL
        ] * 2
    assert len(said := done.stdout.splitlines()) == len(expected)
    assert [line[: len(start)] for line, start in zip(said, expected, strict=True)] == expected
