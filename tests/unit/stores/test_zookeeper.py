"""ZooKeeper alone: it is absent, it dies, and its settings are checked."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError, CorruptFileError
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.restore.claim import discard
from pyspark_ckpt.restore.source import RestoreSource, open_source
from pyspark_ckpt.settings import ClaimMode, HighAvailability, Settings
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores import zookeeper as zookeeper_pointers
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.open import find_store, open_store
from pyspark_ckpt.stores.zookeeper import ZooKeeperPointers
from tests.faults.epochs import QUERY_ID, Epochs, restored_epoch
from tests.servers.zookeeper import zookeeper_server
from tests.unit.without_library import check_advice


def test_its_servers_must_be_named(storage: Storage) -> None:
    with pytest.raises(ConfigurationError, match=r"high-availability\.zookeeper\.quorum"):
        open_store(storage, Settings(high_availability_type=HighAvailability.ZOOKEEPER), QUERY_ID)


def test_servers_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_pointers, "_CONNECT_SECONDS", 0.2)
    with pytest.raises(OSError, match=r"ZooKeeper 127\.0\.0\.1:1 cannot be reached"):
        ZooKeeperPointers("127.0.0.1:1", "/q")


def test_without_its_library_it_says_what_to_install() -> None:
    check_advice(
        "kazoo",
        "zookeeper",
        "from pyspark_ckpt.stores.zookeeper import ZooKeeperPointers",
        "ZooKeeperPointers('localhost:2181', '/q')",
    )


@pytest.mark.slow
def test_servers_that_die_fail_checkpoints_and_forget_nothing(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed, a checkpoint fails, and a server on the same data continues."""
    epochs = Epochs(storage)
    epochs.commit()
    with zookeeper_server(tmp_path) as address:
        settings = {
            "high_availability_type": HighAvailability.ZOOKEEPER,
            "zookeeper_quorum": address,
        }
        runner = epochs.runner(**settings)
        first = runner.take(epochs.committed_epoch, periodic=False)
        assert isinstance(first, CompletedCheckpoint)
    epochs.commit()
    with monkeypatch.context() as patch:
        patch.setattr(zookeeper_pointers, "_ANSWER_SECONDS", 1.0)
        with pytest.raises(CheckpointAbortedError) as failed:
            runner.take(epochs.committed_epoch, periodic=False)
    assert failed.value.reason is AbortReason.STORAGE_FAILED
    assert address in str(failed.value)
    port = int(address.rpartition(":")[2])
    with zookeeper_server(tmp_path, port):
        second = epochs.runner(**settings)
        newest = second.newest()
        assert newest is not None
        assert newest.checkpoint_id == 1
        with pytest.raises(CheckpointAbortedError) as fenced:
            runner.take(epochs.committed_epoch, periodic=False)
        assert fenced.value.reason is AbortReason.FENCED
        following = second.take(epochs.committed_epoch, periodic=False)
        assert isinstance(following, CompletedCheckpoint)
        store = open_store(storage, Settings(**settings), QUERY_ID)
        assert store.ids() == [1, following.checkpoint_id]
        assert [restored_epoch(store, storage, number) for number in store.ids()] == [0, 1]
        for open_one in (store, runner, second):
            open_one.close()


@pytest.fixture
def looking(storage: LocalStorage) -> Iterator[Callable[[], CompletedCheckpointStore]]:
    """Return a function that opens the store without a query's settings."""
    opened: list[CompletedCheckpointStore] = []

    def look() -> CompletedCheckpointStore:
        opened.append(find_store(storage))
        return opened[-1]

    yield look
    for store in opened:
        store.close()


def taken(epochs: Epochs, times: int, **settings: str) -> list[str]:
    """Start a driver that takes some checkpoints; return their paths."""
    runner = epochs.runner(**settings)
    paths = []
    for _ in range(times):
        epochs.commit()
        one = runner.take(epochs.committed_epoch, periodic=False)
        assert isinstance(one, CompletedCheckpoint)
        paths.append(one.path)
    runner.close()
    return paths


def test_every_reader_finds_the_store_that_is_written_down(
    storage: LocalStorage,
    zookeeper_address: str,
    looking: Callable[[], CompletedCheckpointStore],
) -> None:
    """A query may change its store: the last one counts."""
    settings = {
        "high_availability_type": HighAvailability.ZOOKEEPER,
        "zookeeper_quorum": zookeeper_address,
        "zookeeper_root": f"/{secrets.token_hex(4)}",
    }
    epochs = Epochs(storage)
    assert looking().ids() == []
    first, second = taken(epochs, 2, **settings)
    for _ in range(2):  # the second start writes no second note
        assert looking().ids() == [1, 2]
        assert storage.list("stores") == ["1"]
        epochs.runner(**settings).close()
    (storage.root / second / "_metadata").write_bytes(b"")
    with pytest.raises(CorruptFileError, match="chk-1; set"):
        open_source(second, falls_back=False)
    assert open_source(second, falls_back=True).path == first
    taken(epochs, 1)
    assert looking().ids() == [2, 3], "what was complete stays so"
    taken(epochs, 1, **settings)
    assert looking().ids()[-1] == 4
    assert storage.list("stores") == ["1", "2", "3"]
    (storage.root / "stores" / "3").write_bytes(b'{"type": "zookeeper", "strange": 1}')
    with pytest.raises(CorruptFileError, match="stores/3"):
        looking()
    taken(epochs, 1, **settings)  # the query itself ignores a changed note
    assert looking().ids() == [4, 5]


def test_a_claimed_checkpoint_goes_with_its_pointer(
    storage: LocalStorage,
    zookeeper_address: str,
    looking: Callable[[], CompletedCheckpointStore],
) -> None:
    settings = {
        "high_availability_type": HighAvailability.ZOOKEEPER,
        "zookeeper_quorum": zookeeper_address,
        "zookeeper_root": f"/{secrets.token_hex(4)}",
    }
    epochs = Epochs(storage)
    first, _ = taken(epochs, 2, **settings)
    source = RestoreSource(first)
    origin = Origin(
        path=source.path, kind=CheckpointKind.CHECKPOINT, checkpoint_id=1, query_id=QUERY_ID,
        epoch=0, operators=("count",), sha256=source.sha256, claim_mode=ClaimMode.CLAIM,
    )  # fmt: skip
    assert discard(origin)
    assert looking().ids() == [2]
    assert not discard(origin)
    assert len(taken(epochs, 1, **settings)) == 1, "its own query continues"
