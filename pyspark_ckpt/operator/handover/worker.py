"""Have Spark's Python worker hand a task's rows over as Arrow.

While the worker unpickles the function of a task, its function ``read_udfs`` is on the stack. That
function holds the serializer object of this one task, which reads the stream from Spark and writes
the stream back. Its two methods are replaced on the object: no module is changed, and no other task
is concerned. Where anything is not as expected, nothing is changed, and PySpark's own way through
pandas is taken. This module alone knows PySpark's worker.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import IO, Any

import pyarrow as pa
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.util import PythonEvalType

from pyspark_ckpt.operator.handover.arrow_stream import write_stream
from pyspark_ckpt.operator.task_failure import marked_errors

_log = logging.getLogger("pyspark_ckpt")

_READ_UDFS = "read_udfs"
_WORKERS = ("pyspark.worker", "__main__")
_PROFILER = "spark.sql.pyspark.udf.profiler"

Replies = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the batches of the stream to Python to those of the stream back."""

_logged: set[str] = set()


def take_over(replies: Replies) -> bool:
    """Have the task whose function is being unpickled hand its rows over as Arrow.

    Called on an executor while the worker unpickles; does nothing anywhere else.
    """
    frame = _reading_frame()
    if frame is None:  # the driver makes copies of functions too
        return False
    try:
        reason = _refusal(frame)
        if reason is None:
            _replace_methods(frame.f_locals["ser"], replies)
    except Exception as exc:  # an unknown worker: the task continues
        reason = f"the worker is not as expected ({type(exc).__name__}: {exc})"
    if reason is not None and reason not in _logged:
        _logged.add(reason)
        _log.warning("rows are handed over through pandas, not through Arrow: %s", reason)
    return reason is None


def explain_errors(explained: Callable[[Exception], Exception | None]) -> None:
    """Have the task whose function is being unpickled raise other errors for PySpark's own.

    For a task that hands its rows over through pandas: PySpark's worker makes the frames, outside
    of the function. Does nothing in a worker that is not as expected.

    `explained` returns the error to raise, or ``None`` for the error itself.
    """
    frame = _reading_frame()
    serializer: Any = None if frame is None else frame.f_locals.get("ser")
    own = getattr(serializer, "dump_stream", None)
    if own is None:
        return

    def dump_stream(output: Iterator[Any], stream: IO[bytes]) -> None:
        try:
            own(output, stream)
        except Exception as exc:
            other = explained(exc)
            if other is None:
                raise
            with marked_errors():
                raise other from exc

    with suppress(AttributeError):
        serializer.dump_stream = dump_stream


def _reading_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if name == _READ_UDFS and module in _WORKERS:
            return frame
        frame = frame.f_back
    return None


def _refusal(frame: FrameType) -> str | None:
    """Return why a task cannot hand over Arrow, ``None`` if it can."""
    known = frame.f_locals
    if known.get("eval_type") != PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE:
        return f"the function is called as evaluation type {known.get('eval_type')}"
    if not isinstance(known.get("ser"), ArrowStreamSerializer):
        return f"the serializer is {type(known.get('ser')).__name__}"
    if os.environ.get("SPARK_PIPELINED_UDF") == "1":
        return "spark.python.udf.pipelined.enabled is true"
    conf = known.get("runner_conf")
    if conf is None:
        return "the worker has no settings"
    profiler = conf.get(_PROFILER) if isinstance(conf, dict) else conf.udf_profiler
    return f"{_PROFILER} is {profiler}" if profiler else None


def _replace_methods(serializer: Any, replies: Replies) -> None:
    inputs: list[IO[bytes]] = []

    def load_stream(stream: IO[bytes]) -> Iterator[Any]:
        inputs.append(stream)
        return iter(())  # the function that PySpark makes of this is never called

    def dump_stream(_: Iterator[Any], stream: IO[bytes]) -> None:
        with pa.ipc.open_stream(inputs.pop()) as reader:
            write_stream(replies(reader), stream)

    own = serializer.load_stream
    serializer.load_stream = load_stream
    try:
        serializer.dump_stream = dump_stream
    except Exception:
        serializer.load_stream = own  # one without the other would lose the rows
        raise
