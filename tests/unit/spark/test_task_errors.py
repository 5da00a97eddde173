"""What a task raised is found in the traceback that Spark passes on."""

from __future__ import annotations

from pyspark.errors import PySparkException

from pyspark_ckpt.errors import ConfigurationError, CorruptFileError, ProcessorError
from pyspark_ckpt.spark.jobs import error_text, task_error

TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "somewhere.py", line 1, in f
ValueError: first

During handling of the above exception, another exception occurred:

pyspark_ckpt.errors.CorruptFileError: shared/base: SHA-256 is a, b was written; restore
"""


def test_the_last_of_our_errors_is_found() -> None:
    error = task_error(PySparkException(TRACEBACK))
    assert type(error) is CorruptFileError
    assert str(error) == "shared/base: SHA-256 is a, b was written; restore"


def test_the_lines_of_the_users_code_come_along() -> None:
    """They are part of the message, behind its first line; Java's stack is not."""
    lines = '  File "job.py", line 3, in f\n    return 1 // n'
    text = f"pyspark_ckpt.errors.ProcessorError: op: raised\n{lines}\n\n\tat org.A.b(A.scala)"
    error = task_error(PySparkException(text))
    assert type(error) is ProcessorError
    assert str(error) == f"op: raised\n{lines}"


def test_the_text_of_an_error_has_no_java_stack() -> None:
    text = "calling o1.load.\n: SparkException: no session\n\tat org.A.b(A.scala:1)\n"
    assert error_text(OSError(text)) == "OSError: calling o1.load.\n: SparkException: no session"


def test_other_errors_are_left_alone() -> None:
    for text in ("ValueError: x", "pyspark_ckpt.errors.Nothing: x", "pyspark_ckpt.errors.re: x"):
        assert task_error(PySparkException(text)) is None


def test_a_worker_without_the_library_is_told_what_to_set() -> None:
    text = "worker:\n  File \"x\", line 1\nModuleNotFoundError: No module named 'pyspark_ckpt'\n"
    error = task_error(PySparkException(text))
    assert type(error) is ConfigurationError
    assert "PYSPARK_PYTHON" in str(error)
    of_user = text.replace("pyspark_ckpt", "job_helpers")
    assert task_error(PySparkException(of_user)) is None
