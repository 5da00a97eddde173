"""Deletes a claimed checkpoint or savepoint, for the query that was restored from it.

Everything was copied before the query started. For caution, nothing is deleted before the query
has taken its own checkpoint. Of a savepoint, exactly the files that its ``_metadata`` lists are
deleted. Of a ``chk-N``, only the checkpoint itself is deleted: other checkpoints, and the query
that took it, may share its files.
"""

from __future__ import annotations

from contextlib import closing

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, ConfigurationError
from pyspark_ckpt.formats.layout import METADATA_NAME, checkpoint_id_of
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.savepoint.dispose import dispose_savepoint
from pyspark_ckpt.settings import ClaimMode, Settings
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.stores.open import find_store

logger = library_logger(__name__)


def check_claim_at_temporary(settings: Settings) -> None:
    """Refuse to claim a savepoint for a query whose location is deleted when it ends."""
    claims = settings.restore_path is not None and settings.claim_mode is ClaimMode.CLAIM
    if claims and settings.checkpoints_directory is None:
        raise ConfigurationError(
            f"the query would claim {settings.restore_path}, which is deleted after its first "
            "checkpoint, and its location is temporary, so that nothing of the state would be left "
            "when it ends: give option('checkpointLocation', path), or claimMode='NO_CLAIM'"
        )


class ClaimedSource(CheckpointListener):
    """Deletes what a query claimed once the query has taken its own checkpoint; on the driver.

    A deletion that failed is tried again at the next checkpoint.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._is_done = False

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        """Delete the original, unless it is deleted already."""
        if self._is_done:
            return
        try:
            deleted = discard(self._origin)
        except (CkptError, OSError) as exc:
            logger.warning("claimed %s is not deleted yet: %s", self._origin.path, exc)
            return
        self._is_done = True
        if deleted:
            logger.info(
                "claimed %s is deleted: chk-%s has all its state",
                self._origin.path,
                checkpoint.checkpoint_id,
            )


def discard(origin: Origin) -> bool:
    """Delete the checkpoint or savepoint that a query was restored from; ``_metadata`` goes last.

    Returns whether it existed. If the path holds something else by now, nothing is deleted.
    """
    try:
        source = RestoreSource(origin.path, check_files=False)
    except CheckpointNotFoundError:
        return False
    if source.sha256 != origin.sha256:
        logger.warning(
            "%s is not deleted, because it is not what the query was restored from", origin.path
        )
        return False
    directory = open_storage(origin.path)
    if source.metadata.root == "..":
        # A link such as `latest` has another name than its checkpoint, as the store knows it.
        resolved = directory.local_path(METADATA_NAME)
        name = directory.name if resolved is None else resolved.parent.name
        number = checkpoint_id_of(name)
        if number is None:  # a copy of a checkpoint, under another name
            directory.delete([METADATA_NAME])
            return True
        with closing(find_store(directory.parent())) as store:
            store.revoke(number)
        return True
    left = dispose_savepoint(origin.path).left
    if left:
        logger.warning(
            "%s: %s are not deleted, because they do not belong to the savepoint",
            origin.path,
            ", ".join(left),
        )
    return True
