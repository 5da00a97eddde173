"""The cleaner: deletes the files of a query's checkpoints that are not needed any more.

A file is needed if

* a retained checkpoint or a handle of the newest checkpoint refers to it,
* it belongs to a base snapshot that such a handle names as pending,
* an epoch after the newest checkpoint may have written it; the name of a file has its epoch,
* a newer checkpoint of another driver, which may still be completed, may refer to it,
* a reader of a snapshot has pinned it (:mod:`pyspark_ckpt.stores.reader_pins`).

All other files that this library wrote are garbage, also leftovers of failed attempts. Files with
unknown names stay.

Cleaning is safe while epochs run. A later handle refers only to files of the handle before it, to
files of the base snapshot that was pending in it, and to files of its own epoch.

The handle before it may be another one than the handle that was read. Spark runs some epochs of a
subtask twice, and the losing attempt leaves its handle in its executor's memory. Therefore the
files of the last versions before a handle stay too, and all files since the oldest epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import (
    SHARED,
    TASK_OWNED,
    initial_file,
    is_source_log,
    is_spark_operator_state,
    state_file,
)
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.reader_pins import pin_files, pinned_files


def garbage(
    storage: CoordinatorStorage,
    needed: Iterable[str],
    epoch: int,
    pending: Collection[str] = (),
    kept_since: Mapping[tuple[str, int], int] | None = None,
) -> list[str]:
    """Return the paths of all files that are not needed.

    `needed` must contain the paths of the retained checkpoints and of the handles of `epoch`, which
    is the newest epoch that it covers. Files of later epochs stay, and so do the files of the base
    snapshots with ids in `pending`. `kept_since` has, by the mark of an operator and a subtask, the
    epoch since which all files of that subtask stay.
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
    """Return the paths of all files that are not needed after a checkpoint.

    `metadata` is the newest checkpoint, and `needed` must contain the files of its handles.
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
        # The coordinator writes them, and does not clean at the same time; those of another driver
        # that may still complete a checkpoint are not looked for. The initial state of
        # epoch 0 is not needed once there is a checkpoint.
        return (
            is_source_log(name) or is_spark_operator_state(name) or initial_file(name) is not None
        )
    since = kept_since.get((file.operator, file.subtask))
    return (
        file.snapshot_id not in pending
        and file.epoch <= epoch
        and (since is None or file.epoch < since)
    )


logger = library_logger(__name__)


class CheckpointFiles:
    """The files of a query's checkpoints in its checkpoints directory."""

    def __init__(
        self,
        storage: CoordinatorStorage,
        store: CompletedCheckpointStore,
        forget: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self.store = store
        self._forget = forget
        self._storage = storage
        self._metadata: dict[int, CheckpointMetadata] = {}
        self._lost: int | None = None

    def note_lost(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is of epochs which the query has lost.

        It does not say what later epochs need. While it is the newest one, no files are deleted.
        """
        self._lost = checkpoint_id

    def remember(self, checkpoint_id: int, metadata: CheckpointMetadata) -> None:
        """Remember what a checkpoint needs, before its ``_metadata`` is written."""
        self._metadata[checkpoint_id] = metadata

    def read(self, checkpoint_id: int) -> CheckpointMetadata | CkptError:
        """Return a checkpoint's metadata, or the error if it cannot be read."""
        known = self._metadata.get(checkpoint_id)  # another thread may clean at the same time
        if known is not None:
            return known
        try:
            found = self._metadata[checkpoint_id] = self.store.read(checkpoint_id)
        except CkptError as exc:
            return exc
        return found

    def epoch_of(self, checkpoint_id: int) -> int | None:
        """Return a checkpoint's epoch, ``None`` if it cannot be read."""
        metadata = self.read(checkpoint_id)
        return metadata.epoch if isinstance(metadata, CheckpointMetadata) else None

    def present_epochs(
        self, query_id: str, is_present: Callable[[CheckpointMetadata], bool]
    ) -> dict[int, int | None]:
        """Return the epochs of the complete checkpoints; the newest has none if it was lost."""
        epochs = {number: self.epoch_of(number) for number in self.store.ids()}
        newest = max(epochs, default=None)
        metadata = None if newest is None else self.read(newest)
        if newest is None or not isinstance(metadata, CheckpointMetadata) or is_present(metadata):
            return epochs
        epochs[newest] = None
        self.note_lost(newest)
        logger.warning(
            "query %s: epoch %s of chk-%s is not the one that its checkpointLocation has, perhaps "
            "because Spark's files were lost in a power loss: the next checkpoint is of the "
            "present epochs",
            query_id,
            metadata.epoch,
            newest,
        )
        return epochs

    def clean(self, completed: Sequence[int], uncertain: Sequence[int], retained_from: int) -> None:
        """Remove checkpoints that are neither retained nor uncertain, then unneeded files.

        Call it while no checkpoint is under way. Only directories older than the newest completed
        checkpoint are removed, so that the highest id is never lost. The next call repeats what
        has failed.

        `completed` has the retained checkpoints, oldest first. Files of the checkpoints in
        `uncertain` stay. Complete checkpoints with ids below `retained_from` are not retained,
        whichever driver made them, and ``FencedError`` is raised if another driver has taken the
        query over.
        """
        if not completed:
            return
        self.store.check()
        self._remove_old({*completed, *uncertain}, completed[-1], retained_from)
        self._delete_garbage(completed, uncertain)

    def discard_all(self) -> None:
        """Remove all checkpoints and the files that only they need; the state stays.

        It raises ``FencedError`` if another driver has taken the query over; that driver's
        checkpoints and their files stay.
        """
        newest = max(self.store.ids(), default=None)
        metadata = None if newest is None else self.read(newest)
        self.store.remove_all()
        self._metadata.clear()
        if isinstance(metadata, CheckpointMetadata) and newest != self._lost:
            # Later epochs build on the handles of this one; source logs only serve a restore.
            needed = {file.path for handle in metadata.handles() for file in handle.files()}
            of_readers = self._needed_by_readers()
            if of_readers is not None:
                self._delete_unneeded(metadata, needed | of_readers)

    def _remove_old(self, kept: Set[int], newest: int, retained_from: int) -> None:
        for number in self.store.used_ids():
            # A directory without _metadata is left of a dead attempt or of an interrupted removal.
            first_to_stay = retained_from if self.store.is_complete(number) else newest
            if number < first_to_stay and number not in kept:
                self.store.remove(number)
        for number in self._metadata.keys() - kept:
            del self._metadata[number]

    def _needed_by_readers(self) -> set[str] | None:
        """Return the files that readers of snapshots need, ``None`` if a pin cannot be read.

        Pins that are over are deleted.
        """
        now = now_ms()
        try:
            found = pin_files(self._storage)
            self._storage.delete(each.name for each in found if not each.counts(now))
            return pinned_files(self._storage, now) if found else set()
        except (PermissionError, CkptError) as exc:  # a reader may write pins with another mode
            logger.warning(
                "nothing is cleaned, because it is unknown which files a reader needs: %s", exc
            )
            return None

    def _delete_garbage(self, completed: Sequence[int], uncertain: Sequence[int]) -> None:
        # Looked for before the complete checkpoints, because it may become one of them. Its id is
        # not removed: its driver may report it as complete at this moment, and take over again.
        # Once this driver completes a newer checkpoint, the id is removed, and then files are.
        if any(number > completed[-1] for number in self.store.unfinished_by_others()):
            return
        if completed[-1] == self._lost:
            return
        newest = self.read(completed[-1])
        needed: set[str] = set()
        # A listing may lack checkpoints that are known to be retained.
        for number in {*self.store.ids(), *completed, *uncertain}:
            metadata = self.read(number)
            if isinstance(metadata, CkptError):
                logger.warning(
                    "nothing is cleaned, because the files of a checkpoint are unknown: %s",
                    metadata,
                )
                return
            needed.update(reference.path for reference in metadata.files())
        # Looked for now, when the checkpoints that were removed are no longer complete: a reader
        # that has not written its pin yet will see that.
        of_readers = self._needed_by_readers()
        if isinstance(newest, CheckpointMetadata) and of_readers is not None:
            self._delete_unneeded(newest, needed | of_readers)

    def _delete_unneeded(self, newest: CheckpointMetadata, needed: Set[str]) -> None:
        found = garbage_of(self._storage, newest, needed)
        self.store.check()  # no newer driver has written what was found
        self._storage.delete(found)
        self._forget(found)


class CleaningHold:
    """Keeps cleaning and copying apart: while a savepoint is copied, no file is deleted.

    Cleaning that meets a hold is skipped, and is done after the next checkpoint.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holds = 0
        self._is_cleaning = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all files while the context lasts; waits for a cleaning that is under way."""
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
        """Yield whether files may be deleted while the context lasts."""
        with self._changed:
            may_clean = self._is_cleaning = self._holds == 0
        try:
            yield may_clean
        finally:
            with self._changed:
                if may_clean:
                    self._is_cleaning = False
                self._changed.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until there is no hold; return whether there is none."""
        with self._changed:
            return self._changed.wait_for(lambda: self._holds == 0, timeout_seconds)
