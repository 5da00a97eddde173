"""The files of a query's checkpoints: read, and cleaned up behind the newest one.

The cleaner: deletes the files that nobody needs any more.

Needed is what a retained checkpoint refers to, what the handles of the newest one refer to, what
belongs to a base snapshot that these handles name as pending, and whatever a later epoch may be
writing: every task's file carries its epoch in its name. The rest of the files that this library
wrote is garbage, leftovers of failed attempts included. Files of unknown names are not touched.

It is safe while epochs go on: a later handle refers to nothing but what the handle before it refers
to, the files of the snapshot that was pending in it, and files of its own epoch. The handle before
it may be another than the one that was read: Spark runs some epochs of a subtask twice, and the
attempt that does not count leaves its handle in its executor's memory. So what the last two
versions before a handle need stays too, and all that was written since the epoch of the last one.

The hold on cleaning: while a savepoint is copied, no file of its query is deleted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import (
    SHARED,
    TASK_OWNED,
    StateFile,
    initial_time_ms,
    is_source_log,
    is_spark_operator_state,
    state_file,
)
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.stores.base import CompletedCheckpointStore


def garbage(
    storage: CoordinatorStorage,
    needed: Iterable[str],
    epoch: int,
    pending: Collection[str] = (),
    kept_since: Mapping[tuple[str, int], int] | None = None,
) -> list[str]:
    """Return the paths of all files that may go.

    Parameters
    ----------
    storage
        The query's checkpoints directory.
    needed
        Paths that retained checkpoints and the handles of `epoch` refer to.
    epoch
        The newest epoch whose handles are in `needed`; files of later epochs stay.
    pending
        Ids of the base snapshots that are pending in those handles; their files stay.
    kept_since
        The epoch from which on the files of a subtask stay, if that is not after `epoch`; by the
        mark of its operator and its number.
    """
    kept = set(needed)
    since = kept_since or {}
    return [
        f"{directory}/{name}"
        for directory in (SHARED, TASK_OWNED)
        for name in storage.list(directory)
        if f"{directory}/{name}" not in kept and _may_go(name, epoch, pending, since)
    ]


def garbage_of(
    storage: CoordinatorStorage, metadata: CheckpointMetadata, needed: Iterable[str]
) -> list[str]:
    """Return the paths of all files that may go after a checkpoint.

    Parameters
    ----------
    storage
        The query's checkpoints directory.
    metadata
        The newest checkpoint; what its handles need is in `needed`.
    needed
        Paths that must stay.
    """
    return garbage(
        storage,
        {*needed, *metadata.kept_files()},
        metadata.epoch,
        metadata.pending_snapshots(),
        metadata.kept_since(),
    )


def _may_go(
    name: str, epoch: int, pending: Collection[str], kept_since: Mapping[tuple[str, int], int]
) -> bool:
    file = state_file(name)
    if file is None:
        # They are written by the coordinator, which does not clean at the same time. What epoch 0
        # starts from is not needed once there is a checkpoint.
        return (
            is_source_log(name)
            or is_spark_operator_state(name)
            or initial_time_ms(name) is not None
        )
    since = _kept_since(file, kept_since)
    return (
        file.snapshot_id not in pending
        and file.epoch <= epoch
        and (since is None or file.epoch < since)
    )


def _kept_since(file: StateFile, kept_since: Mapping[tuple[str, int], int]) -> int | None:
    """Return the epoch from which on the files of the subtask stay that wrote a file."""
    if file.operator is not None:
        return kept_since.get((file.operator, file.subtask))
    # Any operator may have written it: the one that wants the most decides.
    epochs = (since for (_, subtask), since in kept_since.items() if subtask == file.subtask)
    return min(epochs, default=None)


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


class CleaningHold:
    """Keeps cleaning and copying apart, without either waiting for the other for long.

    Cleaning that meets a hold is left out, and is made up for after the next checkpoint.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holds = 0
        self._is_cleaning = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have no file deleted from now on; waits for a cleaning that is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_cleaning)
            self._holds += 1
        try:
            yield
        finally:
            with self._changed:
                self._holds -= 1
                self._changed.notify_all()

    @contextmanager
    def cleaning(self) -> Iterator[bool]:
        """Yield whether files may be deleted, for the length of the context."""
        with self._changed:
            may_clean = self._is_cleaning = self._holds == 0
        try:
            yield may_clean
        finally:
            with self._changed:
                if may_clean:
                    self._is_cleaning = False
                self._changed.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait until nobody holds."""
        with self._changed:
            self._changed.wait_for(lambda: self._holds == 0, timeout_seconds)
