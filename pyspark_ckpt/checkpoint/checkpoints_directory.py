"""From the path that a user gives to a query's checkpoints directory, without Spark."""

from __future__ import annotations

from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    SHARED,
    TASK_OWNED,
    checkpoint_id_of,
)
from pyspark_ckpt.storage.open import Storage, open_storage


def find_checkpoints_directory(path: str) -> Storage:
    """Return the checkpoints directory at a path.

    Parameters
    ----------
    path
        A query's ``checkpointLocation``, its checkpoints directory, or a directory that holds the
        checkpoints directory of one query.

    Raises
    ------
    CheckpointNotFoundError
        If there is none, or those of several queries.
    """
    root = open_storage(path)
    if root.exists(CHECKPOINTS_DIRECTORY):
        return root.child(CHECKPOINTS_DIRECTORY)
    if _is_one(root):
        return root
    inside = [name for name in root.list() if _is_directory_of_one(root, name)]
    if len(inside) == 1:
        return root.child(inside[0])
    if inside:
        raise CheckpointNotFoundError(
            f"{root.url} has the checkpoints of {len(inside)} queries ({', '.join(inside[:5])}): "
            "give the directory of one"
        )
    raise CheckpointNotFoundError(
        f"{root.url} has no checkpoints: give a query's checkpointLocation, or its directory "
        "below spark.ckpt.execution.checkpointing.dir"
    )


def _is_directory_of_one(root: Storage, name: str) -> bool:
    return not name.startswith(".") and _is_one(root.child(name))


def _is_one(storage: Storage) -> bool:
    names = storage.list()
    return (
        any(name in (SHARED, TASK_OWNED) or checkpoint_id_of(name) is not None for name in names)
        and "_metadata" not in names
    )
