"""The history of a query's checkpoints and savepoints, read from its directory without Spark."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec
import pandas as pd

from pyspark_ckpt.checkpoint.checkpoint_store import CompletedCheckpointStore
from pyspark_ckpt.checkpoint.checkpoints_directory import find_checkpoints_directory
from pyspark_ckpt.checkpoint.history_log import HistoryEntry, HistoryLog
from pyspark_ckpt.checkpoint.open_store import find_store
from pyspark_ckpt.checkpoint.state_sizes import sizes_of
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata

COLUMNS = (
    "kind", "status", "checkpoint_id", "epoch", "triggered_at", "duration_ms", "size_bytes",
    "new_bytes", "files", "phases_ms", "path", "reason",
)  # fmt: skip
_NUMBERS = ("checkpoint_id", "epoch", "duration_ms", "size_bytes", "new_bytes", "files")


def history(path: str) -> pd.DataFrame:
    """Return what became of a query's checkpoints and savepoints.

    Parameters
    ----------
    path
        A query's ``checkpointLocation`` or checkpoints directory; the query may be running.

    Returns
    -------
    pandas.DataFrame
        Oldest first, by the ids of checkpoints and not by the wall clock, which may jump: kind,
        status (``completed``, ``corrupt``, ``aborted``, ``begun``), checkpoint_id, epoch,
        triggered_at (UTC), duration_ms, size_bytes, new_bytes (not in the retained checkpoint
        before it), files, phases_ms (of gathering: handles, sources, verification), path, reason;
        :func:`subtask_history` has each subtask's part. Checkpoints that retention has removed are
        not in it, savepoints and failures are, up to a thousand.

    Raises
    ------
    CheckpointNotFoundError
        If there are no checkpoints at the path.
    """
    storage = find_checkpoints_directory(path)
    with closing(find_store(storage)) as store:
        entries = [*checkpoint_entries(store), *HistoryLog(storage).entries()]
    return as_frame(sorted(entries, key=HistoryEntry.order))


def checkpoint_entries(store: CompletedCheckpointStore) -> list[HistoryEntry]:
    """Describe the checkpoints that are there, damaged ones included."""
    entries = []
    before: CheckpointMetadata | None = None
    for number in store.ids():
        try:
            metadata = store.read(number)
        except CkptError as exc:
            entries.append(_corrupt_entry(number, store.path(number), exc))
            continue
        entries.append(_entry(number, store.path(number), metadata, before))
        before = metadata
    return entries


def as_frame(entries: list[HistoryEntry]) -> pd.DataFrame:
    """Return entries as a DataFrame."""
    rows = [msgspec.structs.asdict(entry) for entry in entries]
    fields = [field.name for field in msgspec.structs.fields(HistoryEntry)]
    frame = pd.DataFrame(rows, columns=fields)
    frame["triggered_at"] = pd.to_datetime(frame["triggered_at_ms"], unit="ms", utc=True)
    types: dict[str, Any] = dict.fromkeys(_NUMBERS, "Int64")
    return frame.astype(types)[list(COLUMNS)]


def _corrupt_entry(checkpoint_id: int, path: str, error: CkptError) -> HistoryEntry:
    return HistoryEntry(
        kind="checkpoint",
        status="corrupt",
        checkpoint_id=checkpoint_id,
        triggered_at_ms=0,
        duration_ms=0,
        path=path,
        reason=str(error),
    )


def _entry(
    checkpoint_id: int, path: str, metadata: CheckpointMetadata, before: CheckpointMetadata | None
) -> HistoryEntry:
    sizes = sizes_of(metadata, before)
    return HistoryEntry(
        kind="checkpoint",
        status="completed",
        checkpoint_id=checkpoint_id,
        epoch=metadata.epoch,
        triggered_at_ms=metadata.triggered_at_ms,
        duration_ms=metadata.completed_at_ms - metadata.triggered_at_ms,
        size_bytes=sizes.size_bytes,
        new_bytes=sizes.new_bytes if before is not None else None,
        files=len({reference.path for reference in metadata.files()}) + 1,
        phases_ms=metadata.phases_ms,
        path=path,
    )
