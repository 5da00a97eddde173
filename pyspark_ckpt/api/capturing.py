"""``capture``: keep what a query's processors see in chosen epochs, for a replay without Spark."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.formats.layout import CHECKPOINTS_DIRECTORY
from pyspark_ckpt.history.captures import Capture
from pyspark_ckpt.history.places import find_checkpoints_directory
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import Storage, open_storage


def capture(location: str, epochs: int | Iterable[int], uid: str | None = None) -> Capture:
    """Have chosen epochs of a query captured: what its processors see, and what they make of it."""
    root = open_storage(location)
    found = Capture(_checkpoints(root), SparkLog(root), epochs, uid)
    found.request()
    return found


def _checkpoints(root: Storage) -> Storage:
    try:
        return find_checkpoints_directory(root.url)
    except CheckpointNotFoundError:
        if any(not name.startswith(("_", ".")) for name in root.list()):
            raise
        return root.child(CHECKPOINTS_DIRECTORY)  # where the first start will have it
