"""How a subtask learns that a checkpoint was completed.

The driver cannot reach the tasks of a running query, so they look: a checkpoint is completed when
its ``_metadata`` is there, and with it its author or, if another store than the directory keeps it,
the word that this store has it.
"""

from __future__ import annotations

from typing import Any

from pyspark_ckpt.formats.layout import (
    AUTHOR_NAME,
    METADATA_NAME,
    POINTED_NAME,
    checkpoint_id_of,
    checkpoint_name,
)
from pyspark_ckpt.storage.base import WorkerStorage


def checkpoint_to_notify(processor: Any, storage: WorkerStorage) -> int | None:
    """Return the id of the newest completed checkpoint, if the processor wants to know it.

    Called by a task at the start of an epoch; lists the checkpoints directory once, and only for a
    processor with ``notifyCheckpointComplete``.

    Parameters
    ----------
    processor
        The user's processor.
    storage
        The query's checkpoints directory.
    """
    if not hasattr(processor, "notifyCheckpointComplete"):
        return None
    numbers = (checkpoint_id_of(name) for name in storage.list())
    for number in sorted((n for n in numbers if n is not None), reverse=True):
        if _is_completed(storage, checkpoint_name(number)):
            return number
    return None


def _is_completed(storage: WorkerStorage, directory: str) -> bool:
    return storage.exists(f"{directory}/{METADATA_NAME}") and any(
        storage.exists(f"{directory}/{name}") for name in (AUTHOR_NAME, POINTED_NAME)
    )
