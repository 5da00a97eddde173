"""Errors of this library that tasks raised, as the driver's caller should see them."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from pyspark_ckpt import errors
from pyspark_ckpt.errors import CkptError

_RAISED = re.compile(r"^pyspark_ckpt\.errors\.(\w+): (.*)$", re.MULTILINE)


def task_error(failure: PySparkException) -> CkptError | None:
    """Return what a task raised, from the traceback that Spark passes on.

    ``None`` if it was none of this library's errors.
    """
    raised = _RAISED.findall(str(failure))
    if not raised:
        return None
    name, message = raised[-1]
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, CkptError):
        return None
    return kind(message)
