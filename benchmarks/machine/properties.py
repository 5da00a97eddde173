"""The properties of the machine that figures depend on, without its name."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from pyspark_ckpt import __version__
from tools.measured_commit import measured_commit


def describe_machine(spark: SparkSession) -> dict[str, Any]:
    """Return the machine and the versions, of Java too."""
    jvm: Any = spark._jvm
    return describe_host() | {"Java": jvm.java.lang.System.getProperty("java.version")}


def describe_host() -> dict[str, Any]:
    """Return the machine and the versions, for a benchmark without Spark."""
    return {
        "CPUs": os.cpu_count(),
        "processor": _processor(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1024**3:.0f} GiB",
        "architecture": platform.machine(),
        "system": platform.system(),
        "Python": platform.python_version(),
        "PySpark": pyspark.__version__,
        "pandas": pd.__version__,
        "NumPy": np.__version__,
        "PyArrow": pa.__version__,
        "pyspark_ckpt": __version__,
        "commit": measured_commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
