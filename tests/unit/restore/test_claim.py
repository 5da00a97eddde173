"""A claimed original is deleted after the query's own first checkpoint, and nothing else is."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.formats.origin import RestoredFrom, give_up_claim, read_origin, write_origin
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.restore.claim import ClaimedSource, discard
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.settings import ClaimMode, HighAvailability
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from pyspark_ckpt.stores.open import find_store
from tests.faults.epochs import Epochs

NATIVE = SavepointFormat.NATIVE
OWN = CompletedCheckpoint(1, "chk-1", 1, 1, 1, 1)


def origin_of(path: Path) -> Origin:
    source = RestoreSource(str(path))
    return Origin(
        path=source.path,
        kind=source.metadata.kind,
        checkpoint_id=None,
        query_id="q",
        epoch=6,
        operators=("count",),
        sha256=source.sha256,
        claim_mode=ClaimMode.CLAIM,
    )


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.fixture
def savepoint(storage: LocalStorage, snapshot: CheckpointMetadata, tmp_path: Path) -> Path:
    return Path(write_savepoint(snapshot, storage, str(tmp_path / "savepoints"), NATIVE).path)


@pytest.fixture
def checkpoints(storage: LocalStorage, snapshot: CheckpointMetadata) -> LocalStorage:
    store = CompletedCheckpoints(storage)
    for number in (3, 4):
        store.reserve(number)
        store.add(number, snapshot)
    return storage


def test_a_savepoint_goes_with_all_its_directories(savepoint: Path) -> None:
    assert discard(origin_of(savepoint))
    assert list(savepoint.parent.iterdir()) == []


def test_files_that_are_not_the_savepoints_own_stay(savepoint: Path) -> None:
    (savepoint / "notes.txt").write_text("mine")
    (savepoint / "shared" / "other").write_text("mine")
    assert discard(origin_of(savepoint))
    assert tree(savepoint) == {"notes.txt", "shared", "shared/other"}


def test_an_interrupted_deletion_is_continued(savepoint: Path) -> None:
    origin = origin_of(savepoint)
    (savepoint / "taskowned" / "segment").unlink()
    assert discard(origin)
    assert not savepoint.exists()
    assert not discard(origin)


def test_another_savepoint_at_the_path_stays(
    savepoint: Path, storage: LocalStorage, snapshot: CheckpointMetadata
) -> None:
    origin = origin_of(savepoint)
    other = msgspec.structs.replace(snapshot, epoch=7)
    made = Path(write_savepoint(other, storage, str(savepoint.parent), NATIVE).path)
    assert discard(origin)
    made.rename(savepoint)
    before = tree(savepoint)
    assert not discard(origin)
    assert tree(savepoint) == before


@pytest.mark.parametrize("number", [3, 4])
def test_of_a_checkpoint_nothing_goes_that_others_may_share(
    checkpoints: LocalStorage, number: int
) -> None:
    """Scenario 34: CLAIM of a checkpoint."""
    before = tree(checkpoints.root)
    assert discard(origin_of(checkpoints.root / f"chk-{number}"))
    assert tree(checkpoints.root) == before - {f"chk-{number}/_metadata"}
    store = CompletedCheckpoints(checkpoints)
    assert (store.ids(), store.last_id()) == ([7 - number], 4)


@pytest.mark.usefixtures("kubernetes")
def test_a_checkpoint_goes_from_its_store_whatever_link_names_it(tmp_path: Path) -> None:
    """Users keep a link to the newest checkpoint; without its pointer nobody takes it for one."""
    epochs = Epochs(LocalStorage(tmp_path / "location" / "pyspark_ckpt"), tmp_path / "location")
    epochs.commit()
    runner = epochs.runner(high_availability_type=HighAvailability.KUBERNETES)
    runner.take(epochs.committed_epoch, periodic=False)
    runner.close()
    latest = tmp_path / "latest"
    latest.symlink_to(tmp_path / "location" / "pyspark_ckpt" / "chk-1")
    assert discard(origin_of(latest))
    assert not (latest / "_metadata").exists()
    with closing(find_store(epochs.storage)) as store:
        assert store.ids() == []


def test_it_goes_at_the_first_checkpoint_of_the_query(savepoint: Path) -> None:
    listener = ClaimedSource(origin_of(savepoint))
    assert (savepoint / "_metadata").exists()
    listener.onCheckpointCompleted(OWN)
    assert not savepoint.exists()
    listener.onCheckpointCompleted(OWN)


def test_a_failed_deletion_is_tried_again(savepoint: Path) -> None:
    listener = ClaimedSource(origin_of(savepoint))
    whole = (savepoint / "_metadata").read_bytes()
    (savepoint / "_metadata").write_bytes(whole[:-1])
    listener.onCheckpointCompleted(OWN)
    assert "shared" in tree(savepoint)
    (savepoint / "_metadata").write_bytes(whole)
    listener.onCheckpointCompleted(OWN)
    assert not savepoint.exists()


def test_a_claim_that_was_given_up_stays_so(storage: LocalStorage, savepoint: Path) -> None:
    write_origin(storage, origin_of(savepoint))
    for _ in range(2):
        give_up_claim(storage)
        origin = read_origin(storage)
        assert origin is not None
        assert origin.claim_mode is ClaimMode.NO_CLAIM


def test_the_origin_is_read_as_written(storage: LocalStorage, savepoint: Path) -> None:
    assert read_origin(storage) is None
    origin = msgspec.structs.replace(origin_of(savepoint), skipped=("chk-9 is cut",))
    write_origin(storage, origin)
    assert read_origin(storage) == origin
    whole = storage.path("origin.json").read_bytes()
    assert b'"claim_mode":"CLAIM"' in whole
    assert RestoredFrom.of(origin) == RestoredFrom(
        str(savepoint), 6, "q", "CLAIM", needs_original=False, skipped=("chk-9 is cut",)
    )
    for content, named in (
        (b"{}", r"origin\.json"),
        (whole.replace(b'"CLAIM"', b'"BORROW"'), r"origin\.json.*'BORROW'.*claim_mode"),
    ):
        storage.path("origin.json").write_bytes(content)
        with pytest.raises(CorruptFileError, match=named):
            read_origin(storage)
