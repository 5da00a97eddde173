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
    """Have chosen epochs of a query captured: what its processors see, and what they make of it.

    It takes effect when the query is started at the location, also for the first time or again. For
    a query that runs in this process, call its method ``capture`` instead. Called once more for the
    same epochs, it returns the captures that were made since then.

    Parameters
    ----------
    location : str
        The ``checkpointLocation``.
    epochs : int or iterable of int
        The numbers of the epochs, such as ``range(3, 6)``.
    uid : str, optional
        The operator; by default all operators of the query.

    Returns
    -------
    Capture
        Has :meth:`Capture.save`, which makes one file of the captures.

    Raises
    ------
    PlanError
        If an epoch is not a number of an epoch, or there is none.
    CheckpointNotFoundError
        If a directory of checkpoints has those of several queries.
    CorruptFileError
        If an earlier request is damaged.
    OSError
        If the storage cannot be reached.

    Examples
    --------
    >>> captured = ckpt.capture(f"{directory}/location", range(3))
    >>> captured.epochs
    [0, 1, 2]
    """
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
