"""What the hand-over in Arrow needs of PySpark's worker, and why it is refused without that.

The function ``read_udfs`` of these tests stands for PySpark's; the real one is in the tests of
queries, which cannot make it go wrong.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.util import PythonEvalType

from pyspark_ckpt.operator.handover import worker

STATEFUL = PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE
MAP_IN_ARROW = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
ROWS = pa.record_batch({"n": [1, 2, 3]})


def twice(batches: Any) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        yield batch


def read_udfs(
    ser: Any,
    runner_conf: Any,
    eval_type: int = STATEFUL,
    unpickle: Callable[[], str | None] = lambda: worker.take_over(twice),
) -> str | None:
    """Unpickle a function below a function as PySpark's worker has it."""
    source = "def read_udfs(ser, runner_conf, eval_type, unpickle):\n    return unpickle()\n"
    module: dict[str, Any] = {"__name__": "pyspark.worker"}
    exec(source, module)
    call: Callable[..., str | None] = module["read_udfs"]
    return call(ser, runner_conf, eval_type, unpickle)


def sent() -> io.BytesIO:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, ROWS.schema) as writer:
        writer.write_batch(ROWS)
    stream.seek(0)
    return stream


def test_arrow_goes_in_and_out() -> None:
    serializer, out = ArrowStreamSerializer(), io.BytesIO()
    assert read_udfs(serializer, SimpleNamespace(udf_profiler=None)) is None
    serializer.dump_stream(serializer.load_stream(sent()), out)
    out.seek(4)  # after what PySpark's worker writes before the stream
    assert pa.ipc.open_stream(out).read_all().num_rows == 6


class WithoutMethods(ArrowStreamSerializer):
    """A serializer that lets nobody replace its methods."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("load_stream", "dump_stream"):
            raise AttributeError(f"{name} cannot be set")
        super().__setattr__(name, value)


class WithoutDump(ArrowStreamSerializer):
    """A serializer that lets only one of the two be replaced."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "dump_stream":
            raise AttributeError(f"{name} cannot be set")
        super().__setattr__(name, value)


@pytest.mark.parametrize(
    ("unpickle", "eval_type"),
    [(lambda: worker.take_over(twice), STATEFUL), (worker.refusal_of_probe, MAP_IN_ARROW)],
    ids=["task", "probe"],
)
@pytest.mark.parametrize(
    ("serializer", "conf", "is_of_type", "reason"),
    [
        (ArrowStreamSerializer, SimpleNamespace(udf_profiler="perf"), True, "is perf"),
        (ArrowStreamSerializer, {worker.PROFILER: "perf"}, True, "is perf"),
        (ArrowStreamSerializer, None, True, "the worker has no settings"),
        (ArrowStreamSerializer, SimpleNamespace(), True, "not as expected (AttributeError"),
        (ArrowStreamSerializer, {}, False, "evaluation type 0"),
        (object, {}, True, "the serializer is object"),
        (WithoutMethods, {}, True, "load_stream cannot be set"),
        (WithoutDump, {}, True, "dump_stream cannot be set"),
    ],
)
def test_a_worker_that_is_not_known_is_refused(
    unpickle: Any, eval_type: int, serializer: Any, conf: Any, is_of_type: bool, reason: str
) -> None:
    ser = serializer()
    refusal = read_udfs(ser, conf, eval_type if is_of_type else 0, unpickle)
    assert reason in (refusal or "")
    if isinstance(ser, ArrowStreamSerializer):
        rows = ser.load_stream(sent())
        assert [batch.num_rows for batch in rows] == [3], "PySpark's own method is called"


def test_pipelined_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    assert "spark.python.udf.pipelined.enabled" in (read_udfs(ArrowStreamSerializer(), {}) or "")


def test_nothing_is_done_outside_of_a_worker() -> None:
    assert worker.take_over(twice) == "no read_udfs of PySpark's worker unpickles the function"
    assert "read_udfs" in (worker.refusal_of_probe() or "")


def test_a_probe_changes_nothing() -> None:
    serializer, out = ArrowStreamSerializer(), io.BytesIO()
    assert read_udfs(serializer, {}, MAP_IN_ARROW, worker.refusal_of_probe) is None
    serializer.dump_stream(serializer.load_stream(sent()), out)
    out.seek(0)
    assert pa.ipc.open_stream(out).read_all().num_rows == 3
