"""Finds out at a start whether the query has lost the epoch of its newest checkpoint.

Spark does not sync its own files: after a power loss it runs epochs again, with other input.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.stores.base import CompletedCheckpointStore

logger = library_logger(__name__)


def present_epochs(
    query_id: str,
    store: CompletedCheckpointStore,
    files: CheckpointFiles,
    is_present: Callable[[CheckpointMetadata], bool],
) -> dict[int, int | None]:
    """Return the epochs of the complete checkpoints; the newest has none if it was lost.

    Parameters
    ----------
    query_id
        The query.
    store, files
        Its complete checkpoints and their files; a lost one is noted there.
    is_present
        Returns whether a checkpoint's epoch is one that the query has committed.

    Raises
    ------
    OSError
        If the checkpoints directory cannot be read.
    """
    epochs = {number: files.epoch_of(number) for number in store.ids()}
    newest = max(epochs, default=None)
    metadata = None if newest is None else files.read(newest)
    if newest is None or not isinstance(metadata, CheckpointMetadata) or is_present(metadata):
        return epochs
    epochs[newest] = None
    files.note_lost(newest)
    logger.warning(
        "query %s: epoch %s of chk-%s is not the one that its checkpointLocation has, perhaps "
        "because Spark's files were lost in a power loss: the next checkpoint is of the present "
        "epochs",
        query_id,
        metadata.epoch,
        newest,
    )
    return epochs
