"""A pin keeps a snapshot from being deleted; one that is over, or was given up, does not."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.layout import METADATA_NAME
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot import data_source as parts_module
from pyspark_ckpt.snapshot import pin as pin_module
from pyspark_ckpt.snapshot.data_source import Part, PartPin, parts_of
from pyspark_ckpt.snapshot.pin import LEASE_MS, ReaderPin
from pyspark_ckpt.storage.local import LocalStorage
from pyspark_ckpt.stores import reader_pins
from pyspark_ckpt.stores.reader_pins import GRACE_MS, PinFile, barrier_name, encode_pin, pin_name
from pyspark_ckpt.stores.reader_pins import pinned_files as pinned
from tests.unit.snapshot.made_savepoint import UID, MadeSavepoint
from tests.unit.snapshot.test_typed_tables import NAMES, NUMBER

NOW_MS = 1_700_000_000_000


@pytest.fixture
def savepoint(tmp_path: Path) -> Iterator[Path]:
    made = MadeSavepoint(tmp_path, NAMES, [("a",), ("b",)])
    made.epoch(
        lambda handle: {"n": handle.getValueState("n", NUMBER)},
        lambda states, _key: states["n"].update((1,)),
    )
    yield Path(made.save("savepoint", canonical=True))
    made.close()


def pins(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("_reader-*")]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_savepoint_that_is_read_is_not_deleted(savepoint: Path) -> None:
    with ckpt.location(str(savepoint)).state() as snapshot, ckpt.location(str(savepoint)).state():
        with pytest.raises(ckpt.errors.CheckpointError, match="is being read by 2 readers"):
            ckpt.location(str(savepoint)).dispose()
        assert len(snapshot.state("op", "n").to_pandas()) == 2
    assert pins(savepoint) == []
    assert ckpt.location(str(savepoint)).dispose().left == ()
    assert not savepoint.exists()


def test_a_snapshot_that_is_dropped_is_released(savepoint: Path) -> None:
    snapshot = ckpt.location(str(savepoint)).state()
    assert len(pins(savepoint)) == 1
    del snapshot
    gc.collect()
    assert pins(savepoint) == []


def test_the_pin_of_a_dead_reader_is_over_by_itself(savepoint: Path) -> None:
    storage = LocalStorage(savepoint)
    storage.write(pin_name(NOW_MS), [encode_pin("dead", ["shared/x"])])
    assert pinned(storage, NOW_MS + GRACE_MS) == {"shared/x"}
    assert pinned(storage, NOW_MS + GRACE_MS + 1) == set()
    assert ckpt.location(str(savepoint)).dispose().left == ()


def test_a_disposal_that_was_interrupted_closes_the_savepoint_for_a_while(savepoint: Path) -> None:
    storage = LocalStorage(savepoint)
    barrier = barrier_name(pin_module.now_ms() + 1000)
    storage.write(barrier, [encode_pin("a disposal")])
    with pytest.raises(ckpt.errors.CheckpointNotFoundError, match="is being deleted"):
        ckpt.location(str(savepoint)).state()
    assert pins(savepoint) == []
    storage.delete([barrier])
    ckpt.location(str(savepoint)).state().close()


def test_a_pin_is_renewed_until_it_is_released(savepoint: Path) -> None:
    pin = ReaderPin(RestoreSource(str(savepoint)), lease_ms=30)
    seen = {*pins(savepoint)}
    until(lambda: bool({*pins(savepoint)} - seen))
    pin.close()
    assert pins(savepoint) == []


def test_a_reader_that_slept_pins_again_what_is_there(
    savepoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = ReaderPin(RestoreSource(str(savepoint)))
    (before,) = pins(savepoint)
    for sleeps in (1, 2):
        monkeypatch.setattr(pin_module, "now_ms", lambda n=sleeps: NOW_MS * 2 + n * 2 * LEASE_MS)
        if sleeps == 2:
            (savepoint / METADATA_NAME).unlink()
            with pytest.raises(ckpt.errors.CheckpointNotFoundError):
                pin.check()
        else:
            pin.check()
            assert pins(savepoint) != [before]
    assert pins(savepoint) == []


def test_a_directory_that_cannot_be_written_is_read_without_a_pin(
    savepoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "read only")

    monkeypatch.setattr(LocalStorage, "write", refuse)
    with ckpt.location(str(savepoint)).state() as snapshot:
        assert len(snapshot.state("op", "n").to_pandas()) == 2
    assert "may be deleted in the meantime" in caplog.text


def test_a_pin_that_is_replaced_while_pins_are_read_counts(savepoint: Path) -> None:
    """A renewal between the listing and the reading: the list is read again."""

    class Renewing(LocalStorage):
        def chunks(self, relative: str) -> Iterator[bytes]:
            if relative == first and self.exists(first):
                self.write(pin_name(NOW_MS + 1), [encode_pin("reader", ["shared/x"])])
                self.delete([first])
            return super().chunks(relative)

    storage = Renewing(savepoint)
    first = pin_name(NOW_MS)
    storage.write(first, [encode_pin("reader", ["shared/x"])])
    assert pinned(storage, NOW_MS) == {"shared/x"}


def test_a_pin_that_is_listed_and_never_found_lets_nothing_be_deleted(
    savepoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing may be old, or the name a link to nothing: the search must end."""
    monkeypatch.setattr(reader_pins, "_PAUSE_S", 0.0)
    (savepoint / pin_name(NOW_MS)).symlink_to("nothing")
    with pytest.raises(ckpt.errors.CorruptFileError, match="cannot be found"):
        pinned(LocalStorage(savepoint), NOW_MS)


