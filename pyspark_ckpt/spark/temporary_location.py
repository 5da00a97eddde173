"""A temporary location for a query without one, deleted when the query ends; as Spark's own.

Spark makes one for sinks that a query writes to once: memory, console, noop and functions.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_ckpt.storage.open import LocalStorage

FORCED = "spark.sql.streaming.forceDeleteTempCheckpointLocation"

_SINKS = frozenset({"memory", "console", "noop", "foreach", "foreachbatch"})

logger = logging.getLogger(__name__)


def may_be_temporary(sink_format: str | None) -> bool:
    """Return whether Spark makes a temporary location for a query into this sink."""
    return str(sink_format).lower() in _SINKS


def make_temporary(spark: SparkSession) -> LocalStorage:
    """Make a location on the driver's disk; Spark deletes it when the application ends."""
    java: Any = spark._jvm
    root = java.java.lang.System.getProperty("java.io.tmpdir")
    made = java.org.apache.spark.util.Utils.createTempDir(root, "temporary")
    storage = LocalStorage(Path(str(made.getCanonicalPath())))
    logger.warning(
        "the query has no checkpointLocation, and gets %s, which is deleted when it ends without "
        "an error (%s=true: with one too): its state does not outlive it, and in a cluster no "
        "executor sees the directory; set .option('checkpointLocation', path) to keep the state",
        storage.root,
        FORCED,
    )
    return storage


def delete_when_ended(
    storage: LocalStorage, wait: Callable[[], None], has_failed: Callable[[], bool]
) -> None:
    """Delete a location when the query has ended, in a thread of its own.

    Parameters
    ----------
    storage
        The location.
    wait
        Returns when the query has ended, with its last checkpoint and savepoint.
    has_failed
        Whether the location stays.
    """

    def delete() -> None:
        wait()
        if not has_failed():
            delete_temporary(storage)

    name = f"pyspark_ckpt temporary {storage.root.name}"
    threading.Thread(target=delete, name=name, daemon=True).start()


def delete_temporary(storage: LocalStorage) -> None:
    """Delete a location that :func:`make_temporary` made; files that cannot be deleted stay."""
    shutil.rmtree(storage.root, ignore_errors=True)
