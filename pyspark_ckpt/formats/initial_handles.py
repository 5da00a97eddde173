"""The handles that subtasks with an initial state start epoch 0 from, in one file.

The file is written before the query starts. It is garbage once epoch 0 has been committed, because
each subtask then has a handle in Spark's state store.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import SHARED, initial_path, initial_time_ms
from pyspark_ckpt.storage.base import CoordinatorStorage, WorkerStorage
from pyspark_ckpt.storage.file_reference import FileReference


def write_initial_handles(
    storage: CoordinatorStorage, handles: Sequence[Handle], time_ms: int
) -> FileReference:
    """Write the handles of all operators; durable on return."""
    return storage.write(initial_path(time_ms), [msgspec.msgpack.encode(list(handles))])


def read_initial_handle(
    storage: WorkerStorage, reference: FileReference, uid: str, subtask: int
) -> Handle | None:
    """Return a subtask's handle, ``None`` if the initial state has no row for the subtask.

    Raises
    ------
    CorruptFileError
        If the file is missing or changed.
    """
    with storage.open_verified(reference) as file:
        content = file.read()
    try:
        handles = msgspec.msgpack.decode(content, type=list[Handle])
    except msgspec.MsgspecError as exc:
        raise CorruptFileError(
            f"{reference.path} does not hold the handles of an initial state ({exc}): start the "
            "query again to make the initial state again"
        ) from exc
    return next((each for each in handles if (each.uid, each.subtask) == (uid, subtask)), None)


def newest_initial_time_ms(storage: CoordinatorStorage) -> int | None:
    """Return the processing time of the newest initial states, ``None`` if there are none."""
    times = (initial_time_ms(name) for name in storage.list(SHARED))
    return max((time_ms for time_ms in times if time_ms is not None), default=None)
