"""The completed checkpoints of a query, by the directories that hold them."""

from __future__ import annotations

from pyspark_ckpt.on_disk.layout import METADATA_NAME, checkpoint_id_of, checkpoint_name
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata, encode_metadata, read_metadata
from pyspark_ckpt.on_disk.storage import Storage


class CompletedCheckpoints:
    """``chk-N`` directories below a checkpoints directory. A checkpoint is its ``_metadata``.

    The newest directory stays even if its checkpoint was given up or discarded: it is what the
    next start knows the highest id from.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def ids(self) -> list[int]:
        """Return the ids of all complete checkpoints, oldest first."""
        return [number for number in self.used_ids() if self.is_complete(number)]

    def used_ids(self) -> list[int]:
        """Return the ids of all directories, complete or not, oldest first."""
        numbers = (checkpoint_id_of(name) for name in self._storage.list())
        return sorted(number for number in numbers if number is not None)

    def last_id(self) -> int:
        """Return the highest id in use, complete or not; 0 if there is none."""
        return max(self.used_ids(), default=0)

    def is_complete(self, checkpoint_id: int) -> bool:
        """Tell whether a checkpoint has its ``_metadata``."""
        return self._storage.exists(f"{checkpoint_name(checkpoint_id)}/{METADATA_NAME}")

    def reserve(self, checkpoint_id: int) -> None:
        """Make the directory of a new checkpoint, durably, so that no one else takes its id.

        Raises
        ------
        FileExistsError
            If the id is in use.
        """
        self._storage.make_directory(checkpoint_name(checkpoint_id))

    def read(self, checkpoint_id: int) -> CheckpointMetadata:
        """Read one; raises as :func:`read_metadata`."""
        return read_metadata(self._storage, checkpoint_name(checkpoint_id))

    def path(self, checkpoint_id: int) -> str:
        """Return the absolute path of one, to restore from."""
        return self._storage.url_of(checkpoint_name(checkpoint_id))

    def add(self, checkpoint_id: int, metadata: CheckpointMetadata) -> None:
        """Complete a checkpoint: its ``_metadata`` is written exclusively and durable on return.

        Raises
        ------
        FileExistsError
            If another driver completed this id first.
        """
        path = f"{checkpoint_name(checkpoint_id)}/{METADATA_NAME}"
        self._storage.write(path, [encode_metadata(metadata)])

    def remove(self, checkpoint_id: int) -> None:
        """Remove one; from the moment its ``_metadata`` is gone it is no checkpoint any more."""
        name = checkpoint_name(checkpoint_id)
        self._storage.delete([f"{name}/{METADATA_NAME}"])
        self._storage.delete_directory(name)

    def remove_all(self) -> None:
        """Remove all of them; an empty directory keeps the highest id."""
        used = self.used_ids()
        self._storage.delete([f"{checkpoint_name(number)}/{METADATA_NAME}" for number in used])
        for number in used[:-1]:
            self._storage.delete_directory(checkpoint_name(number))
