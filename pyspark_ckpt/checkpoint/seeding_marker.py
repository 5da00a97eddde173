"""The marker of a ``checkpointLocation`` that is being filled, and what surrounds it.

It stands until everything is there; a location with the marker holds nothing but an unfinished
seeding and is filled anew.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid

from pyspark_ckpt.formats.layout import SEEDING_MARKER
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import LocalStorage, open_storage

QUERY_ID_NAME = "metadata"
"""Spark's file with the id of the query."""

logger = logging.getLogger(__name__)


def begin_seeding(location: LocalStorage) -> str:
    """Mark an empty location as being seeded and give its query an id; both durable on return."""
    location.write(SEEDING_MARKER, [b"this location is being filled before its query starts\n"])
    return write_query_id(location)


def write_query_id(location: LocalStorage) -> str:
    """Give the query of a fresh location its id, as Spark would; durable on return.

    Raises
    ------
    FileExistsError
        If it has one.
    """
    query_id = str(uuid.uuid4())
    location.write(QUERY_ID_NAME, [json.dumps({"id": query_id}).encode()])
    return query_id


def clear_unfinished(location: LocalStorage, checkpoints_directory: str | None) -> None:
    """Remove what an interrupted seeding left behind; the marker goes last."""
    query_id = SparkLog(location).query_id()
    if checkpoints_directory is not None and query_id is not None:
        open_storage(checkpoints_directory).delete_directory(query_id)
    for name in location.list():
        if name == SEEDING_MARKER:
            continue
        if location.path(name).is_dir():
            shutil.rmtree(location.path(name))
        else:
            location.delete([name])
    location.delete([SEEDING_MARKER])


def finish_seeding(location: LocalStorage, source: str) -> None:
    """Remove the marker: from here on the location is a query's like any other."""
    location.delete([SEEDING_MARKER])
    logger.info("seeded %s from %s", location.root, source)
