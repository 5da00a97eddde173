"""The base of the stores: which checkpoints are complete, and which driver may make the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from pyspark_ckpt.formats.layout import METADATA_NAME, checkpoint_id_of, checkpoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata, read_metadata
from pyspark_ckpt.storage.base import CoordinatorStorage


class CompletedCheckpointStore(ABC):
    """The completed checkpoints of one query; their ``_metadata`` files are in its directory.

    The driver that calls :meth:`claim` last may write; all other drivers are fenced. Only drivers
    use a store.

    Parameters
    ----------
    storage
        The query's checkpoints directory.
    """

    def __init__(self, storage: CoordinatorStorage) -> None:
        self._storage = storage

    @abstractmethod
    def claim(self) -> None:
        """Become the only driver that may write, and fence the drivers before it.

        Raises
        ------
        OSError
            If it is unknown whether this driver may write.
        """

    @abstractmethod
    def check(self) -> None:
        """Check that this driver may still write; it may if it never claimed the store.

        Raises
        ------
        FencedError
            If another driver has claimed the store after this driver.
        """

    @abstractmethod
    def reserve(self, checkpoint_id: int) -> None:
        """Reserve the id of a new checkpoint, durably; no other driver ever gets this id.

        Raises
        ------
        FileExistsError
            If the id is in use.
        FencedError
            If another driver has claimed the store after this driver.
        """

    @abstractmethod
    def check_reserved(self, checkpoint_id: int) -> None:
        """Check that this driver may complete a checkpoint that it has reserved.

        Raises
        ------
        FencedError
            If another driver has claimed the store, or removed the id.
        """

    @abstractmethod
    def add(self, checkpoint_id: int, metadata: CheckpointMetadata) -> None:
        """Complete a checkpoint, durably; reserve its id first if it is not reserved.

        Raises
        ------
        FencedError
            If another driver has removed its id, so the checkpoint is not complete.
        OSError
            If it is unknown whether the checkpoint is complete.
        """

    @abstractmethod
    def is_complete(self, checkpoint_id: int) -> bool:
        """Return whether a checkpoint is complete."""

    @abstractmethod
    def unfinished_by_others(self) -> list[int]:
        """Return the ids that other drivers have reserved and may still complete.

        Such a driver may have passed its last check, and be about to write ``_metadata``.
        """

    @abstractmethod
    def used_ids(self) -> list[int]:
        """Return the ids of all directories, complete or not, oldest first.

        They include ids that this driver has reserved, even if a listing lacks them.
        """

    @abstractmethod
    def remove(self, checkpoint_id: int) -> None:
        """Remove a checkpoint and its directory; its id is never used again."""

    @abstractmethod
    def remove_all(self) -> None:
        """Remove all checkpoints, but keep a record of the highest id.

        The ids are listed before the fence is checked, and only these are removed: a newer driver
        may complete checkpoints at the same time. A write of ``_metadata`` that hangs completes
        none of the removed ids when it continues.

        Raises
        ------
        FencedError
            If another driver has claimed the store after this driver.
        """

    @abstractmethod
    def adopt(self, ids: Iterable[int], last_id: int) -> None:
        """Take over the checkpoints of the store that the query had before; may be repeated.

        Parameters
        ----------
        ids
            The checkpoints that are complete there; their ``_metadata`` is in the directory.
        last_id
            The highest id in use there.
        """

    @abstractmethod
    def close(self) -> None:
        """Close connections; the next use opens them again."""

    def ids(self) -> list[int]:
        """Return the ids of all complete checkpoints, oldest first."""
        return [number for number in self.used_ids() if self.is_complete(number)]

    def last_id(self) -> int:
        """Return the highest id in use, complete or not; 0 if there is none."""
        return max(self.used_ids(), default=0)

    def read(self, checkpoint_id: int) -> CheckpointMetadata:
        """Return the metadata of a checkpoint; raises the errors of :func:`read_metadata`."""
        return read_metadata(self._storage, checkpoint_name(checkpoint_id))

    def path(self, checkpoint_id: int) -> str:
        """Return the path of a checkpoint's directory, to restore from."""
        return self._storage.url_of(checkpoint_name(checkpoint_id))

    def revoke(self, checkpoint_id: int) -> None:
        """Make a checkpoint of any driver incomplete; the cleaner deletes its directory later."""
        self._storage.delete([metadata_path(checkpoint_id)])

    def _write_metadata(self, checkpoint_id: int, metadata: CheckpointMetadata) -> None:
        self._storage.write(metadata_path(checkpoint_id), [encode_metadata(metadata)])

    def _listed_ids(self) -> set[int]:
        numbers = (checkpoint_id_of(name) for name in self._storage.list())
        return {number for number in numbers if number is not None}


def metadata_path(checkpoint_id: int) -> str:
    """Return the path of a checkpoint's ``_metadata``."""
    return f"{checkpoint_name(checkpoint_id)}/{METADATA_NAME}"
