"""The promises of every store of completed checkpoints, and how it fences a second driver."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError, CorruptFileError, FencedError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.operator.run.subtask import checkpoint_to_notify
from pyspark_ckpt.settings import HighAvailability, Settings
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from pyspark_ckpt.stores.open import open_store
from pyspark_ckpt.stores.pointed import PointedCheckpoints
from tests.unit.memory_pointers import MemoryPointers, SharedPointers

NewDriver = Callable[[], CompletedCheckpointStore]


@pytest.fixture(params=["files", "files in s3", "pointers in memory", "zookeeper", "kubernetes"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, storage: Storage, request: pytest.FixtureRequest) -> Storage:
    """The checkpoints directory."""
    if kind == "files in s3":
        return open_storage(request.getfixturevalue("s3_url"))
    return storage


@pytest.fixture
def new_driver(kind: str, place: Storage, request: pytest.FixtureRequest) -> Iterator[NewDriver]:
    """Return a function that opens the store as another driver would."""
    shared = SharedPointers()
    query_id = secrets.token_hex(8)
    opened: list[CompletedCheckpointStore] = []

    def new_driver() -> CompletedCheckpointStore:
        if kind == "zookeeper":
            address = request.getfixturevalue("zookeeper_address")
            settings = Settings(
                high_availability_type=HighAvailability.ZOOKEEPER, zookeeper_quorum=address
            )
            opened.append(open_store(place, settings, query_id))
        elif kind == "kubernetes":
            request.getfixturevalue("kubernetes")
            settings = Settings(high_availability_type=HighAvailability.KUBERNETES)
            opened.append(open_store(place, settings, query_id))
        elif kind == "pointers in memory":
            opened.append(PointedCheckpoints(place, MemoryPointers(shared)))
        else:
            opened.append(open_store(place, Settings(), query_id))
        return opened[-1]

    yield new_driver
    for store in opened:
        store.close()


@pytest.fixture
def store(new_driver: NewDriver) -> CompletedCheckpointStore:
    """Return the store of the only driver."""
    store = new_driver()
    store.claim()
    return store


def test_a_new_query_has_none_and_starts_with_one(store: CompletedCheckpointStore) -> None:
    assert store.ids() == store.used_ids() == []
    assert store.last_id() == 0
    assert not store.is_complete(1)
    store.remove(1)
    store.remove_all()


def test_ids_are_in_the_order_of_numbers(
    store: CompletedCheckpointStore, snapshot: CheckpointMetadata
) -> None:
    for number in (2, 9, 10, 100):
        store.add(number, snapshot)
    assert store.ids() == store.used_ids() == [2, 9, 10, 100]
    assert store.last_id() == 100


def test_what_was_added_is_read_back_by_every_driver(
    store: CompletedCheckpointStore, new_driver: NewDriver, snapshot: CheckpointMetadata
) -> None:
    numbered = msgspec.structs.replace(snapshot, checkpoint_id=7)
    store.reserve(7)
    store.check_reserved(7)
    store.add(7, numbered)
    for reader in (store, new_driver()):
        assert (reader.ids(), reader.last_id()) == ([7], 7)
        assert reader.read(7) == numbered
        assert open_storage(reader.path(7)).exists("_metadata")


def test_an_id_can_be_reserved_once_and_is_no_checkpoint_yet(
    store: CompletedCheckpointStore, new_driver: NewDriver, snapshot: CheckpointMetadata
) -> None:
    store.reserve(4)
    assert (store.ids(), store.used_ids(), store.last_id()) == ([], [4], 4)
    assert not store.is_complete(4)
    with pytest.raises(FileExistsError):
        store.reserve(4)
    with pytest.raises(CheckpointNotFoundError, match="chk-4"):
        store.read(4)
    assert new_driver().last_id() == 4
    store.add(4, snapshot)
    assert store.is_complete(4)


def test_tasks_notice_what_the_store_has_and_nothing_else(
    store: CompletedCheckpointStore, snapshot: CheckpointMetadata, place: Storage
) -> None:
    class Curious:
        def notifyCheckpointComplete(self, checkpointId: int) -> None:
            """Never called here."""

    store.add(1, snapshot)
    store.reserve(2)
    assert checkpoint_to_notify(Curious(), place) == 1
    store.add(2, snapshot)
    assert checkpoint_to_notify(Curious(), place) == 2
    store.revoke(2)
    assert checkpoint_to_notify(Curious(), place) == 1
    store.remove(1)
    assert checkpoint_to_notify(Curious(), place) is None


def test_an_id_is_completed_once_only(
    store: CompletedCheckpointStore, snapshot: CheckpointMetadata
) -> None:
    store.add(1, snapshot)
    with pytest.raises(FileExistsError):
        store.add(1, msgspec.structs.replace(snapshot, epoch=99))
    assert store.read(1) == snapshot


def test_a_removed_checkpoint_is_gone_and_the_others_stay(
    store: CompletedCheckpointStore, snapshot: CheckpointMetadata, place: Storage
) -> None:
    for number in (1, 2, 3):
        store.add(number, snapshot)
    place.write("chk-2/more/files", [b"x"])
    for _ in range(2):
        store.remove(2)
        assert store.ids() == store.used_ids() == [1, 3]
        assert not place.exists("chk-2")
    assert store.read(1) == store.read(3) == snapshot
    assert store.last_id() == 3


def test_all_can_be_removed_but_the_highest_id(
    store: CompletedCheckpointStore, new_driver: NewDriver, snapshot: CheckpointMetadata
) -> None:
    for number in (1, 2):
        store.add(number, snapshot)
    store.reserve(3)
    store.remove_all()
    last_id = store.last_id()
    assert last_id >= 3
    store.remove_all()
    assert (store.ids(), store.last_id()) == ([], last_id)
    after = new_driver()
    after.claim()
    assert (after.ids(), after.last_id()) == ([], last_id)
    with pytest.raises(FileExistsError):
        after.reserve(last_id)
    after.add(last_id + 1, snapshot)
    assert after.ids() == [last_id + 1]


def test_a_damaged_checkpoint_is_listed_and_says_so_when_it_is_read(
    store: CompletedCheckpointStore, snapshot: CheckpointMetadata, place: Storage
) -> None:
    store.add(1, snapshot)
    content = place.read("chk-1/_metadata")
    place.delete(["chk-1/_metadata"])
    place.write("chk-1/_metadata", [content[:-1]])
    assert store.ids() == [1]
    with pytest.raises(CorruptFileError, match=place.url_of("chk-1/_metadata")):
        store.read(1)


def test_a_driver_is_fenced_by_the_next_one(
    store: CompletedCheckpointStore, new_driver: NewDriver, snapshot: CheckpointMetadata
) -> None:
    """Scenario 23: every store."""
    store.add(1, snapshot)
    store.reserve(2)
    store.check()
    reader = new_driver()
    assert reader.ids() == [1]
    store.check()  # who only looks fences nobody
    other = new_driver()
    other.claim()
    other.check()
    for attempt in (
        store.check,
        lambda: store.reserve(3),
        lambda: store.check_reserved(2),
    ):
        with pytest.raises(FencedError, match="another driver"):
            attempt()
    other.add(3, snapshot)
    assert other.ids() == [1, 3]
    assert other.last_id() == 3
    third = new_driver()
    third.claim()
    for driver in (store, other):
        with pytest.raises(FencedError):
            driver.check()


def test_what_was_given_up_by_another_driver_cannot_be_completed(
    store: CompletedCheckpointStore, new_driver: NewDriver, snapshot: CheckpointMetadata
) -> None:
    """Scenario 24: the first driver stops after its last check, and continues after a clean-up."""
    store.reserve(1)
    store.check_reserved(1)
    other = new_driver()
    other.claim()
    theirs = msgspec.structs.replace(snapshot, epoch=99)
    other.add(2, theirs)
    other.remove(1)
    with pytest.raises(FencedError):
        store.add(1, snapshot)
    for driver in (store, other, new_driver()):
        assert driver.ids() == [2]
        assert driver.read(2) == theirs
        assert not driver.is_complete(1)
    with pytest.raises(FencedError):
        store.reserve(1)
    other.remove(1)
    assert other.used_ids() == [2]


def test_what_another_driver_may_still_complete_is_known_until_it_cannot(
    store: CompletedCheckpointStore, new_driver: NewDriver, snapshot: CheckpointMetadata
) -> None:
    """Scenario 24: the first driver has passed its last check, and nothing of it was removed."""
    store.add(1, snapshot)
    store.reserve(2)
    assert store.unfinished_by_others() == []  # it is its own
    store.check_reserved(2)
    other = new_driver()
    other.claim()
    unfinished = other.unfinished_by_others()
    other.reserve(3)
    assert other.unfinished_by_others() == unfinished
    if unfinished:
        assert unfinished == [2]
        store.add(2, snapshot)
        assert other.ids() == [1, 2]
    else:
        with pytest.raises(FencedError):
            store.add(2, snapshot)
        assert other.ids() == [1]
    assert other.unfinished_by_others() == []


@pytest.mark.parametrize("kind", ["files", "pointers in memory"])
def test_what_hung_while_another_driver_had_the_store_is_completed_only_if_nobody_removed_it(
    kind: str, place: Storage, snapshot: CheckpointMetadata
) -> None:
    """Scenario 24: the write of ``_metadata`` hangs, and its driver takes the store back."""
    shared = SharedPointers()
    others: list[CompletedCheckpointStore] = []

    def another() -> CompletedCheckpointStore:
        if kind == "files":
            return CompletedCheckpoints(place)
        return PointedCheckpoints(place, MemoryPointers(shared))

    class Hanging(LocalStorage):
        def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
            if relative == "chk-2/_metadata":
                others.append(another())
                others[0].claim()
                others[0].add(3, snapshot)
                others[0].remove(2)
                store.claim()
            return super().write(relative, chunks)

    hanging = Hanging(Path(place.url))
    store: CompletedCheckpointStore = (
        CompletedCheckpoints(hanging)
        if kind == "files"
        else PointedCheckpoints(hanging, MemoryPointers(shared))
    )
    store.claim()
    store.add(1, snapshot)
    store.reserve(2)
    with pytest.raises(FencedError, match="another driver"):
        store.add(2, snapshot)
    assert store.ids() == others[0].ids() == [1, 3]
    with pytest.raises(FencedError, match="another driver"):
        store.check_reserved(2)
    store.add(4, snapshot)
    assert store.ids() == [1, 3, 4]


@pytest.mark.parametrize("kind", ["files", "pointers in memory"])
def test_what_hung_while_all_was_removed_is_not_completed(
    kind: str, place: Storage, snapshot: CheckpointMetadata
) -> None:
    """Scenario 6: the write of ``_metadata`` hangs past the end of its query."""

    class Hanging(LocalStorage):
        def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
            if relative == "chk-2/_metadata":
                store.remove_all()
            return super().write(relative, chunks)

    hanging = Hanging(Path(place.url))
    store: CompletedCheckpointStore = (
        CompletedCheckpoints(hanging)
        if kind == "files"
        else PointedCheckpoints(hanging, MemoryPointers(SharedPointers()))
    )
    store.claim()
    store.add(1, snapshot)
    store.reserve(2)
    with pytest.raises(FencedError):
        store.add(2, snapshot)
    assert store.ids() == []
    assert store.last_id() >= 2


def test_a_fenced_driver_removes_nothing_that_is_not_complete_yet(
    kind: str,
    store: CompletedCheckpointStore,
    new_driver: NewDriver,
    snapshot: CheckpointMetadata,
    place: Storage,
) -> None:
    """Scenario 24: its successor has written ``_metadata``, and will put the pointer next."""
    other = new_driver()
    other.claim()
    other.reserve(1)
    path = "chk-1/_metadata"
    place.write(path, [encode_metadata(snapshot)])
    with pytest.raises(FencedError, match="another driver"):
        store.remove_all()
    if "files" not in kind:  # each change of a pointer is fenced
        with pytest.raises(FencedError, match="another driver"):
            store.remove(1)
    assert place.exists(path)
    assert 1 in other.used_ids()


def test_a_program_that_never_claimed_the_store_makes_a_checkpoint_incomplete(
    store: CompletedCheckpointStore, new_driver: NewDriver, snapshot: CheckpointMetadata
) -> None:
    """A fork does, for a checkpoint that it has claimed; its query may have no driver any more."""
    new_driver().revoke(1)
    store.add(1, snapshot)
    for _ in range(2):
        new_driver().revoke(1)
        assert store.ids() == []
    store.check()


def test_an_id_that_was_freed_is_not_given_out_again(
    store: CompletedCheckpointStore, new_driver: NewDriver, snapshot: CheckpointMetadata
) -> None:
    """Scenario 24: the first driver is about to reserve an id that was used and cleaned away."""
    other = new_driver()
    other.claim()
    for number in (1, 2):
        other.add(number, snapshot)
    other.remove(1)
    with pytest.raises(FencedError):
        store.reserve(1)
    with pytest.raises(FencedError):
        store.add(1, snapshot)
    assert other.ids() == [2]


def test_many_drivers_that_claim_at_once_leave_one(new_driver: NewDriver) -> None:
    """Scenario 23: many at once."""
    drivers = [new_driver() for _ in range(5)]
    for driver in (*drivers, drivers[2]):
        driver.claim()
    alive = []
    for number, driver in enumerate(drivers):
        try:
            driver.check()
        except FencedError:
            continue
        alive.append(number)
    assert alive == [2]


def test_the_store_continues_after_it_was_closed(
    store: CompletedCheckpointStore, snapshot: CheckpointMetadata
) -> None:
    store.add(1, snapshot)
    store.close()
    store.close()
    assert store.ids() == [1]
    store.check()


def test_a_zombie_s_metadata_without_its_author_is_no_checkpoint(
    storage: Storage, snapshot: CheckpointMetadata
) -> None:
    """Scenario 13: of a driver."""
    store = CompletedCheckpoints(storage)
    store.claim()
    store.add(1, snapshot)
    store.reserve(2)
    store.add(2, snapshot)
    storage.delete(["chk-1/_author"])
    assert store.ids() == [2]
    assert store.used_ids() == [1, 2]
