"""Savepoints that a query's driver had begun when it ended: the next start removes them."""

from __future__ import annotations

import logging

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.dispose import dispose_of_begun
from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError
from pyspark_ckpt.formats.in_progress import read_in_progress
from pyspark_ckpt.formats.layout import IN_PROGRESS_NAME
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.history.log import HistoryEntry, HistoryLog
from pyspark_ckpt.history.records import AbortedCheckpoint, Savepoint
from pyspark_ckpt.history.verification import size_on_disk_bytes
from pyspark_ckpt.storage.open import Storage, open_storage

logger = logging.getLogger(__name__)


def remove_interrupted(history: HistoryLog, query_id: str, run: str) -> None:
    """Remove what earlier drivers of a query left of savepoints that they did not complete.

    Exactly their own files go, and only where the directory says that they are of this query. What
    cannot be removed is logged; `pyspark-ckpt dispose` does it too.

    Parameters
    ----------
    history
        Of the query's checkpoints directory.
    query_id, run
        The query, and this start of it, whose savepoints are none of those.
    """
    for name, entry in history.begun().items():
        if entry.run == run or entry.path is None:
            continue
        try:
            _settle(entry, open_storage(entry.path), history, query_id)
        except (OSError, CkptError) as exc:
            logger.warning("an interrupted savepoint stays at %s: %s", entry.path, exc)
        else:
            history.forget(name)


def _settle(entry: HistoryEntry, place: Storage, history: HistoryLog, query_id: str) -> None:
    begun = read_in_progress(place)
    if begun is not None and begun.query_id != query_id:
        logger.warning("%s is %s, not of query %s: it stays", place.url, begun.told(), query_id)
        return
    disposal = dispose_of_begun(place)
    if disposal is not None:
        logger.warning(
            "removed the savepoint %s: the driver ended before it was complete", place.url
        )
    completed = None if disposal is not None else _completed(place)
    if completed is not None:
        history.note_savepoint(completed)
    else:
        history.onCheckpointAborted(_aborted(entry))


def _completed(place: Storage) -> Savepoint | None:
    """Describe the savepoint at a place, which was completed and not noted any more."""
    try:
        metadata = read_metadata(place)
    except CheckpointNotFoundError:
        return None
    place.delete([IN_PROGRESS_NAME])  # the driver may have ended before it did that
    return Savepoint(
        path=place.url,
        epoch=metadata.epoch,
        query_id=metadata.query_id,
        triggered_at_ms=metadata.triggered_at_ms,
        completed_at_ms=metadata.completed_at_ms,
        size_bytes=size_on_disk_bytes(place, metadata),
        files=len({reference.path for reference in metadata.files()}) + 1,
    )


def _aborted(entry: HistoryEntry) -> AbortedCheckpoint:
    return AbortedCheckpoint(
        kind="savepoint",
        checkpoint_id=None,
        epoch=entry.epoch,
        triggered_at_ms=entry.triggered_at_ms or 0,
        duration_ms=0,
        reason=AbortReason.INTERRUPTED,
        message=f"the driver ended before {entry.path} was complete",
    )
