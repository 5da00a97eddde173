"""What every store of completed checkpoints does: which there are, and who may make the next."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pyspark_ckpt.formats.layout import METADATA_NAME, checkpoint_id_of, checkpoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata, read_metadata
from pyspark_ckpt.storage.base import CoordinatorStorage


class CompletedCheckpointStore(ABC):
    """The completed checkpoints of one query, whose ``_metadata`` lie in its directory.

    Of all drivers that open a store, the last one to :meth:`claim` it may write; the others are
    fenced. Used by the driver only.

    Parameters
    ----------
    storage
        The query's checkpoints directory.
    """

    def __init__(self, storage: CoordinatorStorage) -> None:
        self._storage = storage

    @abstractmethod
    def claim(self) -> None:
        """Become the one driver that writes; all that claimed before are fenced.

        Raises
        ------
        OSError
            If it is not known to have worked.
        """

    @abstractmethod
    def check(self) -> None:
        """Check that this driver may still write; one that never claimed the store may.

        Raises
        ------
        FencedError
            If another driver has claimed the store since.
        """

    @abstractmethod
    def reserve(self, checkpoint_id: int) -> None:
        """Take the id of a new checkpoint, durably, so that no one else ever has it.

        Raises
        ------
        FileExistsError
            If the id is in use.
        FencedError
            If another driver has claimed the store since.
        """

    @abstractmethod
    def check_reserved(self, checkpoint_id: int) -> None:
        """Check that this driver may complete a checkpoint, whose id it has reserved.

        Raises
        ------
        FencedError
            If another driver has claimed the store or given up the id since.
        """

    @abstractmethod
    def add(self, checkpoint_id: int, metadata: CheckpointMetadata) -> None:
        """Complete a checkpoint, durably; its id is reserved first if it was not.

        Raises
        ------
        FencedError
            If another driver has given up its id since: it is not complete.
        OSError
            If it is not known to be complete.
        """

    @abstractmethod
    def is_complete(self, checkpoint_id: int) -> bool:
        """Tell whether a checkpoint is complete."""

    @abstractmethod
    def used_ids(self) -> list[int]:
        """Return the ids of all directories, complete or not, oldest first.

        What this driver has reserved is among them, whatever a listing says.
        """

    @abstractmethod
    def remove(self, checkpoint_id: int) -> None:
        """Give up an id for ever and remove its directory: it is no checkpoint any more."""

    @abstractmethod
    def remove_all(self) -> None:
        """Remove all checkpoints; the highest id is not forgotten."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections; they are made again if they are needed."""

    def ids(self) -> list[int]:
        """Return the ids of all complete checkpoints, oldest first."""
        return [number for number in self.used_ids() if self.is_complete(number)]

    def last_id(self) -> int:
        """Return the highest id in use, complete or not; 0 if there is none."""
        return max(self.used_ids(), default=0)

    def read(self, checkpoint_id: int) -> CheckpointMetadata:
        """Read one; raises as :func:`read_metadata`."""
        return read_metadata(self._storage, checkpoint_name(checkpoint_id))

    def path(self, checkpoint_id: int) -> str:
        """Return the full name of one's directory, to restore from."""
        return self._storage.url_of(checkpoint_name(checkpoint_id))

    def revoke(self, checkpoint_id: int) -> None:
        """Make it no checkpoint any more, whoever's it is; its directory stays, for its cleaner."""
        self._storage.delete([metadata_path(checkpoint_id)])

    def _write_metadata(self, checkpoint_id: int, metadata: CheckpointMetadata) -> None:
        self._storage.write(metadata_path(checkpoint_id), [encode_metadata(metadata)])

    def _listed_ids(self) -> set[int]:
        numbers = (checkpoint_id_of(name) for name in self._storage.list())
        return {number for number in numbers if number is not None}


def metadata_path(checkpoint_id: int) -> str:
    """Return the path of a checkpoint's ``_metadata``."""
    return f"{checkpoint_name(checkpoint_id)}/{METADATA_NAME}"
