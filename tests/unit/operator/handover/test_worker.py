"""When a task hands over Arrow: what it needs of PySpark's worker, and what it does without that.

The function ``read_udfs`` of these tests stands for PySpark's; the real one is in the tests of
queries, which cannot make it go wrong.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.util import PythonEvalType

from pyspark_ckpt.operator.handover import worker

STATEFUL = PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE
ROWS = pa.record_batch({"n": [1, 2, 3]})


def twice(batches: Any) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        yield batch


def read_udfs(ser: Any, runner_conf: Any, eval_type: int = STATEFUL) -> bool:
    """Call :func:`take_over` below a function as PySpark's worker has it."""
    source = "def read_udfs(ser, runner_conf, eval_type, unpickle):\n    return unpickle()\n"
    module: dict[str, Any] = {"__name__": "pyspark.worker"}
    exec(source, module)
    call: Callable[..., bool] = module["read_udfs"]
    return call(ser, runner_conf, eval_type, lambda: worker.take_over(twice))


@pytest.fixture(autouse=True)
def logs_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(worker, "_logged", set())
    caplog.set_level(logging.WARNING, "pyspark_ckpt")


def sent() -> io.BytesIO:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, ROWS.schema) as writer:
        writer.write_batch(ROWS)
    stream.seek(0)
    return stream


def test_arrow_goes_in_and_out(caplog: pytest.LogCaptureFixture) -> None:
    serializer, out = ArrowStreamSerializer(), io.BytesIO()
    assert read_udfs(serializer, SimpleNamespace(udf_profiler=None))
    serializer.dump_stream(serializer.load_stream(sent()), out)
    out.seek(4)  # after what PySpark's worker writes before the stream
    assert pa.ipc.open_stream(out).read_all().num_rows == 6
    assert caplog.text == ""


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
    ("serializer", "conf", "eval_type", "reason"),
    [
        (ArrowStreamSerializer(), SimpleNamespace(udf_profiler="perf"), STATEFUL, "is perf"),
        (ArrowStreamSerializer(), {worker._PROFILER: "perf"}, STATEFUL, "is perf"),
        (ArrowStreamSerializer(), None, STATEFUL, "the worker has no settings"),
        (ArrowStreamSerializer(), SimpleNamespace(), STATEFUL, "not as expected (AttributeError"),
        (ArrowStreamSerializer(), {}, 0, "evaluation type 0"),
        (object(), {}, STATEFUL, "the serializer is object"),
        (WithoutMethods(), {}, STATEFUL, "load_stream cannot be set"),
        (WithoutDump(), {}, STATEFUL, "dump_stream cannot be set"),
    ],
)
def test_what_is_not_known_goes_through_pandas(
    caplog: pytest.LogCaptureFixture, serializer: Any, conf: Any, eval_type: int, reason: str
) -> None:
    assert not read_udfs(serializer, conf, eval_type)
    assert not read_udfs(serializer, conf, eval_type)
    assert caplog.text.count(reason) == 1, "the reason is logged once"
    if isinstance(serializer, ArrowStreamSerializer):
        rows = serializer.load_stream(sent())
        assert [batch.num_rows for batch in rows] == [3], "PySpark's own method is called"


def test_pipelined_mode_goes_through_pandas(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    assert not read_udfs(ArrowStreamSerializer(), {})
    assert "spark.python.udf.pipelined.enabled" in caplog.text


def test_nothing_is_done_outside_of_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    assert not worker.take_over(twice)
    assert caplog.text == ""
