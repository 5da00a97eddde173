"""The store of completed checkpoints with pointers outside the checkpoints directory.

As in Flink's DefaultCompletedCheckpointStore, ``_metadata`` is in the checkpoints directory, and a
checkpoint is complete while there is a pointer to it. :class:`Pointers` has the ids, the pointers
and the one driver that may write; each of its steps is atomic.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress

from pyspark_ckpt.errors import FencedError
from pyspark_ckpt.formats.layout import POINTED_NAME, checkpoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.stores.base import CompletedCheckpointStore, metadata_path


class Pointers(ABC):
    """The ids and pointers of one query; a fenced driver cannot change them.

    All methods raise ``OSError`` if it is unknown whether they succeeded. Methods that change
    something also raise :class:`FencedError`, even if there is nothing to change. A driver that has
    never claimed is not fenced: a claimed checkpoint's new owner deletes its pointer.
    """

    @abstractmethod
    def claim(self) -> None:
        """Fence all drivers that claimed before."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``FencedError`` if another driver has claimed after this driver."""

    @abstractmethod
    def last_id(self) -> int:
        """Return the highest id that was reserved, 0 if no id was reserved."""

    @abstractmethod
    def reserve(self, checkpoint_id: int) -> None:
        """Raise the highest id; ``FileExistsError`` if it is not below `checkpoint_id`."""

    @abstractmethod
    def put(self, checkpoint_id: int, url: str) -> None:
        """Create the pointer to a checkpoint; ``FileExistsError`` if it exists already."""

    @abstractmethod
    def delete(self, checkpoint_id: int) -> None:
        """Delete a pointer if it exists.

        A fenced driver is refused without a pointer too: the id may be one that another driver is
        about to point to, and the caller deletes its ``_metadata`` next.
        """

    @abstractmethod
    def ids(self) -> list[int]:
        """Return the ids that are pointed to, oldest first."""

    @abstractmethod
    def close(self) -> None:
        """Close connections; the next use opens them again."""


class PointedCheckpoints(CompletedCheckpointStore):
    """``chk-N`` directories below a checkpoints directory, complete if there is a pointer."""

    def __init__(self, storage: CoordinatorStorage, pointers: Pointers) -> None:
        super().__init__(storage)
        self._pointers = pointers
        self._reserved: set[int] = set()
        self._is_claimed = False
        # A checkpoint may hang while another thread claims the store again, or removes its id.
        self._claiming = threading.Lock()

    def claim(self) -> None:
        with self._claiming:
            # Another driver may have had the store, and have deleted what they refer to.
            self._reserved.clear()
            self._pointers.claim()
            self._is_claimed = True

    def check(self) -> None:
        if self._is_claimed:
            self._pointers.check()

    def reserve(self, checkpoint_id: int) -> None:
        if not self._is_claimed:
            self.claim()
        self._pointers.check()
        if checkpoint_id in self._listed_ids():
            # The directory is older than the pointers.
            raise FileExistsError(f"{self.path(checkpoint_id)} is in use")
        self._pointers.reserve(checkpoint_id)
        self._reserved.add(checkpoint_id)

    def check_reserved(self, checkpoint_id: int) -> None:
        self._check_still_reserved(checkpoint_id)
        self._pointers.check()

    def add(self, checkpoint_id: int, metadata: CheckpointMetadata) -> None:
        if checkpoint_id not in self._reserved:
            self.reserve(checkpoint_id)
        self._write_metadata(checkpoint_id, metadata)
        try:
            with self._claiming:
                self._check_still_reserved(checkpoint_id)
                self._reserved.discard(checkpoint_id)
                self._pointers.put(checkpoint_id, self.path(checkpoint_id))
        except FencedError:
            # There is no pointer to it, and there will never be one.
            with suppress(OSError):
                self._storage.delete([metadata_path(checkpoint_id)])
            raise
        self._tell_tasks(checkpoint_id)

    def unfinished_by_others(self) -> list[int]:
        return []  # the pointers of fenced drivers are refused

    def is_complete(self, checkpoint_id: int) -> bool:
        return checkpoint_id in self._pointers.ids()

    def ids(self) -> list[int]:
        return self._pointers.ids()

    def used_ids(self) -> list[int]:
        return sorted(self._listed_ids() | {*self._pointers.ids()} | self._reserved)

    def last_id(self) -> int:
        return max(super().last_id(), self._pointers.last_id())

    def remove(self, checkpoint_id: int) -> None:
        with self._claiming:  # a step that hangs puts its pointer before this, or never
            self._reserved.discard(checkpoint_id)
        self._pointers.delete(checkpoint_id)
        # By name: a listing may lack them, and a fork would begin with what is left.
        self._storage.delete([_pointed_path(checkpoint_id), metadata_path(checkpoint_id)])
        self._storage.delete_directory(checkpoint_name(checkpoint_id))

    def revoke(self, checkpoint_id: int) -> None:
        self._storage.delete([_pointed_path(checkpoint_id)])
        self._pointers.delete(checkpoint_id)
        super().revoke(checkpoint_id)

    def remove_all(self) -> None:
        used = self.used_ids()
        self.check()  # no newer driver has one of these ids
        for number in used:
            self.remove(number)

    def adopt(self, ids: Iterable[int], last_id: int) -> None:
        with suppress(FileExistsError):
            self._pointers.reserve(last_id)
        for number in self._pointers.ids():
            if not self._storage.exists(metadata_path(number)):
                self._pointers.delete(number)  # removed while the query had another store
        for number in ids:
            with suppress(FileExistsError):
                self._pointers.put(number, self.path(number))
            self._tell_tasks(number)

    def close(self) -> None:
        self._pointers.close()

    def _check_still_reserved(self, checkpoint_id: int) -> None:
        if checkpoint_id not in self._reserved:
            raise FencedError(
                f"{self.path(checkpoint_id)} was reserved before this driver took the checkpoints "
                "back from another driver. Run a query once at a time: stop the other one"
            )

    def _tell_tasks(self, checkpoint_id: int) -> None:
        # Tasks read only the directory. If it fails, they notice a later checkpoint.
        with suppress(OSError):
            self._storage.write(_pointed_path(checkpoint_id), [b""])


def _pointed_path(checkpoint_id: int) -> str:
    return f"{checkpoint_name(checkpoint_id)}/{POINTED_NAME}"
