"""A query is restored from the given checkpoint, or with the setting from the one before it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError, CorruptFileError
from pyspark_ckpt.formats.metadata import CheckpointMetadata, SourceLog
from pyspark_ckpt.history.verification import verify
from pyspark_ckpt.restore.plan import RestoreRequest, plan_of
from pyspark_ckpt.restore.source import RestoreSource, open_source
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints

FALLBACK = "spark.ckpt.execution.state-recovery.fallback=true"


@pytest.fixture
def checkpoints(storage: LocalStorage, snapshot: CheckpointMetadata) -> LocalStorage:
    """Checkpoints 2, 5 and 10, each with its own source log."""
    store = CompletedCheckpoints(storage)
    for number in (2, 5, 10):
        reference = storage.write(f"shared/log-{number}", [b"log %d" % number])
        logs = (SourceLog(0, "0", reference),)
        store.reserve(number)
        store.add(number, msgspec.structs.replace(snapshot, epoch=number, source_logs=logs))
    return storage


def path_of(checkpoints: LocalStorage, number: int) -> str:
    return str(checkpoints.root / f"chk-{number}")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["chk-10/_metadata", "shared/log-10"])
def test_a_corrupt_one_is_named_and_the_one_before_it_offered(
    checkpoints: LocalStorage, name: str
) -> None:
    """Scenario 10: by default a start fails."""
    path = checkpoints.root / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError) as caught:
        open_source(path_of(checkpoints, 10), falls_back=False)
    assert str(path) in str(caught.value)
    assert path_of(checkpoints, 5) in str(caught.value)
    assert FALLBACK in str(caught.value)


@pytest.mark.parametrize("name", ["chk-10/_metadata", "shared/log-10"])
def test_fallback_goes_to_the_one_before_with_its_own_offsets(
    checkpoints: LocalStorage, name: str
) -> None:
    """Scenario 10: on request the one before."""
    flip(checkpoints.root / name)
    source = open_source(path_of(checkpoints, 10), falls_back=True)
    assert (source.path, source.metadata.epoch) == (path_of(checkpoints, 5), 5)
    assert source.metadata.source_logs[0].file.path == "shared/log-5"
    (reason,) = source.skipped
    assert name in reason


def test_fallback_continues_until_one_is_whole(checkpoints: LocalStorage) -> None:
    """Scenario 10: several are corrupt."""
    for name in ("chk-10/_metadata", "shared/log-5"):
        flip(checkpoints.root / name)
    source = open_source(path_of(checkpoints, 10), falls_back=True)
    assert source.metadata.epoch == 2
    assert ["chk-10" in source.skipped[0], "log-5" in source.skipped[1]] == [True, True]
    flip(checkpoints.root / "shared" / "log-2")
    with pytest.raises(CorruptFileError) as caught:
        open_source(path_of(checkpoints, 10), falls_back=True)
    for name in ("chk-10", "log-5", "log-2", "savepoint"):
        assert name in str(caught.value)


def test_a_whole_one_is_taken_and_nothing_skipped(checkpoints: LocalStorage) -> None:
    source = open_source(path_of(checkpoints, 10), falls_back=True)
    assert (source.metadata.epoch, source.skipped) == (10, ())


def test_what_is_not_there_is_no_reason_to_fall_back(checkpoints: LocalStorage) -> None:
    for number in (7, 11):
        with pytest.raises(CheckpointNotFoundError):
            open_source(path_of(checkpoints, number), falls_back=True)


def test_files_are_checked_by_size_at_once_and_by_digest_on_request(
    checkpoints: LocalStorage,
) -> None:
    flip(checkpoints.root / "shared" / "base")
    source = RestoreSource(path_of(checkpoints, 10))
    with pytest.raises(CorruptFileError, match="shared/base"):
        source.verify()


def test_missing_files_matter_unless_only_the_description_is_wanted(
    storage: LocalStorage, snapshot: CheckpointMetadata
) -> None:
    logs = (SourceLog(0, "0", FileReference("shared/gone", 1, "0" * 64)),)
    store = CompletedCheckpoints(storage)
    store.reserve(1)
    store.add(1, msgspec.structs.replace(snapshot, source_logs=logs))
    with pytest.raises(CorruptFileError, match="shared/gone"):
        RestoreSource(path_of(storage, 1))
    assert RestoreSource(path_of(storage, 1), check_files=False).metadata.epoch == snapshot.epoch


def opened(path: str) -> RestoreSource:
    return open_source(path, falls_back=True)


@pytest.mark.parametrize("reader", [RestoreSource, verify, opened])
def test_one_that_was_subsumed_meanwhile_is_not_called_corrupt(
    checkpoints: LocalStorage, monkeypatch: pytest.MonkeyPatch, reader: Callable[[str], object]
) -> None:
    """Retention of the running query removes chk-2 and its file, once chk-2 has been opened."""
    size_bytes = LocalStorage.size_bytes

    def removed_meanwhile(storage: LocalStorage, relative: str) -> int | None:
        if relative == "shared/base":
            CompletedCheckpoints(checkpoints).remove(2)
            (checkpoints.root / "shared" / "log-2").unlink(missing_ok=True)
        return size_bytes(storage, relative)

    monkeypatch.setattr(LocalStorage, "size_bytes", removed_meanwhile)
    with pytest.raises(CheckpointNotFoundError) as caught:
        reader(path_of(checkpoints, 2))
    for word in ("subsumed", path_of(checkpoints, 10), "num-retained"):
        assert word in str(caught.value)


def test_a_file_that_is_missing_while_the_checkpoint_stands_is_damage(
    checkpoints: LocalStorage,
) -> None:
    (checkpoints.root / "shared" / "log-2").unlink()
    for reader in (RestoreSource, verify):
        with pytest.raises(CorruptFileError, match="log-2"):
            reader(path_of(checkpoints, 2))


def test_metadata_is_read_once(checkpoints: LocalStorage, opened: list[str]) -> None:
    """Its content, its digest and the plan come from the same bytes."""
    path = Path(path_of(checkpoints, 10))
    source = RestoreSource(str(path))
    plan_of(source, StatefulOperators(()), RestoreRequest(str(path), allow_non_restored_state=True))
    assert opened.count(str(path / "_metadata")) == 1
    assert source.sha256 == hashlib.sha256((path / "_metadata").read_bytes()).hexdigest()
