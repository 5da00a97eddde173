"""Check before a query starts that Spark's Python workers can import this library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.spark.jobs import WORKER_ADVICE

_TIMEOUT_SECONDS = 60
_IMPORT = "import pyspark_ckpt, msgspec, rocksdict, lmdb"


def check_workers(spark: SparkSession) -> None:
    """Check that the Python workers of a local session can import the library.

    It costs nothing if they run the driver's own Python. Executors on other machines are not
    checked; their tasks raise the error.

    Raises
    ------
    ConfigurationError
        If they cannot. The message says what to set.
    """
    context: Any = spark.sparkContext
    if not str(context.master).startswith("local") or context._python_includes:
        return  # other machines, or Python files that the user added to the workers
    executable = shutil.which(context.pythonExec) or str(context.pythonExec)
    if Path(executable).absolute().parent == Path(sys.executable).absolute().parent:
        return  # python and python3 of one environment
    of_spark = spark._jvm.org.apache.spark.api.python.PythonUtils.sparkPythonPath()  # type: ignore[union-attr]
    paths = (of_spark, context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
    problem = _problem_of(executable, os.pathsep.join(str(path) for path in paths if path))
    if problem is not None:
        raise ConfigurationError(
            f"Spark's Python workers run {executable}, which cannot import pyspark_ckpt "
            f"({problem}); the driver runs {sys.executable}: {WORKER_ADVICE}"
        )


@cache
def _problem_of(executable: str, python_path: str) -> str | None:
    """Return why a Python cannot import the library, ``None`` if it can."""
    try:
        done = subprocess.run(  # noqa: S603  # the program that Spark runs
            [executable, "-c", _IMPORT],
            env={**os.environ, "PYTHONPATH": python_path},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
