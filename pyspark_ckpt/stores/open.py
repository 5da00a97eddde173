"""Opens the store of a query's completed checkpoints, and holds a run's fence on it.

The note is next to the checkpoints. A program without settings, such as ``pyspark-ckpt list``,
finds the store by it. Without a note, the store is the directory itself. A query that changes its
store writes a new note. The note with the highest number counts; it is found by its name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import msgspec

from pyspark_ckpt.errors import CkptError, ConfigurationError, CorruptFileError
from pyspark_ckpt.formats.layout import STORES, store_note_path
from pyspark_ckpt.formats.location_files import read_small_file
from pyspark_ckpt.settings import KEYS, HighAvailability, Settings, values
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.storage.claims import Claims
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from pyspark_ckpt.stores.kubernetes import KubernetesPointers, namespace_of_driver
from pyspark_ckpt.stores.pointed import PointedCheckpoints, Pointers
from pyspark_ckpt.stores.zookeeper import ZooKeeperPointers


class StoreNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The note on a store: its type, its servers and the query's place in it.

    `type` is a text, so that a type of a newer version can be read and named in an error. `quorum`
    has the servers of ZooKeeper. `node` is a node there, or a namespace and a ConfigMap.
    """

    type: str = HighAvailability.NONE.value
    quorum: str | None = None
    node: str | None = None


IN_THE_DIRECTORY = StoreNote()


def store_of(settings: Settings, query_id: str) -> StoreNote:
    """Return the note on the store that the settings choose."""
    kind = HighAvailability(settings.high_availability_type)
    if kind == HighAvailability.NONE:
        return IN_THE_DIRECTORY
    if kind == HighAvailability.KUBERNETES:
        namespace = settings.kubernetes_namespace or namespace_of_driver()
        return StoreNote(type=kind.value, node=f"{namespace}/pyspark-ckpt-{query_id}")
    if settings.zookeeper_quorum is None:
        setting = KEYS["spark.ckpt.high-availability.zookeeper.quorum"]
        raise ConfigurationError(
            f"spark.ckpt.high-availability.type is {kind.value}: set {setting.key} to its servers, "
            f"{setting.allowed}"
        )
    node = f"{settings.zookeeper_root.rstrip('/')}/{query_id}"
    return StoreNote(type=kind.value, quorum=settings.zookeeper_quorum, node=node)


def read_store_note(storage: CoordinatorStorage) -> StoreNote:
    """Return the store of the checkpoints in a directory."""
    return _read(storage, _notes(storage).newest())


def _notes(storage: CoordinatorStorage) -> Claims:
    return Claims(storage, store_note_path)


def _read(storage: CoordinatorStorage, number: int) -> StoreNote:
    if number == 0:
        return IN_THE_DIRECTORY
    return read_small_file(
        storage,
        store_note_path(number),
        StoreNote,
        "the store of the completed checkpoints",
        "restore from a chk-N by its path",
    )


def open_store(
    storage: CoordinatorStorage, settings: Settings, query_id: str
) -> CompletedCheckpointStore:
    """Open the store of a query's checkpoints; nothing is claimed yet."""
    return _open(storage, store_of(settings, query_id))


def claim_store(
    storage: CoordinatorStorage, settings: Settings, query_id: str
) -> CompletedCheckpointStore:
    """Open the store of a query's checkpoints, and claim it for this driver."""
    store = open_store(storage, settings, query_id)
    claim_again(storage, store, store_of(settings, query_id))
    return store


def claim_again(
    storage: CoordinatorStorage, store: CompletedCheckpointStore, note: StoreNote
) -> None:
    """Claim the store of a query's checkpoints, and write its note.

    If the query had another store, its drivers there are fenced, and the complete checkpoints are
    taken over.
    """
    while not _is_claimed(storage, store, note):
        pass  # another driver wrote a note at the same time, and may have claimed its store


def _is_claimed(
    storage: CoordinatorStorage, store: CompletedCheckpointStore, note: StoreNote
) -> bool:
    """Claim a store; return whether it is still the query's."""
    notes, content = _notes(storage), msgspec.json.encode(note)
    number = notes.newest()
    try:
        before = _read(storage, number)
    except CorruptFileError:  # the store before is not known
        store.claim()
        return notes.take(number + 1, content)
    if before == note:
        store.claim()
        if number > 0:
            storage.make_durable(STORES)  # its writer may have been killed before
        return notes.newest() == number
    _take_over(storage, store, before, number)
    if not notes.take(number + 1, content):
        return False
    # Once more: a driver that has not seen the note may have claimed the store before.
    _take_over(storage, store, before, number)
    return True


