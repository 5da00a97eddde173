"""Errors of tasks and of the JVM, as the driver's caller should see them."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from pyspark_ckpt import errors
from pyspark_ckpt.errors import CkptError, ConfigurationError

WORKER_ADVICE = (
    "activate the environment that has the library, or set PYSPARK_PYTHON to its Python before the "
    "session is made (os.environ['PYSPARK_PYTHON'] = sys.executable where both run on one machine)"
)
"""What to do about Python workers that cannot import the library."""

_NOT_IMPORTED = re.compile(
    r"ModuleNotFoundError: No module named '(?:pyspark_ckpt|state_backends|msgspec|rocksdict|lmdb)"
)
_JAVA_FRAME = "\tat "
_RAISED = re.compile(r"^pyspark_ckpt\.errors\.(\w+): (.*(?:\n  .*)*)$", re.MULTILINE)
"""The lines of the user's code that follow a message begin with spaces."""


def error_text(error: BaseException) -> str:
    """Return an error's kind and message, without the stack that one of the JVM's has in it."""
    lines = f"{type(error).__name__}: {error}".splitlines()
    return "\n".join(line for line in lines if not line.startswith(_JAVA_FRAME))


def task_error(failure: PySparkException) -> CkptError | None:
    """Return what a task raised, from the traceback that Spark passes on.

    ``None`` if it was none of this library's errors.
    """
    text = str(failure)
    missing = _NOT_IMPORTED.search(text)
    if missing is not None:
        return ConfigurationError(
            f"Spark's Python workers cannot import pyspark_ckpt ({missing.group()}'): "
            f"{WORKER_ADVICE}"
        )
    raised = _RAISED.findall(text)
    if not raised:
        return None
    name, message = raised[-1]
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, CkptError):
        return None
    return kind(message)
