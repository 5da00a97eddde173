"""etcd alone: its absence, its end, and what the settings require."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError, FencedError
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.settings import HighAvailability, Settings
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.etcd import EtcdPointers
from pyspark_ckpt.stores.open import find_store, open_store
from tests.faults.epochs import QUERY_ID, Epochs, restored_epoch
from tests.servers.etcd import etcd_server
from tests.unit.without_library import check_advice


def test_its_servers_must_be_named(storage: Storage) -> None:
    with pytest.raises(ConfigurationError, match=r"high-availability\.etcd\.endpoints"):
        open_store(storage, Settings(high_availability_type=HighAvailability.ETCD), QUERY_ID)


def test_servers_that_are_not_there_are_named() -> None:
    with pytest.raises(OSError, match=r"etcd http://127\.0\.0\.1:1,.* names them"):
        EtcdPointers("http://127.0.0.1:1,http://127.0.0.1:2", "/q")


@pytest.mark.further
def test_without_its_library_it_says_what_to_install() -> None:
    check_advice(
        "urllib3",
        "etcd",
        "from pyspark_ckpt.stores.etcd import EtcdPointers",
        "EtcdPointers('http://localhost:2379', '/q')",
    )


def test_a_server_that_dies_fails_checkpoints_and_forgets_nothing(
    storage: Storage, tmp_path: Path
) -> None:
    """The server is killed, a checkpoint fails, and a server on the same data continues."""
    epochs = Epochs(storage)
    epochs.commit()
    with etcd_server(tmp_path) as address:
        settings = {"high_availability_type": HighAvailability.ETCD, "etcd_endpoints": address}
        runner = epochs.runner(**settings)
        first = runner.take(epochs.committed_epoch, periodic=False)
        assert isinstance(first, CompletedCheckpoint)
    epochs.commit()
    with pytest.raises(CheckpointAbortedError) as failed:
        runner.take(epochs.committed_epoch, periodic=False)
    assert failed.value.reason is AbortReason.STORAGE_FAILED
    assert address in str(failed.value)
    with etcd_server(tmp_path, int(address.rpartition(":")[2])):
        second = epochs.runner(**settings)
        newest = second.newest()
        assert newest is not None
        assert newest.checkpoint_id == 1
        with pytest.raises(CheckpointAbortedError) as fenced:
            runner.take(epochs.committed_epoch, periodic=False)
        assert fenced.value.reason is AbortReason.FENCED
        following = second.take(epochs.committed_epoch, periodic=False)
        assert isinstance(following, CompletedCheckpoint)
        store = find_store(storage)  # by the note, without the settings
        assert store.ids() == [1, following.checkpoint_id]
        assert [restored_epoch(store, storage, number) for number in store.ids()] == [0, 1]
        for open_one in (store, runner, second):
            open_one.close()


def test_a_server_that_is_gone_is_passed_over(etcd_address: str) -> None:
    path = f"/{secrets.token_hex(4)}"
    pointers = EtcdPointers(f"http://127.0.0.1:1,{etcd_address}", path)
    pointers.claim()
    pointers.reserve(1)
    pointers.put(1, "here")
    assert EtcdPointers(etcd_address, path).ids() == [1]
    assert EtcdPointers(etcd_address, f"{path}x").ids() == []


def test_a_change_that_comes_late_changes_nothing(etcd_address: str) -> None:
    """All changes of a driver after the next one's claim: a transaction, not a look before it."""
    path = f"/{secrets.token_hex(4)}"
    first, second = (EtcdPointers(etcd_address, path) for _ in range(2))
    first.claim()
    first.reserve(1)
    second.claim()
    for change in (
        lambda: first.reserve(2),
        lambda: first.put(1, "here"),
        lambda: first.delete(1),
    ):
        with pytest.raises(FencedError):
            change()
    assert (second.ids(), second.last_id()) == ([], 1)
