"""The memory as a storage: what ends with the process, and what does not."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pyspark_ckpt.errors import CheckpointNotFoundError, CorruptFileError
from pyspark_ckpt.storage.memory import MemoryStorage, MemoryWithDurableMetadata
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.faults.epochs import Epochs, files_of, restored_epoch


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
