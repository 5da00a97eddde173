"""The handles that epoch 0 starts from: each subtask finds its own, or an error is raised."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import (
    Handle,
    newest_initial_time_ms,
    read_initial_handle,
    subtasks_not_woken,
    write_initial_handles,
)
from pyspark_ckpt.formats.layout import SHARED, initial_file, initial_path, state_file
from pyspark_ckpt.storage.open import Storage, open_storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def handle(uid: str, subtask: int) -> Handle:
    return Handle(
        query_id="q",
        uid=uid,
        subtask=subtask,
        parallelism=2,
        max_parallelism=128,
        epoch=0,
        key_schema="{}",
    )


def test_a_subtask_finds_its_own(storage: Storage) -> None:
    handles = [handle("a", 0), handle("a", 1), handle("b", 1)]
    reference = write_initial_handles(storage, handles, 7)
    for each in handles:
        assert read_initial_handle(storage, reference, each.uid, each.subtask) == each
    assert read_initial_handle(storage, reference, "b", 0) is None


def test_a_changed_file_is_refused(storage: Storage) -> None:
    reference = write_initial_handles(storage, [handle("a", 0)], 7)
    storage.delete([reference.path])
    with pytest.raises(CorruptFileError):
        read_initial_handle(storage, reference, "a", 0)
    wrong = storage.write(reference.path, [msgspec.msgpack.encode(["no handle"])])
    with pytest.raises(CorruptFileError, match="start the query again"):
        read_initial_handle(storage, wrong, "a", 0)


@pytest.mark.parametrize("times", [(5, 7, 11), (5, 11, 7), (11, 7, 5), (7, 7, 7)])
def test_what_was_made_last_counts_whatever_the_clocks_said(
    storage: Storage, times: tuple[int, int, int]
) -> None:
    """So a sink that sees epoch 0 twice sees the same rows; other files say nothing."""
    assert newest_initial_time_ms(storage) is None
    assert subtasks_not_woken(storage, "a", 2, []) == []
    for subtask, time_ms in enumerate(times):
        write_initial_handles(storage, [handle("a", subtask)], time_ms)
        assert newest_initial_time_ms(storage) == time_ms
        assert subtasks_not_woken(storage, "a", 3, []) == [subtask]
    name = initial_path(99, 99).rpartition("/")[2]
    for other in ("initial-99-99-notes.txt", f".{name}.0a1b2c3d.tmp", f"{name}.0a1b2c3d.tmp"):
        storage.write(f"{SHARED}/{other}", [])
    assert newest_initial_time_ms(storage) == times[-1]
    assert subtasks_not_woken(storage, "a", 3, []) == [2]


def test_names() -> None:
    name = initial_path(3, 12).rpartition("/")[2]
    assert initial_file(name) == (3, 12, True)
    assert initial_file(f".{name}.0a1b2c3d.tmp") == (3, 12, False)
    assert state_file(name) is None
    assert initial_file("initial-3-12-0123456789abcdef.chg") is None
