"""The files of a query's checkpoints: read, and cleaned up behind the newest one."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set

from pyspark_ckpt.checkpoint.cleaner import garbage_of
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.stores.base import CompletedCheckpointStore

logger = logging.getLogger(__name__)


class CheckpointFiles:
    """What a query's checkpoints consist of in its checkpoints directory.

    Parameters
    ----------
    storage
        The checkpoints directory.
    store
        Which of them are complete.
    """

    def __init__(self, storage: CoordinatorStorage, store: CompletedCheckpointStore) -> None:
        self.store = store
        self._storage = storage
        self._metadata: dict[int, CheckpointMetadata] = {}

    def remember(self, checkpoint_id: int, metadata: CheckpointMetadata) -> None:
        """Know what a checkpoint needs from before its ``_metadata`` is written."""
        self._metadata[checkpoint_id] = metadata

    def read(self, checkpoint_id: int) -> CheckpointMetadata | CkptError:
        """Return a checkpoint's metadata, or why it cannot be read."""
        if checkpoint_id not in self._metadata:
            try:
                self._metadata[checkpoint_id] = self.store.read(checkpoint_id)
            except CkptError as exc:
                return exc
        return self._metadata[checkpoint_id]

    def epoch_of(self, checkpoint_id: int) -> int | None:
        """Return a checkpoint's epoch, ``None`` if it cannot be read."""
        metadata = self.read(checkpoint_id)
        return metadata.epoch if isinstance(metadata, CheckpointMetadata) else None

    def clean(self, completed: Sequence[int], uncertain: Sequence[int], retained_from: int) -> None:
        """Remove what is neither retained nor uncertain, then the files that nobody needs.

        Called while no checkpoint is under way. Only directories older than the newest completed
        checkpoint are removed, so that the highest id is never forgotten. What fails is done the
        next time.

        Parameters
        ----------
        completed
            The ids of the retained checkpoints, oldest first.
        uncertain
            Those that may have been completed; what they need stays.
        retained_from
            Complete ones with lower ids are beyond retention, whoever made them.

        Raises
        ------
        FencedError
            If another driver has taken the query over.
        OSError, CkptError
            If not everything could be removed.
        """
        if not completed:
            return
        self.store.check()
        self._remove_old({*completed, *uncertain}, completed[-1], retained_from)
        self._delete_garbage(completed, uncertain)

    def discard_all(self) -> None:
        """Remove all checkpoints and the files that only they need; not the state."""
        self.store.check()
        newest = max(self.store.ids(), default=None)
        metadata = None if newest is None else self.read(newest)
        self.store.remove_all()
        self._metadata.clear()
        if isinstance(metadata, CheckpointMetadata):
            # Later epochs build on the handles of this one; source logs only serve a restore.
            needed = {file.path for handle in metadata.handles() for file in handle.files()}
            self._storage.delete(garbage_of(self._storage, metadata, needed))

    def _remove_old(self, kept: Set[int], newest: int, retained_from: int) -> None:
        for number in self.store.used_ids():
            # One without _metadata is what a dead attempt left, or the crash of a removal.
            first_to_stay = retained_from if self.store.is_complete(number) else newest
            if number < first_to_stay and number not in kept:
                self.store.remove(number)
        for number in self._metadata.keys() - kept:
            del self._metadata[number]

    def _delete_garbage(self, completed: Sequence[int], uncertain: Sequence[int]) -> None:
        newest = self.read(completed[-1])
        needed: set[str] = set()
        # Whatever a listing says, what is known to be retained is needed.
        for number in {*self.store.ids(), *completed, *uncertain}:
            metadata = self.read(number)
            if isinstance(metadata, CkptError):
                logger.warning("nothing is cleaned, its files are unknown: %s", metadata)
                return
            needed.update(reference.path for reference in metadata.files())
        if isinstance(newest, CheckpointMetadata):
            found = garbage_of(self._storage, newest, needed)
            self.store.check()  # a driver that came meanwhile has written none of what was found
            self._storage.delete(found)
