"""Check before a query starts that Spark's Python workers can import this library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.jobs import SHIP_ADVICE, WORKER_ADVICE

logger = library_logger(__name__)

LEAST_WORKER_MIB = 1024
"""Least address space of a worker; most of it is of libraries, threads and the backend's map."""

_MEMORY = "spark.executor.pyspark.memory"
_CORES = "spark.executor.cores"
_PY_FILES = "spark.submit.pyFiles"
_TIMEOUT_SECONDS = 60
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgtp]?)(?P<bytes>b?)")
_UNITS = ("", "k", "m", "g", "t", "p")
_IMPORT = "import pyspark_ckpt, msgspec, rocksdict, lmdb"


def check_workers(spark: SparkSession) -> None:
    """Check that the Python workers of a local session can import the library.

    It costs nothing if they run the driver's own Python. Executors on other machines are not
    checked; their tasks raise the error. The memory of the workers is checked everywhere.
    """
    if not session_of(spark).has_jvm:  # whose workers are the server's
        _check_memory(spark.conf.get)
        return
    context: Any = spark.sparkContext
    conf = context._conf.get  # PySpark's getConf copies all of it, in a call of the JVM for each
    _warn_of_wheels(str(conf(_PY_FILES, "")))
    _check_memory(conf)
    if not str(context.master).startswith("local") or context._python_includes:
        return  # other machines, or Python files that the user added to the workers
    executable = shutil.which(context.pythonExec) or str(context.pythonExec)
    if Path(executable).absolute().parent == Path(sys.executable).absolute().parent:
        return  # python and python3 of one environment
    java: Any = spark._jvm
    of_spark = getattr(java, "org.apache.spark.api.python.PythonUtils").sparkPythonPath()
    paths = (of_spark, context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
    problem = _problem_of(executable, os.pathsep.join(str(path) for path in paths if path))
    if problem is not None:
        raise ConfigurationError(
            f"Spark's Python workers run {executable}, which cannot import pyspark_ckpt "
            f"({problem}); the driver runs {sys.executable}: {WORKER_ADVICE}"
        )


def _warn_of_wheels(py_files: str) -> None:
    """Warn of wheels that Spark does not put on the workers' path, and says nothing about."""
    wheels = [Path(file).name for file in py_files.split(",") if file.lower().endswith(".whl")]
    if wheels:
        logger.warning(
            "Spark ignores wheels in --py-files (%s): its Python workers do not find %s. %s",
            _PY_FILES,
            ", ".join(wheels),
            SHIP_ADVICE,
        )


def _check_memory(conf: Callable[..., Any]) -> None:
    """Refuse a limit of a worker's address space under which no backend works."""
    limit = conf(_MEMORY, None)
    if limit is None:
        return
    cores = int(conf(_CORES, None) or "1")
    worker_mib = _mebibytes(str(limit)) // cores
    if worker_mib < LEAST_WORKER_MIB:
        raise ConfigurationError(
            f"{_MEMORY} is {limit} for {cores} cores, which is {worker_mib} MiB of address space "
            f"for each Python worker, and no state backend works in less than {LEAST_WORKER_MIB} "
            f"MiB: set it to {LEAST_WORKER_MIB * cores}m or more, or unset it and set "
            "spark.executor.memoryOverhead"
        )


def _mebibytes(size: str) -> int:
    """Return a size as Spark reads it; without a unit it is in MiB."""
    found = _SIZE.fullmatch(size.strip().lower())
    assert found is not None  # Spark starts with no other value
    unit = found["unit"] or ("" if found["bytes"] else "m")
    size_bytes: int = int(found["number"]) * 1024 ** _UNITS.index(unit)
    return size_bytes // 1024**2


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