def test_a_pin_that_was_changed_lets_nothing_be_deleted(savepoint: Path) -> None:
    storage = LocalStorage(savepoint)
    storage.write(pin_name(NOW_MS), [b"?"])
    with pytest.raises(ckpt.errors.CorruptFileError, match="delete it if nobody reads"):
        pinned(storage, NOW_MS)
    assert pinned(storage, NOW_MS + 2 * GRACE_MS) == set()
    storage.write(pin_name(NOW_MS * 2), [encode_pin("stranger", ["../x"])])
    with pytest.raises(ckpt.errors.UnsafePathError):
        pinned(storage, NOW_MS + 2 * GRACE_MS)


def test_names_say_until_when() -> None:
    assert PinFile("x", is_pin=True, expires_ms=5).counts(5 + GRACE_MS)
    assert not PinFile("x", is_pin=True, expires_ms=5).counts(6 + GRACE_MS)


def aged_parts(source: RestoreSource, subtasks: list[int | None]) -> list[Part]:
    """Return parts whose pins were written so long ago that tasks renew them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts_module, "now_ms", lambda: now_ms() - LEASE_MS // 2)
        return parts_of(source, UID, subtasks)


def test_tasks_that_end_beside_each_other_leave_no_pin(savepoint: Path) -> None:
    """Each task renews the pins of the others while they remove their own."""
    source = RestoreSource(str(savepoint))
    for _ in range(60):
        parts = aged_parts(source, [0, 1, 0, 1])

        def task(part: Part) -> bool:
            pin = PartPin(source, part)
            held = pin.hold()
            pin.check()
            pin.close()
            return held

        with ThreadPoolExecutor(len(parts)) as threads:
            assert all(threads.map(task, parts))
        assert pins(savepoint) == []


def test_a_listing_that_fails_ends_no_renewal(
    savepoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pins of a job that reads for long would be over, and its files deleted."""
    source = RestoreSource(str(savepoint))
    (part,) = aged_parts(source, [None])
    pin = PartPin(source, part)
    with monkeypatch.context() as patched:
        patched.setattr(parts_module, "LEASE_MS", 600)
        assert pin.hold()

        def fails(self: LocalStorage, directory: str | None = None) -> list[str]:
            raise OSError("slow down")

        with monkeypatch.context() as away:
            away.setattr(LocalStorage, "list", fails)
            until(lambda: "could not be looked for: slow down" in caplog.text)
        caplog.clear()
        with monkeypatch.context() as away:  # it looks again
            away.setattr(LocalStorage, "list", fails)
            until(lambda: "could not be looked for: slow down" in caplog.text)
        patched.setattr(LocalStorage, "list", fails)
        pin.close()
    assert "stays until it is over: slow down" in caplog.text


def test_a_pin_that_is_taken_back_has_no_copy(
    savepoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RestoreSource(str(savepoint))
    parts = aged_parts(source, [0, 1, 0])
    ended, renewing, other = (PartPin(source, part) for part in parts)
    steps = iter([ended.close, other.hold])
    read, exists = LocalStorage.read, LocalStorage.exists

    def ends_while_it_is_read(self: LocalStorage, path: str) -> bytes:
        content = read(self, path)
        if parts[0].token in path:
            next(steps, lambda: None)()
            monkeypatch.setattr(LocalStorage, "read", read)
        return content

    def renewed_before_it_is_missed(self: LocalStorage, path: str) -> bool:
        if parts[0].token in path:
            monkeypatch.setattr(LocalStorage, "exists", exists)
            next(steps, lambda: None)()
        return exists(self, path)

    monkeypatch.setattr(LocalStorage, "read", ends_while_it_is_read)
    monkeypatch.setattr(LocalStorage, "exists", renewed_before_it_is_missed)
    assert renewing.hold()
    assert next(steps, None) is None
    for pin in (renewing, other):
        pin.check()
        pin.close()
    assert pins(savepoint) == []
