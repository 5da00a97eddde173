"""The store of completed checkpoints: the one that settings ask for, or that was written down.

Which store keeps a query's completed checkpoints, written down beside them.

Whoever looks at the checkpoints of a query without its settings, such as ``pyspark-ckpt list``,
finds the store by this. Without a note it is the directory itself. A query that changes its store
leaves one more note; the highest number counts, and is found by name.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from pyspark_ckpt.errors import ConfigurationError, CorruptFileError
from pyspark_ckpt.formats.layout import store_note_path
from pyspark_ckpt.settings import ZOOKEEPER, Settings
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from pyspark_ckpt.stores.pointed import PointedCheckpoints
from pyspark_ckpt.stores.zookeeper import ZooKeeperPointers

_MAX_BYTES = 64 << 10


class StoreNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A store: its type, and for ZooKeeper the servers and the query's node."""

    type: str = "none"
    quorum: str | None = None
    node: str | None = None


IN_THE_DIRECTORY = StoreNote()


def store_of(settings: Settings, query_id: str) -> StoreNote:
    """Return the store that the settings ask for."""
    if settings.high_availability_type != ZOOKEEPER:
        return IN_THE_DIRECTORY
    return StoreNote(
        type=ZOOKEEPER,
        quorum=settings.zookeeper_quorum,
        node=f"{settings.zookeeper_root.rstrip('/')}/{query_id}",
    )


def read_store_note(storage: CoordinatorStorage) -> StoreNote:
    """Return the store of the checkpoints in a directory.

    Raises
    ------
    CorruptFileError
        If its note cannot be read.
    """
    return _read(storage, _highest(storage))


def write_store_note(storage: CoordinatorStorage, note: StoreNote) -> None:
    """Write the store down, unless that has been done; durable on return."""
    while True:
        number = _highest(storage)
        with suppress(CorruptFileError):
            if _read(storage, number) == note:
                return
        with suppress(FileExistsError):  # of another driver, at the same time
            storage.write(store_note_path(number + 1), [msgspec.json.encode(note)])


def _highest(storage: CoordinatorStorage) -> int:
    number = 0
    while storage.exists(store_note_path(number + 1)):
        number += 1
    return number


def _read(storage: CoordinatorStorage, number: int) -> StoreNote:
    if number == 0:
        return IN_THE_DIRECTORY
    path = store_note_path(number)
    try:
        return msgspec.json.decode(storage.read(path)[:_MAX_BYTES], type=StoreNote)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise CorruptFileError(
            f"{storage.url_of(path)}, which says where the completed checkpoints are kept, was "
            f"changed ({exc}): restore from a chk-N by its path"
        ) from exc


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
