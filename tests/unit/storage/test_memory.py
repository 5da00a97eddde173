"""Memory as a storage: what ends with the process, and what does not."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import BinaryIO

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pyspark_ckpt.errors import CheckpointNotFoundError, CorruptFileError
from pyspark_ckpt.formats.layout import AUTHOR_NAME, METADATA_NAME, OWNERS, POINTED_NAME
from pyspark_ckpt.storage.base import FileReference, Storage
from pyspark_ckpt.storage.memory import MemoryStorage
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.faults.epochs import Epochs, files_of, restored_epoch


class MemoryWithDurableMetadata(Storage):
    """State in memory; the files that say which checkpoints exist are in another storage.

    It corresponds to Flink's MemoryBackendCheckpointStorage with a checkpoint directory. A
    checkpoint that outlives the process restores if all its state is inline; otherwise the error
    names the lost file.

    Parameters
    ----------
    state
        Where the state is written.
    metadata
        Where ``_metadata``, ``_author`` and terms are written.
    """

    is_shared = False

    def __init__(self, state: Storage, metadata: Storage) -> None:
        self._state = state
        self._metadata = metadata
        self.url = state.url

    def child(self, relative: str) -> Storage:
        return MemoryWithDurableMetadata(
            self._state.child(relative), self._metadata.child(relative)
        )

    def parent(self) -> Storage:
        return MemoryWithDurableMetadata(self._state.parent(), self._metadata.parent())

    def url_of(self, relative: str) -> str:
        return self._home(relative).url_of(relative)

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        return self._home(relative).write(relative, chunks)

    def make_directory(self, relative: str) -> None:
        self._metadata.make_directory(relative)

    def open_verified(self, reference: FileReference) -> AbstractContextManager[BinaryIO]:
        return self._home(reference.path).open_verified(reference)

    def read(self, relative: str) -> bytes:
        return self._home(relative).read(relative)

    def size_bytes(self, relative: str) -> int | None:
        return self._home(relative).size_bytes(relative)

    def exists(self, relative: str) -> bool:
        return self._state.exists(relative) or self._metadata.exists(relative)

    def list(self, directory: str | None = None) -> list[str]:
        return sorted({*self._state.list(directory), *self._metadata.list(directory)})

    def delete(self, relatives: Iterable[str]) -> None:
        for relative in relatives:
            self._home(relative).delete([relative])

    def delete_directory(self, relative: str) -> None:
        self._metadata.delete_directory(relative)
        self._state.delete_directory(relative)

    def _home(self, relative: str) -> Storage:
        return self._metadata if _is_metadata(relative) else self._state


def _is_metadata(path: str) -> bool:
    """Return whether a path belongs to the record of a checkpoint and not to its state."""
    directory, _, name = path.rpartition("/")
    is_note = directory in (OWNERS, "drivers", "stores")
    return is_note or name in (METADATA_NAME, AUTHOR_NAME, POINTED_NAME)


@pytest.fixture
def name() -> Iterator[str]:
    name = secrets.token_hex(8)
    yield name
    end_of_the_process(name)


def end_of_the_process(name: str) -> None:
    store = MemoryFileSystem.store
    for path in [path for path in store if path.startswith(f"/{name}/")]:
        del store[path]


def taken(storage: Storage) -> int:
    epochs = Epochs(storage)
    epochs.commit()
    runner = epochs.runner()
    runner.take(epochs.committed_epoch, periodic=False)
    runner.close()
    assert restored_epoch(CompletedCheckpoints(storage), storage, 1) == 0
    return 1


def test_without_a_place_for_metadata_nothing_outlives_the_process(name: str) -> None:
    number = taken(MemoryStorage(name))
    end_of_the_process(name)
    store = CompletedCheckpoints(MemoryStorage(name))
    assert (store.ids(), store.last_id()) == ([], 0)
    with pytest.raises(CheckpointNotFoundError, match=f"memory://{name}/chk-1"):
        store.read(number)


def test_durable_metadata_outlives_it_and_names_the_state_that_did_not(
    name: str, storage: LocalStorage
) -> None:
    memory = MemoryWithDurableMetadata(MemoryStorage(name), storage)
    number = taken(memory)
    assert {path.partition("/")[0] for path in files_of(storage)} == {"drivers", "chk-1"}
    end_of_the_process(name)
    store = CompletedCheckpoints(memory)
    assert (store.ids(), store.last_id()) == ([number], number)
    metadata = store.read(number)
    for reference in metadata.files():
        with pytest.raises(CorruptFileError, match=f"memory://{name}/{reference.path} is missing"):
            memory.verify_size(reference)
    with pytest.raises(CorruptFileError):
        restored_epoch(store, memory, number)
    assert memory.child("chk-1").read("_metadata") == storage.read("chk-1/_metadata")


class LateStorage(MemoryStorage):
    """A storage whose first listing of a directory lacks its newest file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._listed: set[str] = set()

    def files_below(self, directory: str) -> tuple[str, ...]:
        files = super().files_below(directory)
        is_first = directory not in self._listed
        self._listed.add(directory)
        return files[:-1] if is_first else files


def test_a_move_loses_no_file_that_a_listing_lacks() -> None:
    storage = LateStorage(f"{secrets.token_hex(8)}/location")
    for name in ("commits/8", "commits/9"):
        storage.write(name, [name.encode()])
    storage.move("commits", "kept/commits")
    assert storage.read("kept/commits/8") == b"commits/8"
    assert storage.read("kept/commits/9") == b"commits/9"
    assert not storage.exists("commits")


class OutdatedStorage(MemoryStorage):
    """A storage whose listings have a file that is deleted."""

    def files_below(self, directory: str) -> tuple[str, ...]:
        deleted = f"{directory}/8"
        return tuple(sorted({*super().files_below(directory), deleted}))


def test_a_move_takes_a_file_that_was_moved_before_for_moved() -> None:
    storage = OutdatedStorage(f"{secrets.token_hex(8)}/location")
    storage.write("kept/commits/8", [b"8"])
    storage.write("commits/9", [b"9"])
    storage.move("commits", "kept/commits")
    assert storage.read("kept/commits/8") == b"8"
    assert storage.read("kept/commits/9") == b"9"
    assert not storage.exists("commits")


def test_files_that_come_and_go_disturb_no_listing() -> None:
    storage = MemoryStorage(secrets.token_hex(8))
    for number in range(50):
        storage.write(f"below/{number}", [b"stays"])
    is_over = threading.Event()

    def come_and_go(name: str) -> None:
        while not is_over.is_set():
            storage.write(f"below/{name}", [b"comes and goes"])
            storage.delete([f"below/{name}"])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            busy = [threads.submit(come_and_go, name) for name in ("one", "other")]
            try:
                for _ in range(100):
                    assert len(storage.files_below("below")) >= 50
                    assert len(storage.list("below")) >= 50
            finally:
                is_over.set()
            for each in busy:
                each.result()
    finally:
        sys.setswitchinterval(interval)
