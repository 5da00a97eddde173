"""The history of a query's checkpoints and savepoints, read from its directory without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import msgspec
import pandas as pd

from pyspark_ckpt.checkpoint.checkpoints_directory import find_checkpoints_directory
from pyspark_ckpt.checkpoint.history_entry import HistoryEntry, checkpoint_entries
from pyspark_ckpt.checkpoint.history_log import HistoryLog
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.open import find_store

HISTORY_COLUMNS = (
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
        entries = [*entries_of(store), *HistoryLog(storage).entries()]
    return as_frame(sorted(entries, key=HistoryEntry.order))


def entries_of(store: CompletedCheckpointStore) -> list[HistoryEntry]:
    """Describe the checkpoints that are there, damaged ones included."""
    return list(checkpoint_entries((n, store.path(n), _read(store, n)) for n in store.ids()))


def as_frame(entries: list[HistoryEntry], columns: Sequence[str] = HISTORY_COLUMNS) -> pd.DataFrame:
    """Return entries as a DataFrame of some columns."""
    rows = [msgspec.structs.asdict(entry) for entry in entries]
    fields = [field.name for field in msgspec.structs.fields(HistoryEntry)]
    frame = pd.DataFrame(rows, columns=fields)
    frame["triggered_at"] = pd.to_datetime(frame["triggered_at_ms"], unit="ms", utc=True)
    types: dict[str, Any] = dict.fromkeys(_NUMBERS, "Int64")
    return frame.astype(types)[list(columns)]


def _read(store: CompletedCheckpointStore, number: int) -> CheckpointMetadata | CkptError:
    try:
        return store.read(number)
    except CkptError as exc:
        return exc
