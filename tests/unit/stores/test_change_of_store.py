"""A query gets another store: its checkpoints go with it, and its other drivers are fenced."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError, FencedError
from pyspark_ckpt.formats.layout import store_note_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.settings import HighAvailability, Settings
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores import zookeeper as zookeeper_pointers
from pyspark_ckpt.stores.open import StoreNote, claim_store, find_store
from tests.faults.epochs import QUERY_ID, Epochs, restored_epoch

NONE = HighAvailability.NONE
KUBERNETES = HighAvailability.KUBERNETES
BOTH_WAYS = pytest.mark.parametrize(
    ("before", "after"), [(NONE, KUBERNETES), (KUBERNETES, NONE)], ids=["away", "back"]
)

pytestmark = pytest.mark.usefixtures("kubernetes")


@pytest.fixture
def epochs(tmp_path: Path) -> Epochs:
    epochs = Epochs(LocalStorage(tmp_path / "location" / "pyspark_ckpt"), tmp_path / "location")
    epochs.commit()
    return epochs


def started(epochs: Epochs, kind: HighAvailability) -> CheckpointRunner:
    return epochs.runner(high_availability_type=kind)


def take(epochs: Epochs, runner: CheckpointRunner) -> int:
    """Take a checkpoint of a new epoch; return its id."""
    epochs.commit()
    taken = runner.take(epochs.committed_epoch, periodic=False)
    assert isinstance(taken, CompletedCheckpoint)
    return taken.checkpoint_id


def complete(storage: Storage) -> dict[int, int]:
    """Return the epochs of what readers take for complete; each is whole."""
    store = find_store(storage)
    found = {number: restored_epoch(store, storage, number) for number in store.ids()}
    store.close()
    return found


def put_note(storage: Storage, number: int, note: StoreNote) -> None:
    storage.write(store_note_path(number), [msgspec.json.encode(note)])


@BOTH_WAYS
def test_the_checkpoints_go_with_the_query(
    epochs: Epochs, before: HighAvailability, after: HighAvailability
) -> None:
    first = started(epochs, before)
    assert [take(epochs, first) for _ in range(3)] == [1, 2, 3]
    first.close()
    second = started(epochs, after)
    newest = second.newest()
    assert newest is not None
    assert newest.checkpoint_id == 3
    assert complete(epochs.storage) == {2: 2, 3: 3}
    assert take(epochs, second) == 4
    assert complete(epochs.storage) == {3: 3, 4: 4}, "as many as are to be retained"
    second.close()


@BOTH_WAYS
def test_a_driver_of_the_store_before_is_fenced_and_deletes_nothing(
    epochs: Epochs, before: HighAvailability, after: HighAvailability
) -> None:
    first = started(epochs, before)
    assert take(epochs, first) == 1
    second = started(epochs, after)
    assert take(epochs, second) == 2
    for _ in range(2):
        with pytest.raises(CheckpointAbortedError) as caught:
            take(epochs, first)
        assert caught.value.reason is AbortReason.FENCED
    assert complete(epochs.storage) == {1: 1, 2: 2}
    assert take(epochs, second) == 3
    first.close()
    second.close()


@BOTH_WAYS
def test_the_driver_before_takes_the_query_back(
    epochs: Epochs, before: HighAvailability, after: HighAvailability
) -> None:
    """It commits the epochs; the other one was started by mistake."""
    first = started(epochs, before)
    assert take(epochs, first) == 1
    second = started(epochs, after)
    assert take(epochs, second) == 2
    first.take_over()
    with pytest.raises(FencedError):
        second.lease.check()
    assert take(epochs, first) == 3
    assert complete(epochs.storage) == {1: 1, 2: 2, 3: 3}, "none that was acknowledged is lost"
    first.close()
    second.close()


@pytest.mark.soak
def test_there_and_back_again(epochs: Epochs) -> None:
    """What was removed since then is no longer complete, and ids only grow."""
    ids = []
    for kind in (KUBERNETES, NONE, KUBERNETES):
        runner = started(epochs, kind)
        ids += [take(epochs, runner) for _ in range(3)]
        assert sorted(complete(epochs.storage)) == ids[-2:]
        runner.close()
    assert ids == [*range(1, 10)]


def test_another_name_of_the_same_store(storage: Storage, snapshot: CheckpointMetadata) -> None:
    """As when a server is added to the list of servers."""
    settings = Settings(high_availability_type=KUBERNETES)
    first = claim_store(storage, settings, QUERY_ID)
    first.add(1, snapshot)
    node = f"jobs/pyspark-ckpt-{QUERY_ID}"
    put_note(storage, 2, StoreNote(type="kubernetes", node=node, quorum="other"))
    second = claim_store(storage, settings, QUERY_ID)
    second.check()
    assert second.ids() == [1]
    with pytest.raises(FencedError):
        first.check()


def test_a_store_that_is_gone_is_named_with_the_way_round(
    epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note is deleted, as the error says; the query continues with its own store."""
    monkeypatch.setattr(zookeeper_pointers, "_CONNECT_SECONDS", 0.2)
    first = started(epochs, KUBERNETES)
    assert take(epochs, first) == 1
    first.close()
    note = StoreNote(type="zookeeper", quorum="127.0.0.1:1", node="/gone/q")
    put_note(epochs.storage, 2, note)
    gone = Path(epochs.storage.url_of("stores/2").removeprefix("file://"))
    with pytest.raises(ConfigurationError, match="cannot be claimed") as caught:
        started(epochs, KUBERNETES)
    assert str(gone) in str(caught.value)
    gone.unlink()
    second = started(epochs, KUBERNETES)
    assert take(epochs, second) == 2
    second.close()
