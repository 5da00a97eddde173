"""What each subtask of a query put into its checkpoints, read from its directory without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pandas as pd

from pyspark_ckpt.checkpoint.checkpoints_directory import find_checkpoints_directory
from pyspark_ckpt.checkpoint.state_sizes import sizes_of_subtask
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.handle import EpochMetrics, Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.open import find_store

_OF_EPOCH = ("keys", "writes", "open_ms", "process_ms", "barrier_ms", "rebuilds")
SUBTASK_COLUMNS = (
    "checkpoint_id", "epoch", "uid", "subtask", "subtask_epoch", "size_bytes", "new_bytes",
    "files", "base_bytes", "segments", *_OF_EPOCH,
)  # fmt: skip


def subtask_history(path: str) -> pd.DataFrame:
    """Return what the retained checkpoints of a query hold of each of its subtasks.

    Parameters
    ----------
    path
        A query's ``checkpointLocation`` or checkpoints directory; the query may be running.

    Returns
    -------
    pandas.DataFrame
        Oldest first: checkpoint_id, epoch, uid, subtask; subtask_epoch, the last in which the
        subtask was called; size_bytes, new_bytes (not in the retained checkpoint before it), files,
        base_bytes and segments of its state; and of that last epoch keys, writes, rebuilds and the
        milliseconds to open the state, to process and to make it durable.

    Raises
    ------
    CheckpointNotFoundError
        If there are no checkpoints at the path.
    """
    rows: list[dict[str, Any]] = []
    before: dict[tuple[str, int], Handle] = {}
    with closing(find_store(find_checkpoints_directory(path))) as store:
        for metadata in _readable(store):
            handles = {(handle.uid, handle.subtask): handle for handle in metadata.handles()}
            rows += [_row(metadata, handle, before.get(key)) for key, handle in handles.items()]
            before = handles
    return pd.DataFrame(rows, columns=list(SUBTASK_COLUMNS))


def _readable(store: CompletedCheckpointStore) -> Iterator[CheckpointMetadata]:
    for number in store.ids():
        with suppress(CkptError):  # history() tells of it
            yield store.read(number)


def _row(metadata: CheckpointMetadata, handle: Handle, before: Handle | None) -> dict[str, Any]:
    sizes = sizes_of_subtask(handle, before)
    metrics = handle.metrics or EpochMetrics()
    return {
        "checkpoint_id": metadata.checkpoint_id,
        "epoch": metadata.epoch,
        "uid": handle.uid,
        "subtask": handle.subtask,
        "subtask_epoch": handle.epoch,
        "size_bytes": sizes.size_bytes,
        "new_bytes": sizes.new_bytes,
        "files": sizes.files,
        "base_bytes": 0 if handle.base is None else handle.base.size_bytes,
        "segments": len(handle.segments),
        **{name: getattr(metrics, name) for name in _OF_EPOCH},
    }
