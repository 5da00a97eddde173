"""The newest complete checkpoints of a query, found without reading all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import METADATA_NAME, checkpoint_id_of, checkpoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.open import find_store


class RetainedCheckpoints:
    """The retained checkpoints of a query.

    If a server stores which checkpoints are complete and cannot be reached, each checkpoint with
    ``_metadata`` counts, and `problem` says so.
    """

    def __init__(self, checkpoints: Storage, store: CompletedCheckpointStore | None) -> None:
        self._checkpoints = checkpoints
        self._store = store
        self.problem: str | None = None
        self.used_ids = self._used_ids()

    def _used_ids(self) -> list[int]:
        if self._store is not None:
            try:
                return self._store.used_ids()
            except (OSError, CkptError) as exc:
                self.problem = str(exc)
                self._store = None
        numbers = (checkpoint_id_of(name) for name in self._checkpoints.list())
        return sorted(number for number in numbers if number is not None)

    def is_complete(self, number: int) -> bool:
        """Return whether a checkpoint is complete."""
        if self._store is not None:
            return self._store.is_complete(number)
        return self._checkpoints.exists(f"{checkpoint_name(number)}/{METADATA_NAME}")

    def newest(self, most: int, before: int | None = None) -> list[int]:
        """Return the ids of the newest complete checkpoints, newest first."""
        found: list[int] = []
        for number in reversed(self.used_ids):
            if len(found) == most:
                break
            if (before is None or number < before) and self.is_complete(number):
                found.append(number)
        return found

    def read(self, number: int) -> CheckpointMetadata | CkptError:
        """Return the metadata of a checkpoint, or the error if it cannot be read."""
        try:
            return read_metadata(self._checkpoints, checkpoint_name(number))
        except CkptError as exc:
            return exc
        except OSError as exc:  # of one file, or of a store that the next file may reach again
            return CkptError(str(exc))


@contextmanager
def retained_checkpoints(checkpoints: Storage) -> Iterator[RetainedCheckpoints]:
    """Open the retained checkpoints of a query, to read them."""
    try:
        store = find_store(checkpoints)
    except (OSError, CkptError) as exc:
        found = RetainedCheckpoints(checkpoints, None)
        found.problem = str(exc)
        yield found
        return
    with closing(store):
        yield RetainedCheckpoints(checkpoints, store)
