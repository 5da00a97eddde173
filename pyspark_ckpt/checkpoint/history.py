"""The history of a query's checkpoints and savepoints, read from its directory without Spark."""

from __future__ import annotations

from typing import Any

import msgspec
import pandas as pd

from pyspark_ckpt.checkpoint.checkpoints_directory import find_checkpoints_directory
from pyspark_ckpt.checkpoint.completed_checkpoints import CompletedCheckpoints
from pyspark_ckpt.checkpoint.history_log import HistoryEntry, HistoryLog
from pyspark_ckpt.errors import CkptError

COLUMNS = (
    "kind", "status", "checkpoint_id", "epoch", "triggered_at", "duration_ms", "size_bytes",
    "files", "path", "reason",
)  # fmt: skip
_NUMBERS = ("checkpoint_id", "epoch", "duration_ms", "size_bytes", "files")


def history(path: str) -> pd.DataFrame:
    """Return what became of a query's checkpoints and savepoints.

    Parameters
    ----------
    path
        A query's ``checkpointLocation`` or checkpoints directory; the query may be running.

    Returns
    -------
    pandas.DataFrame
        Oldest first: kind, status (``completed``, ``corrupt``, ``aborted``), checkpoint_id, epoch,
        triggered_at (UTC), duration_ms, size_bytes, files, path, reason. Checkpoints that
        retention has removed are not in it, savepoints and failures are, up to a thousand.

    Raises
    ------
    CheckpointNotFoundError
        If there are no checkpoints at the path.
    """
    storage = find_checkpoints_directory(path)
    entries = [*checkpoint_entries(CompletedCheckpoints(storage)), *HistoryLog(storage).entries()]
    return as_frame(sorted(entries, key=lambda entry: entry.triggered_at_ms))


def checkpoint_entries(store: CompletedCheckpoints) -> list[HistoryEntry]:
    """Describe the checkpoints that are there, damaged ones included."""
    return [_entry(store, number) for number in store.ids()]


def as_frame(entries: list[HistoryEntry]) -> pd.DataFrame:
    """Return entries as a DataFrame."""
    rows = [msgspec.structs.asdict(entry) for entry in entries]
    fields = [field.name for field in msgspec.structs.fields(HistoryEntry)]
    frame = pd.DataFrame(rows, columns=fields)
    frame["triggered_at"] = pd.to_datetime(frame["triggered_at_ms"], unit="ms", utc=True)
    types: dict[str, Any] = dict.fromkeys(_NUMBERS, "Int64")
    return frame.astype(types)[list(COLUMNS)]


def _entry(store: CompletedCheckpoints, checkpoint_id: int) -> HistoryEntry:
    path = store.path(checkpoint_id)
    try:
        metadata = store.read(checkpoint_id)
    except CkptError as exc:
        return HistoryEntry(
            kind="checkpoint",
            status="corrupt",
            checkpoint_id=checkpoint_id,
            triggered_at_ms=0,
            duration_ms=0,
            path=path,
            reason=str(exc),
        )
    return HistoryEntry(
        kind="checkpoint",
        status="completed",
        checkpoint_id=checkpoint_id,
        epoch=metadata.epoch,
        triggered_at_ms=metadata.triggered_at_ms,
        duration_ms=metadata.completed_at_ms - metadata.triggered_at_ms,
        size_bytes=metadata.size_bytes,
        files=len({reference.path for reference in metadata.files()}) + 1,
        path=path,
    )
