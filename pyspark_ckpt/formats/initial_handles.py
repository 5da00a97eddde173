"""The handles that subtasks with an initial state start epoch 0 from, in one file.

The file is written before the query starts. It is garbage once epoch 0 has been committed, because
each subtask then has a handle in Spark's state store.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import SHARED, InitialFile, initial_file, initial_path
from pyspark_ckpt.storage.base import CoordinatorStorage, WorkerStorage
from pyspark_ckpt.storage.file_reference import FileReference


def write_initial_handles(
    storage: CoordinatorStorage, handles: Sequence[Handle], time_ms: int
) -> FileReference:
    """Write the handles of all operators as the newest ones; durable on return."""
    newest = _newest(storage)
    path = initial_path(1 if newest is None else newest[0].number + 1, time_ms)
    return storage.write(path, [msgspec.msgpack.encode(list(handles))])


def _newest(storage: CoordinatorStorage) -> tuple[InitialFile, str] | None:
    """Return the file that was made last, with its path."""
    found = [(initial_file(name), f"{SHARED}/{name}") for name in storage.list(SHARED)]
    whole = [(file, path) for file, path in found if file is not None and file.is_whole]
    return max(whole, default=None)


def read_initial_handle(
    storage: WorkerStorage, reference: FileReference, uid: str, subtask: int
) -> Handle | None:
    """Return a subtask's handle, ``None`` if the initial state has no row for the subtask."""
    with storage.open_verified(reference) as file:
        content = file.read()
    handles = _decoded(content, reference.path)
    return next((each for each in handles if (each.uid, each.subtask) == (uid, subtask)), None)


def _decoded(content: bytes, path: str) -> list[Handle]:
    try:
        return msgspec.msgpack.decode(content, type=list[Handle])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise CorruptFileError(
            f"{path} does not hold the handles of an initial state ({exc}): start the query again "
            "to make the initial state again"
        ) from exc


def subtasks_not_woken(
    storage: CoordinatorStorage, uid: str, parallelism: int, handles: Sequence[Handle]
) -> list[int]:
    """Return the subtasks that have an initial state and, after epoch 0, no handle.

    Over Spark Connect this happens if epoch 0 had no task over the stream's rows. The initial
    states are in the storage until the first checkpoint is complete.
    """
    if len(handles) == parallelism:
        return []
    newest = _newest(storage)
    if newest is None:
        return []
    _, path = newest
    begun = {each.subtask for each in _decoded(storage.read(path), path) if each.uid == uid}
    return sorted(begun - {each.subtask for each in handles})


def not_woken(uid: str, subtasks: Sequence[int]) -> str:
    """Return the text of the error for subtasks that did not start from the initial state."""
    return (
        f"operator {uid!r}: subtasks {', '.join(map(str, subtasks))} did not start from the "
        "initialState, because epoch 0 had no task over the stream's rows: start the query at a "
        "fresh checkpointLocation when the stream has rows"
    )


def newest_initial_time_ms(storage: CoordinatorStorage) -> int | None:
    """Return the processing time of the initial states that were made last, ``None`` without any.

    Clocks may go back between two starts, so the times do not say which ones these are.
    """
    newest = _newest(storage)
    return None if newest is None else newest[0].time_ms
