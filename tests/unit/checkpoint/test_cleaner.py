"""The cleaner lists the files that nothing needs, and no others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles, garbage
from pyspark_ckpt.formats.layout import (
    base_path,
    new_snapshot_id,
    operator_mark,
    segment_path,
    snapshot_path,
    source_log_path,
    spark_operator_path,
)
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints

FOREIGN = [
    "notes.txt", "shared/notes.txt", "shared/base-1.chg", "taskowned/segment-x-1.chg",
    "taskowned/segment-0-1-short.chg",
    "shared/base-0-1-0123456789abcdef.part", "shared/.hidden",
    "other/segment-0-1-0123456789abcdef.chg",
    "chk-1/_metadata", "segment-0-1-0123456789abcdef.chg", "origin.json",
]  # fmt: skip

_KILLED_WRITE = """
import os, signal, sys
from pathlib import Path
from pyspark_ckpt.storage.open import LocalStorage
def chunks():
    yield b"x" * 100_000
    os.kill(os.getpid(), signal.SIGKILL)
LocalStorage(Path(sys.argv[1])).write(sys.argv[2], chunks())
"""


@pytest.fixture
def put_all(put_file: Callable[..., Path]) -> Callable[..., list[str]]:
    """Return a function that puts files and returns their paths."""

    def put(*relatives: str) -> list[str]:
        for relative in relatives:
            put_file(relative)
        return list(relatives)

    return put


def test_an_empty_directory_has_no_garbage(storage: Storage) -> None:
    assert garbage(storage, [], 100) == []


def test_old_files_that_nothing_refers_to_are_garbage(
    storage: Storage, put_all: Callable[..., list[str]]
) -> None:
    old = put_all(
        segment_path("op", 0, 4),
        segment_path("op", 1, 5),
        base_path("op", 0, 3),
        base_path("op", 1, 5),
        source_log_path(0, "3", "ab" * 32),
        source_log_path(1, "9.compact", "cd" * 32),
    )
    assert sorted(garbage(storage, [], 5)) == sorted(old)


def test_what_is_referred_to_stays(storage: Storage, put_all: Callable[..., list[str]]) -> None:
    needed = put_all(
        segment_path("op", 0, 4), base_path("op", 0, 3), source_log_path(0, "3", "ab" * 32)
    )
    rest = put_all(
        segment_path("op", 0, 4), base_path("op", 0, 3), source_log_path(0, "3", "cd" * 32)
    )
    assert sorted(garbage(storage, needed, 5)) == sorted(rest)


def test_files_of_later_epochs_stay(storage: Storage, put_all: Callable[..., list[str]]) -> None:
    put_all(
        segment_path("op", 0, 6),
        base_path("op", 0, 6),
        segment_path("op", 0, 10),
        segment_path("op", 0, 51),
    )
    (at_the_epoch,) = put_all(segment_path("op", 0, 5))
    assert garbage(storage, [], 5) == [at_the_epoch]


def test_files_of_a_pending_snapshot_stay_until_it_is_not_pending_any_more(
    storage: Storage, put_all: Callable[..., list[str]]
) -> None:
    """Scenario 16: uploaded files are garbage once no handle names their snapshot."""
    pending, other = new_snapshot_id(), new_snapshot_id()
    waited_for = put_all(*(snapshot_path("op", 0, 5, pending) for _ in range(3)))
    given_up = put_all(snapshot_path("op", 0, 5, other), snapshot_path("op", 1, 4, other))
    later = put_all(snapshot_path("op", 0, 8, other))
    assert sorted(garbage(storage, [], 7, {pending})) == sorted(given_up)
    picked_up = waited_for[:2]
    assert sorted(garbage(storage, picked_up, 9)) == sorted([waited_for[2], *given_up, *later])


def test_files_of_other_names_and_places_stay(
    storage: Storage, put_all: Callable[..., list[str]]
) -> None:
    put_all(*FOREIGN)
    assert garbage(storage, [], 10**9) == []


def test_nothing_goes_while_the_files_of_a_retained_checkpoint_are_unknown(
    storage: LocalStorage, snapshot: CheckpointMetadata
) -> None:
    """Scenario 7: whatever an unreadable checkpoint needs is there when it is repaired."""
    lost = segment_path("op", 0, 1)
    reference = storage.write(lost, [b"state"])
    segment = msgspec.structs.replace(snapshot.operators[0].handles[0].segments[0], file=reference)
    handle = msgspec.structs.replace(snapshot.operators[0].handles[0], segments=(segment,))
    operator = msgspec.structs.replace(snapshot.operators[0], handles=(handle,))
    store = CompletedCheckpoints(storage)
    store.reserve(1)
    store.add(1, msgspec.structs.replace(snapshot, epoch=5, operators=(operator,)))
    store.reserve(2)
    store.add(2, snapshot)
    metadata = storage.path("chk-1/_metadata")
    whole = metadata.read_bytes()

    metadata.write_bytes(whole[:-1])
    CheckpointFiles(storage, store).clean([1, 2], [], 1)
    assert storage.exists(lost)
    metadata.write_bytes(whole)
    CheckpointFiles(storage, store).clean([1, 2], [], 1)
    assert storage.exists(lost)
    CheckpointFiles(storage, store).clean([2], [], 2)
    assert not storage.exists(lost)


def test_what_a_killed_attempt_was_writing_is_garbage_once_its_epoch_is_over(
    storage: Storage,
) -> None:
    """Scenario 12: the files of the killed attempt are deleted."""
    command = [sys.executable, "-c", _KILLED_WRITE, str(storage.root), segment_path("op", 0, 5)]
    assert subprocess.run(command, check=False).returncode < 0
    left = [f"taskowned/{name}" for name in storage.list("taskowned")]
    assert len(left) == 1
    assert garbage(storage, [], 4) == []
    assert garbage(storage, [], 5) == left


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.tuples(st.sampled_from([segment_path, base_path]), st.integers(0, 9))),
    data=st.data(),
)
def test_what_stays_and_what_goes_is_decided_file_by_file(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[Callable[[str, int, int], str], int]],
    data: st.DataObject,
) -> None:
    storage = LocalStorage(tmp_path_factory.mktemp("checkpoints"))
    epochs = {make("op", 0, epoch): epoch for make, epoch in files}
    for path in epochs:
        _touch(storage.root / path)
    needed = data.draw(st.sets(st.sampled_from(sorted(epochs)))) if epochs else set()
    epoch = data.draw(st.integers(0, 9))
    expected = {path for path, written in epochs.items() if written <= epoch} - needed
    assert set(garbage(storage, iter(needed), epoch)) == expected
    storage.delete(garbage(storage, needed, epoch))
    assert set(_files(storage)) == set(epochs) - expected
    assert garbage(storage, needed, epoch) == []


def _touch(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch()


def _files(storage: Storage) -> Iterator[str]:
    for directory in storage.list():
        yield from (f"{directory}/{name}" for name in storage.list(directory))


def test_copies_of_sparks_state_go_with_the_last_checkpoint_that_needs_them(
    storage: Storage, put_all: Callable[..., list[str]]
) -> None:
    kept, gone = put_all(spark_operator_path(2, "ab" * 32), spark_operator_path(2, "cd" * 32))
    assert garbage(storage, [kept], 3) == [gone]


def test_an_idle_operator_keeps_its_own_files_only(
    storage: Storage, put_all: Callable[..., list[str]]
) -> None:
    """Both operators have a subtask 0; one of them got its last row in epoch 2."""
    since = {(operator_mark("idle"), 0): 2, (operator_mark("busy"), 0): 8}
    put_all(segment_path("idle", 0, 2), base_path("idle", 0, 5), segment_path("busy", 0, 8))
    gone = put_all(
        segment_path("idle", 0, 1),
        segment_path("busy", 0, 2),
        base_path("busy", 0, 7),
        snapshot_path("busy", 0, 7, new_snapshot_id()),
        segment_path("third", 0, 9),
    )
    assert sorted(garbage(storage, [], 9, (), since)) == sorted(gone)