def _take_over(
    storage: CoordinatorStorage, store: CompletedCheckpointStore, before: StoreNote, number: int
) -> None:
    """Fence the drivers of the store before, claim a store, and take over what is complete."""
    try:
        with closing(_open(storage, before)) as old:
            old.claim()
            ids, last_id = old.ids(), old.last_id()
    except (OSError, CkptError) as exc:
        if before == IN_THE_DIRECTORY:
            raise
        path = storage.url_of(store_note_path(number))
        raise ConfigurationError(
            f"{storage.url}: spark.ckpt.high-availability has changed, and which checkpoints are "
            f"complete is stored in {before}, which cannot be claimed: {exc}. Make it reachable, "
            f"with its library installed, for one start. If it is gone, stop all drivers of the "
            f"query and delete {path}: the query then continues from its checkpointLocation, and "
            "each chk-N can be restored by its path until it is replaced"
        ) from exc
    store.claim()
    store.adopt(ids, last_id)


def find_store(storage: CoordinatorStorage) -> CompletedCheckpointStore:
    """Open the store of the checkpoints in a directory, to read them; close it afterwards."""
    return _open(storage, read_store_note(storage))


def _open(storage: CoordinatorStorage, note: StoreNote) -> CompletedCheckpointStore:
    if note == IN_THE_DIRECTORY:
        return CompletedCheckpoints(storage)
    node, quorum = note.node or "", note.quorum or ""
    if not _is_known(note.type, node, quorum):
        raise CorruptFileError(
            f"{storage.url}: {note} stores which checkpoints are complete, and this version of "
            "pyspark_ckpt does not know such a store: upgrade pyspark_ckpt"
        )
    return PointedCheckpoints(storage, _pointers(HighAvailability(note.type), node, quorum))


def _is_known(kind: str, node: str, quorum: str) -> bool:
    """Return whether a note is one that this library writes; it may be a stranger's."""
    namespace, _, name = node.partition("/")
    try:
        if kind == HighAvailability.KUBERNETES:
            return bool(values.namespace(namespace) and values.config_map(name))
        return kind == HighAvailability.ZOOKEEPER and bool(
            values.quorum(quorum) and values.node(node)
        )
    except ValueError:
        return False


def _pointers(kind: HighAvailability, node: str, quorum: str) -> Pointers:
    if kind == HighAvailability.KUBERNETES:
        namespace, _, name = node.partition("/")
        return KubernetesPointers(namespace, name)
    return ZooKeeperPointers(quorum, node)


class Fence:
    """The claim of one run on a query's store, and whether the next run in this process has it.

    `store` is the store if the start of the run has claimed it; by default it is claimed now.
    """

    def __init__(
        self,
        storage: CoordinatorStorage,
        settings: Settings,
        query_id: str,
        store: CompletedCheckpointStore | None,
    ) -> None:
        self._storage = storage
        self._note = store_of(settings, query_id)
        self._guard = threading.Lock()
        self._gives_way = False
        self.store = store or claim_store(storage, settings, query_id)

    def give_way(self) -> None:
        """Leave the fence to the query's next run in this process, which claims it after this.

        A checkpoint of this run that is under way is then fenced, and :meth:`take_over` does
        nothing: unlike a driver of another process, the next run need not commit an epoch first.
        """
        with self._guard:
            self._gives_way = True

    def take_back(self, store: CompletedCheckpointStore) -> None:
        """Have the fence again that a next run claimed, with this store, and could not use.

        ``FencedError`` is raised if another driver has taken over the query.
        """
        with self._guard:
            store.check()
            claim_again(self._storage, self.store, self._note)
            self._gives_way = False

    def take_over(self, finally_do: Callable[[], None]) -> bool:
        """Take the fence from a driver that was started later, unless the next run has it.

        `finally_do` is called after an attempt, also if it is unknown whether the attempt worked.
        The result says whether this run has the fence.
        """
        with self._guard:
            if self._gives_way:
                return False
            try:
                claim_again(self._storage, self.store, self._note)
            finally:
                finally_do()
            return True
