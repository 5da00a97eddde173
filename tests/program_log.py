"""What the logs of a program say is wrong: its own, its driver's and its server's."""

from __future__ import annotations

import re
from pathlib import Path

FORMAT = Path(__file__).parent / "log_format"
"""A directory for ``PYTHONPATH``: Python's own lines then have their level and logger."""

_OF_SPARK = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (WARN|ERROR|FATAL) (.*)")
_OF_PYTHON = re.compile(r"\b(WARNING|ERROR|CRITICAL) ([\w.]+): (.*)")
_TRACES = re.compile(r"^Traceback \(most recent call last\):|^Exception in thread .*", re.MULTILINE)
"""The first two also after a progress bar, which has no end of a line."""

_SPARKS_OWN = re.compile(
    "Unable to load native-hadoop"
    "|spark.sql.adaptive.enabled is not supported in streaming"
    "|Disabling AQE"
    "|spark.local.dir will be overridden"
    "|Your hostname|Set SPARK_LOCAL_IP"
    "|doesn't exist in loadedMaps"  # of the first epoch of each run
    "|Using an existing Spark session"
    "|Failed to load implementation from: dev.ludovic.netlib"
    "|Truncated the string representation of a plan"
    "|Failed to cancel job group"  # of a query that is stopped
    "|releaseExecute"  # ``spark.stop()`` over Connect may come before the end of its last results
)
"""What Spark logs for a program with its own query, too."""


def complaints(log: str) -> list[str]:
    """Return the lines of a log at level ERROR, and the warnings that are not Spark's own."""
    lines = log.replace("\r", "\n")
    matches = (each.finditer(lines) for each in (_OF_SPARK, _OF_PYTHON, _TRACES))
    found = [match[0] for each in matches for match in each]
    return [line for line in found if not _SPARKS_OWN.search(line)]
