"""An error of a processor shows the user's line, in every way that rows, times and states come."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import Job

SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
PROGRAM = Path(__file__).with_name("failing_program.py")
OUTPUT = "k string, n long"


def helper(n: int) -> float:
    return 1 / n  # fails here


class Failing(StatefulProcessor):
    """A processor that fails in a given step."""

    def __init__(self, step: str) -> None:
        self.step = step

    def fail_in(self, step: str) -> None:
        if self.step == step:
            helper(0)

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.fail_in("handleInputRows")
        if self.step == "value":
            self.total.update(("seven",))  # fails here
        if self.step == "handleExpiredTimer":
            self.handle.registerTimer(1)
        if self.step == "output":
            yield Row(k=key[0], n="many")
        if self.step == "frames":
            yield pd.DataFrame({"k": [key[0]], "n": ["many"]})

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterable[Any]:
        self.fail_in("handleExpiredTimer")
        return iter([])

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.fail_in("handleInitialState")

    def handleBroadcastRows(self, rows: Any, timerValues: Any) -> Iterable[Any]:
        self.fail_in("handleBroadcastRows")
        return iter([])

    def snapshotState(self, context: Any) -> None:
        self.fail_in("snapshotState")

    def close(self) -> None:
        pass


class FailingBatches(Failing, ckpt.BatchProcessor):
    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.fail_in("handleInputBatch")
        yield pd.DataFrame({"k": keys["k"], "n": ["many"] * len(keys)})


def line_of(function: Callable[..., Any], text: str) -> str:
    """Return a line of a function as it is shown in an error."""
    lines, first = inspect.getsourcelines(function)
    number = next(number for number, line in enumerate(lines, first) if text in line)
    return f'  File "{__file__}", line {number}, in {function.__name__}\n    '


def over_a_batch(job: Job, processor: Failing, method: str) -> str:
    """Return the error of a processor over a DataFrame that is not a stream."""
    rows = job.spark.createDataFrame([("b", 1)], "k string, v long")
    keyed = ckpt.key_by(rows, "k")
    if processor.step == "handleBroadcastRows":
        keyed = keyed.connectBroadcast(rows)
    more = {"initialState": rows.groupBy("k")} if processor.step == "handleInitialState" else {}
    time_mode = "ProcessingTime"
    call = getattr(keyed, method)
    df: DataFrame = call(processor, OUTPUT, "Append", time_mode, uid="op", **more)
    with pytest.raises(PythonException) as raised:
        df.collect()
    return str(raised.value)


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("step", "method", "place"),
    [
        ("handleInputRows", "transformWithState", "handleInputRows, key ('b',)"),
        ("handleInputRows", "transformWithStateInPandas", "handleInputRows, key ('b',)"),
        ("handleInputBatch", "transformWithStateInBatches", "handleInputBatch"),
        ("handleExpiredTimer", "transformWithState", "handleExpiredTimer, key ('b',)"),
        ("handleInitialState", "transformWithState", "handleInitialState, key ('b',)"),
        ("handleBroadcastRows", "transformWithState", "handleBroadcastRows"),
        ("snapshotState", "transformWithState", "snapshotState"),
    ],
)
def test_what_a_step_raises(job: Job, step: str, method: str, place: str) -> None:
    kind = FailingBatches if method.endswith("Batches") else Failing
    text = over_a_batch(job, kind(step), method)
    assert "ProcessorError: operator 'op', subtask " in text
    assert f", {place}: {kind.__name__} raised ZeroDivisionError" in text
    called = getattr(kind, step)
    assert line_of(called, f'fail_in("{step}")') in text
    assert line_of(helper, "fails here") + "return 1 / n  # fails here" in text


@pytest.mark.soak
def test_a_value_that_does_not_fit_its_state(job: Job) -> None:
    text = over_a_batch(job, Failing("value"), "transformWithState")
    assert "StateValueError: operator 'op'" in text
    assert "value state 'total': ('seven',) does not fit" in text
    assert "; in handleInputRows, key ('b',)\n" in text
    assert line_of(Failing.handleInputRows, "fails here") + "self.total.update" in text


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("step", "method", "place", "called"),
    [
        ("output", "transformWithState", "handleInputRows, key ('b',)", Failing.handleInputRows),
        ("frames", "transformWithStateInPandas", "handleInputRows, key ('b',)",
         Failing.handleInputRows),
        ("output", "transformWithStateInBatches", "handleInputBatch",
         FailingBatches.handleInputBatch),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_the_output(
    job: Job, step: str, method: str, place: str, called: Callable[..., Any]
) -> None:
    """It is found when the generator has ended: the method that gave it is shown."""
    kind = FailingBatches if method.endswith("Batches") else Failing
    text = over_a_batch(job, kind(step), method)
    assert "output column 'n' is bigint, the returned value 'many' is not" in text
    assert f"; by {place}\n" in text
    assert line_of(called, "def ") in text


@pytest.mark.soak_variants
@pytest.mark.parametrize("simplified", ["true", "false"])
def test_in_a_running_query(job: Job, simplified: str) -> None:
    """With and without Spark's simplified traceback, which leaves causes out."""
    job = job.but(processor=lambda: Failing("handleInputRows"), output=OUTPUT)
    job.feed.add([("b", 1)])
    job.spark.conf.set(SIMPLIFIED, simplified)
    try:
        query = job.start()
        with pytest.raises(StreamingQueryException) as raised:
            query.processAllAvailable()
    finally:
        job.spark.conf.unset(SIMPLIFIED)
    for text in (str(raised.value), str(query.exception())):
        assert "handleInputRows, key ('b',): Failing raised ZeroDivisionError" in text
        assert line_of(helper, "fails here") + "return 1 / n  # fails here" in text
    with pytest.raises(ckpt.errors.CheckpointAbortedError, match="has failed before its first"):
        query.triggerSavepoint(str(job.base / "sp"))


@pytest.mark.slow
def test_a_migration_that_raises(job: Job) -> None:
    job = job.but(processor=lambda: Failing(""), output=OUTPUT)

    def into(row: Row) -> tuple[float]:
        return (helper(0),)

    class Stored(Failing):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            self.total.update((1,))
            return iter([])

    class Wanted(Failing):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "n double, unit string")

    job.feed.add([("b", 1)])
    job.but(processor=lambda: Stored("")).run()
    job.feed.add([("b", 1)])
    migrations = {"total": ckpt.Migration(value=into)}
    changed = job.but(processor=lambda: Wanted(""), arguments={"migrations": migrations})
    with pytest.raises(StreamingQueryException) as raised:
        changed.run()
    assert "the migration raised ZeroDivisionError" in str(raised.value)
    assert line_of(helper, "fails here") in str(raised.value)


@pytest.mark.soak
@pytest.mark.own_jvm
def test_a_notebook_cell_in_the_log(tmp_path: Path) -> None:
    """The driver's log shows code that has no file; the driver is a separate process."""
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    wanted = 'File "/tmp/ipykernel_1/2.py", line 8, in handleInputRows\n    yield Row(n=1 // 0)'
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert wanted in ended.stdout
    assert wanted in ended.stderr
