"""The store of completed checkpoints: the one that settings ask for, or that was written down."""

from __future__ import annotations

from pyspark_ckpt.checkpoint.checkpoint_store import CompletedCheckpointStore
from pyspark_ckpt.checkpoint.completed_checkpoints import CompletedCheckpoints
from pyspark_ckpt.checkpoint.pointed_checkpoints import PointedCheckpoints
from pyspark_ckpt.checkpoint.store_note import (
    IN_THE_DIRECTORY,
    StoreNote,
    read_store_note,
    store_of,
    write_store_note,
)
from pyspark_ckpt.checkpoint.zookeeper_pointers import ZooKeeperPointers
from pyspark_ckpt.errors import ConfigurationError, CorruptFileError
from pyspark_ckpt.settings import ZOOKEEPER, Settings
from pyspark_ckpt.storage.base import CoordinatorStorage


def open_store(
    storage: CoordinatorStorage, settings: Settings, query_id: str
) -> CompletedCheckpointStore:
    """Open the store of a query's checkpoints; nothing is claimed yet.

    Raises
    ------
    ConfigurationError
        If ZooKeeper is asked for without its servers or its library.
    OSError
        If ZooKeeper cannot be reached.
    """
    if settings.high_availability_type == ZOOKEEPER and settings.zookeeper_quorum is None:
        raise ConfigurationError(
            "spark.ckpt.high-availability.type is zookeeper: set "
            "spark.ckpt.high-availability.zookeeper.quorum to its servers, host:port with commas "
            "between"
        )
    return _open(storage, store_of(settings, query_id))


def claim_store(
    storage: CoordinatorStorage, settings: Settings, query_id: str
) -> CompletedCheckpointStore:
    """Open the store of a query's checkpoints, become its one driver, and write down which it is.

    Raises
    ------
    ConfigurationError
        If ZooKeeper is asked for without its servers or its library.
    OSError
        If it cannot be reached or written.
    """
    store = open_store(storage, settings, query_id)
    store.claim()
    write_store_note(storage, store_of(settings, query_id))
    return store


def find_store(storage: CoordinatorStorage) -> CompletedCheckpointStore:
    """Open the store of the checkpoints in a directory, to look at them; close it afterwards.

    Raises
    ------
    ConfigurationError
        If they are kept through ZooKeeper, and its library is not installed.
    CorruptFileError
        If it cannot be told which store it is.
    OSError
        If it cannot be reached.
    """
    return _open(storage, read_store_note(storage))


def _open(storage: CoordinatorStorage, note: StoreNote) -> CompletedCheckpointStore:
    if note == IN_THE_DIRECTORY:
        return CompletedCheckpoints(storage)
    if note.type != ZOOKEEPER or note.quorum is None or note.node is None:
        raise CorruptFileError(
            f"{storage.url}: its completed checkpoints are kept in {note}, which this library does "
            "not know: upgrade pyspark_ckpt"
        )
    return PointedCheckpoints(storage, ZooKeeperPointers(note.quorum, note.node))
