"""The driver gets the error that ended a task, with its class and message."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pyspark_ckpt
from pyspark_ckpt.errors import (
    CkptError,
    ConfigurationError,
    CorruptFileError,
    ProcessorError,
    StateUseError,
    TimeModeError,
)
from pyspark_ckpt.operator.task_failure import failure_in, marked_errors, marks_errors
from pyspark_ckpt.spark.jobs import error_text, task_error

LINES = '  File "job.py", line 3, in f\n    return 1 // n'
FORGED = "no\n  [pyspark_ckpt error 1: PlanError, 2 characters]"


def traceback_of(error: CkptError) -> str:
    """Return the text that a Python worker reports for an error that leaves a task."""
    try:
        with marked_errors():
            try:
                raise ValueError(FORGED)
            except ValueError:
                raise error  # noqa: B904  # both are in the traceback
    except CkptError:
        return traceback.format_exc()


@pytest.mark.parametrize(
    "error",
    [
        CorruptFileError("shared/base: SHA-256 is a, b was written; restore"),
        ProcessorError(f"op: raised\n{LINES}"),
        ProcessorError(f"op: raised ValueError: {FORGED} and more\n\n{LINES}"),
        ProcessorError(FORGED),
        StateUseError("two\r\nlines, \t \u00e9 \U0001f600\n"),
        ProcessorError(""),
    ],
)
def test_class_and_message_come_as_they_are(error: CkptError) -> None:
    message = str(error)
    text = f"An exception was thrown:\n{traceback_of(error)}\n\tat org.A.b(A.scala)"
    found = task_error(PySparkException(text))
    assert type(found) is type(error)
    assert str(found) == message


def test_the_message_has_the_condition_of_pyspark() -> None:
    error = TimeModeError("it needs a clock", "UNSUPPORTED_OPERATION")
    message = str(error)
    found = failure_in(traceback_of(error))
    assert type(found) is TimeModeError
    assert str(found) == message


def test_an_error_is_marked_once() -> None:
    error = CorruptFileError("cut")
    with pytest.raises(CorruptFileError), marked_errors(), marked_errors():
        raise error
    assert str(error).count("[pyspark_ckpt error") == 1


class _Raises:
    """A function that Spark calls in a task."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                raise self._error()
        yield from ()


@pytest.mark.slow
@pytest.mark.parametrize("simplified", ["true", "false"])
def test_a_real_task_passes_class_and_message_on(spark: SparkSession, simplified: str) -> None:
    message = f"op, key ('\u00e9', '\U0001f600'): raised\n{LINES}\n{FORGED}"
    key = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
    before = spark.conf.get(key)
    spark.conf.set(key, simplified)
    try:
        job = spark.range(1).mapInArrow(_Raises(lambda: ProcessorError(message)), "id long")
        with pytest.raises(PySparkException) as caught:
            job.collect()
    finally:
        spark.conf.set(key, before)
    found = task_error(caught.value)
    assert type(found) is ProcessorError
    assert str(found) == message


@pytest.mark.slow
def test_an_error_of_the_user_is_left_alone(spark: SparkSession) -> None:
    """It is left alone even if its text looks like an error of the library."""
    text = "pyspark_ckpt.errors.CorruptFileError: said by the user"
    job = spark.range(1).mapInArrow(_Raises(lambda: ValueError(text)), "id long")
    with pytest.raises(PySparkException) as caught:
        job.collect()
    assert task_error(caught.value) is None


def test_the_text_of_an_error_has_no_java_stack() -> None:
    text = "calling o1.load.\n: SparkException: no session\n\tat org.A.b(A.scala:1)\n"
    assert error_text(OSError(text)) == "OSError: calling o1.load.\n: SparkException: no session"


@pytest.mark.slow
def test_every_function_that_spark_calls_in_a_task_marks_errors() -> None:
    package = Path(pyspark_ckpt.__file__).parent
    functions = {
        f"{path.relative_to(package)}:{cls.name}": [
            decorator.id
            for method in cls.body
            if isinstance(method, ast.FunctionDef) and method.name == "__call__"
            for decorator in method.decorator_list
            if isinstance(decorator, ast.Name)
        ]
        for path in package.rglob("*.py")
        for cls in ast.walk(ast.parse(path.read_text()))
        if isinstance(cls, ast.ClassDef)
        and (ast.get_docstring(cls) or "").startswith("The function given to ``")
    }
    assert len(functions) > 5
    assert {name: found for name, found in functions.items() if found != ["marks_errors"]} == {}


@pytest.mark.parametrize(
    "mark",
    [
        "[pyspark_ckpt error 2: CorruptFileError, 1 characters]",  # of a newer version
        "[pyspark_ckpt error 1: Nothing, 1 characters]",
        "[pyspark_ckpt error 1: re, 1 characters]",
        "[pyspark_ckpt error 1: PySparkException, 1 characters]",
        "[pyspark_ckpt error 1: CorruptFileError, 99 characters]",
    ],
)
def test_other_marks_are_left_alone(mark: str) -> None:
    assert failure_in(f"x\n  {mark}") is None


def test_a_worker_without_the_library_gets_advice_what_to_set() -> None:
    text = "worker:\n  File \"x\", line 1\nModuleNotFoundError: No module named 'pyspark_ckpt'\n"
    error = task_error(PySparkException(text))
    assert type(error) is ConfigurationError
    assert "PYSPARK_PYTHON" in str(error)
    for named in ("venv-pack", "--archives", "--py-files", "'pyspark_ckpt'"):
        assert named in str(error)
    of_zip = task_error(PySparkException(text.replace("pyspark_ckpt", "fsspec")))
    assert "cannot import pyspark_ckpt (ModuleNotFoundError: No module named 'fsspec')" in str(
        of_zip
    )
    of_user = text.replace("pyspark_ckpt", "job_helpers")
    assert task_error(PySparkException(of_user)) is None
