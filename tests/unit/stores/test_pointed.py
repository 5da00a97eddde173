"""Checkpoints with pointers, below a directory whose listings lag."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.pointed import PointedCheckpoints
from tests.unit.memory_pointers import MemoryPointers, SharedPointers


class Lagging(LocalStorage):
    """A store without directories, whose listings have no file of a checkpoint yet."""

    def list(self, directory: str | None = None) -> list[str]:
        return [] if directory is None or directory.startswith("chk-") else super().list(directory)

    def delete_directory(self, relative: str) -> None:
        self.delete(f"{relative}/{name}" for name in self.list(relative))


def test_a_removed_checkpoint_has_no_metadata_although_a_listing_lacks_it(
    tmp_path: Path, snapshot: CheckpointMetadata
) -> None:
    """A fork would begin with it, and its files may be gone (simulated seed 80144)."""
    storage = Lagging(tmp_path)
    store = PointedCheckpoints(storage, MemoryPointers(SharedPointers()))
    store.claim()
    store.add(1, snapshot)
    store.remove(1)
    assert not storage.exists("chk-1/_metadata")


def test_a_pointer_that_is_being_put_is_deleted_with_its_checkpoint(
    tmp_path: Path, snapshot: CheckpointMetadata
) -> None:
    """Its step hangs past the end of the query: else it would point to what was deleted."""
    removing: list[Future[None]] = []

    class Slow(MemoryPointers):
        def put(self, checkpoint_id: int, url: str) -> None:
            removing.append(pool.submit(store.remove, checkpoint_id))
            wait(removing, timeout=0.5)  # it must not end before this
            super().put(checkpoint_id, url)

    store = PointedCheckpoints(LocalStorage(tmp_path), Slow(SharedPointers()))
    store.claim()
    with ThreadPoolExecutor(1) as pool:
        store.add(1, snapshot)
        removing[0].result(timeout=60)
    assert store.ids() == []
