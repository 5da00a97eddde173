"""A temporary location for a query without a location, as Spark makes it; deleted at the end.

Spark makes it for sinks whose output no later query continues: memory, console, noop and functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark.sql import SparkSession

from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.storage.open import LocalStorage, Storage

FORCED = "spark.sql.streaming.forceDeleteTempCheckpointLocation"

_SINKS = frozenset({"memory", "console", "noop", "foreach", "foreachbatch"})

logger = library_logger(__name__)


def may_be_temporary(sink_format: str | None) -> bool:
    """Return whether Spark makes a temporary location for a query into this sink."""
    return str(sink_format).lower() in _SINKS


def make_temporary(spark: SparkSession) -> LocalStorage:
    """Make a location on the driver's disk; Spark deletes it when the application ends."""
    storage = LocalStorage(session_of(spark).new_temporary_directory())
    logger.warning(
        "the query has no checkpointLocation and gets the temporary directory %s. It is deleted "
        "when the query ends without an error (with %s=true also after an error), and executors on "
        "other machines cannot read it: set .option('checkpointLocation', path) to keep the state",
        storage.root,
        FORCED,
    )
    return storage


def delete_when_ended(
    storage: Storage, wait: Callable[[], None], has_failed: Callable[[], bool]
) -> None:
    """Delete a location in a new thread when the query has ended.

    `wait` returns when the query has ended, with its last checkpoint and savepoint. The location
    stays if `has_failed` then returns true.
    """

    def delete() -> None:
        wait()
        if not has_failed():
            delete_temporary(storage)

    name = f"pyspark_ckpt temporary {storage.name}"
    threading.Thread(target=delete, name=name, daemon=True).start()


def delete_temporary(storage: Storage) -> None:
    """Delete a location that :func:`make_temporary` made; files that cannot be deleted stay."""
    storage.parent().delete_directory(storage.name)
