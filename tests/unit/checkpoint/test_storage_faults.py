"""A checkpoint while its storage fails: scenarios 1 to 6 and 9, with the real runner."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.faults.disk import Disk
from tests.faults.epochs import Epochs, files_of, restored_epoch
from tests.faults.faulty_storage import FAULTS, FaultyStorage, Plan, StaleStorage
from tests.faults.nobody import as_nobody, let_enter

Taken = CompletedCheckpoint | CheckpointAbortedError


def take(runner: CheckpointRunner, epochs: Epochs) -> Taken:
    try:
        taken = runner.take(epochs.committed_epoch, periodic=False)
    except CheckpointAbortedError as exc:
        return exc
    assert isinstance(taken, CompletedCheckpoint)
    return taken


def two_checkpoints(storage: Storage, location: Path | None = None) -> Epochs:
    """A query that has two checkpoints and an epoch after them."""
    epochs = Epochs(storage, location)
    runner = epochs.runner()
    for _ in range(2):
        epochs.commit()
        assert isinstance(take(runner, epochs), CompletedCheckpoint)
    runner.close()
    epochs.commit()
    return epochs


def check_after(storage: Storage, epochs: Epochs, taken: Taken) -> None:
    """Check what must hold after a fault in the third checkpoint, and after the next one."""
    store = CompletedCheckpoints(storage)
    assert restored_epoch(store, storage, 2) == 1
    if isinstance(taken, CompletedCheckpoint):
        assert restored_epoch(store, storage, 3) == 2
    elif taken.reason is AbortReason.METADATA_UNCERTAIN:
        if store.is_complete(3) and store.ids()[-1] == 3:
            check_whole_or_refused(store, storage)
    else:
        assert taken.reason in (AbortReason.STORAGE_FAILED, AbortReason.CORRUPT_FILE)
        assert not storage.exists("chk-3/_metadata")
    runner = epochs.runner(storage)
    epochs.commit()
    following = take(runner, epochs)
    assert isinstance(following, CompletedCheckpoint), following
    assert following.checkpoint_id > 2
    assert restored_epoch(store, storage, following.checkpoint_id) == 3
    epochs.commit()
    assert isinstance(take(runner, epochs), CompletedCheckpoint)
    runner.close()
    check_nothing_is_left(storage)


def check_whole_or_refused(store: CompletedCheckpoints, storage: Storage) -> None:
    try:
        epoch = restored_epoch(store, storage, 3)
    except CorruptFileError as exc:
        refused = str(exc)
    else:
        assert epoch == 2
        return
    assert "chk-3/_metadata" in refused  # it was cut, and says so


def check_nothing_is_left(storage: Storage) -> None:
    """Check that each file is one that a retained checkpoint needs, or a driver's term."""
    store = CompletedCheckpoints(storage)
    needed = {reference.path for number in store.ids() for reference in store.read(number).files()}
    needed |= store.read(store.ids()[-1]).kept_files()
    kept = {f"chk-{number}/{name}" for number in store.ids() for name in ("_author", "_metadata")}
    assert len(store.ids()) == 2
    rest = files_of(storage) - needed - kept
    assert {path.partition("/")[0] for path in rest} <= {"drivers"}, rest


@pytest.fixture
def seed() -> int:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return seed


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Path]:
    """Return where disks are modelled: in memory if possible, because many files are synced."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


each_operation = pytest.mark.parametrize(
    "every",
    [pytest.param(3, id="one in three"), pytest.param(1, id="each", marks=pytest.mark.soak)],
)


@each_operation
def test_each_single_operation_of_a_local_disk_fails_in_turn(
    disks: Path, seed: int, every: int
) -> None:
    """Scenario 1: create, write, fsync, link, list, delete, read and mkdir of one checkpoint."""
    kinds: set[str] = set()
    read: set[str] = set()
    index, was_hit = seed % every, True
    while was_hit:
        root = disks / str(index)
        epochs = two_checkpoints(LocalStorage(root / "pyspark_ckpt"), root)
        disk = Disk(root)
        disk.fails_at = index
        with disk.watched():
            runner = _started(epochs)
            taken = None if runner is None else take(runner, epochs)
        was_hit = len(disk.done) > index
        if was_hit:
            print(f"fault {index}: {disk.done[index]} -> {taken}")
            kind, _, path = disk.done[index].partition(" ")
            kinds.add(kind)
            read |= {path} if kind == "read" else set()
        if taken is not None:
            check_after(epochs.storage, epochs, taken)
        index += every
    assert isinstance(taken, CompletedCheckpoint), "without a fault"
    if every > 1:
        return
    assert kinds >= {"open", "fsync", "link", "unlink", "mkdir", "listdir", "read"}
    of_spark = {path.split("/")[0] for path in read if not path.startswith("pyspark_ckpt")}
    assert of_spark >= {"offsets", "commits", "sources", "state"}


def _started(epochs: Epochs) -> CheckpointRunner | None:
    try:
        return epochs.runner()
    except OSError:
        return None  # the driver's claim failed: nothing has begun


def taken_with_a_fault(storage: Storage, fault: str, index: int | None) -> tuple[Taken, list[str]]:
    """Take the third checkpoint with a fault in its n-th operation; return all operations too."""
    epochs, plan = two_checkpoints(storage), Plan()
    runner = epochs.runner(FaultyStorage(storage, plan))
    started = len(plan.done)
    plan.index, plan.fault = None if index is None else started + index, fault
    taken = take(runner, epochs)
    done = plan.done[started:]
    print(f"fault {fault} {index}: {'' if index is None else done[index]} -> {taken}")
    check_after(storage, epochs, taken)
    return taken, done


CHANGING = ("write", "delete", "delete_directory", "make_directory")


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_each_single_operation_of_an_object_store_fails_in_turn(fault: str) -> None:
    """Scenarios 1, 2 and 5: not done, done with the answer lost, or cut."""
    above = f"memory://{secrets.token_hex(8)}"
    taken, operations = taken_with_a_fault(open_storage(f"{above}/none"), fault, None)
    assert isinstance(taken, CompletedCheckpoint), "without a fault"
    kinds = {name.partition(" ")[0] for name in operations}
    assert kinds >= {"write", "delete", "list", "read", "exists", "size_bytes"}
    # What only reads fails alike whether it is done or not, and only a write is cut.
    concerned = {"before": tuple(kinds), "after": CHANGING, "truncate": ("write",)}[fault]
    for index, name in enumerate(operations):
        if name.partition(" ")[0] in concerned:
            _, done = taken_with_a_fault(open_storage(f"{above}/{index}"), fault, index)
            assert done[index].partition("-")[0] == name.partition("-")[0]


@pytest.mark.slow
def test_a_publication_to_s3_whose_answer_is_lost_is_decided_by_reading(s3_url: str) -> None:
    """Scenario 2, against a real server."""
    storage = open_storage(s3_url)
    epochs, plan = two_checkpoints(storage), Plan(fault="after")
    runner = epochs.runner(FaultyStorage(storage, plan))
    plan.fails_on = "write chk-3/_metadata"
    taken = take(runner, epochs)
    assert isinstance(taken, CheckpointAbortedError)
    assert taken.reason is AbortReason.METADATA_UNCERTAIN
    assert runner.newest() is not None
    assert runner.newest().checkpoint_id == 2
    next_start = epochs.runner()
    assert next_start.newest().checkpoint_id == 3
    assert restored_epoch(CompletedCheckpoints(storage), storage, 3) == 2
    check_after(storage, epochs, taken)


@each_operation
def test_power_is_lost_at_each_operation_of_a_checkpoint(
    disks: Path, seed: int, every: int
) -> None:
    """Scenario 9: what was not synced is gone; the one before or the new one restores."""
    chance = random.Random(seed)
    found: set[int] = set()
    index, was_hit = seed % every, True
    while was_hit:
        root, after = disks / f"{index}", disks / f"{index}-after"
        epochs = two_checkpoints(LocalStorage(root / "pyspark_ckpt"), root)
        disk = Disk(root)
        disk.power_fails_at = index
        with disk.watched():
            runner = _started(epochs)
            taken = None if runner is None else take(runner, epochs)
            disk.after_power_loss(after, chance)
        was_hit = len(disk.done) > index
        storage = LocalStorage(after / "pyspark_ckpt")
        store = CompletedCheckpoints(storage)
        newest = store.ids()[-1]
        found.add(newest)
        print(f"power lost at {disk.done[index] if was_hit else 'the end'}: chk-{newest}")
        assert restored_epoch(store, storage, newest) == newest - 1
        if isinstance(taken, CompletedCheckpoint):
            assert newest == 3, "it was reported as complete"
        revived = epochs.continued_on(storage, after)
        runner = revived.runner()
        revived.commit()
        following = take(runner, revived)
        assert isinstance(following, CompletedCheckpoint)
        assert following.checkpoint_id > newest
        assert restored_epoch(store, storage, following.checkpoint_id) == 3
        runner.close()
        shutil.rmtree(root)
        shutil.rmtree(after)
        index += every
    assert found == {2, 3}


def test_a_store_that_flaps_is_tolerated_up_to_the_limit(storage: Storage) -> None:
    """Scenario 3: failures in a row count, each checkpoint once; a success resets the count."""
    epochs, plan = Epochs(storage), Plan()
    runner = epochs.runner(FaultyStorage(storage, plan), tolerable_failed_checkpoints=2)
    for failures in (2, 1, 2, 3):
        for _ in range(failures):
            assert not runner.tolerance_is_exceeded
            epochs.commit()
            plan.index = len(plan.done) + 1  # while it reserves its id
            taken = take(runner, epochs)
            assert isinstance(taken, CheckpointAbortedError)
            assert taken.reason is AbortReason.STORAGE_FAILED
        if failures < 3:
            assert isinstance(take(runner, epochs), CompletedCheckpoint)
    assert runner.tolerance_is_exceeded
    assert len(runner.aborted()) == 8
    store = CompletedCheckpoints(storage)
    assert len(store.ids()) == 2
    assert [restored_epoch(store, storage, number) for number in store.ids()] == [2, 4]


def test_a_slow_store_expires_and_late_writes_are_no_checkpoint(storage: Storage) -> None:
    """Scenario 6: the reservation hangs past the timeout and continues after the query has."""
    epochs, plan = Epochs(storage), Plan()
    runner = epochs.runner(FaultyStorage(storage, plan), timeout_ms=300)
    epochs.commit()
    take(runner, epochs)
    goes_on, has_hung = threading.Event(), threading.Event()

    def hang() -> None:
        has_hung.set()
        goes_on.wait()

    plan.index, plan.delay = len(plan.done) + 1, hang
    epochs.commit()
    taken = take(runner, epochs)
    assert isinstance(taken, CheckpointAbortedError)
    assert taken.reason is AbortReason.EXPIRED
    assert has_hung.is_set()
    goes_on.set()
    plan.delay = None
    epochs.commit()
    following = take(runner, epochs)
    assert isinstance(following, CompletedCheckpoint)
    store = CompletedCheckpoints(storage)
    assert store.ids() == [1, 3]
    assert store.used_ids() == [1, 3]


def _stale_history(seed: int) -> Iterator[str]:
    """Drivers come and go on a storage whose listings are late; yields what happens."""
    chance = random.Random(seed)
    inner = open_storage(f"memory://{secrets.token_hex(8)}")
    storage = StaleStorage(inner, lambda: chance.choice([0, 0, 1, 3, 10, 30]))
    epochs = Epochs(storage)
    store = CompletedCheckpoints(inner)
    runners = [epochs.runner()]
    completed: dict[int, int] = {}
    for _ in range(25):
        step = chance.choice(["epoch", "checkpoint", "checkpoint", "driver", "old driver"])
        if step == "epoch":
            epochs.commit()
            continue
        if step == "driver":
            runners.append(epochs.runner())
            continue
        if step == "old driver" and len(runners) > 1:
            epochs.commit()
            taken = take(chance.choice(runners[:-1]), epochs)
            assert isinstance(taken, CheckpointAbortedError), "two drivers wrote"
            assert taken.reason is AbortReason.FENCED
            yield f"{step}: {taken.reason}"
            continue
        epochs.commit()
        taken = take(runners[-1], epochs)
        yield f"{step}: {taken}"
        if isinstance(taken, CompletedCheckpoint):
            assert taken.checkpoint_id > max(completed, default=0), "an id came twice"
            completed[taken.checkpoint_id] = taken.epoch
        for number in sorted(completed)[-2:]:
            assert restored_epoch(store, inner, number) == completed[number]
    for runner in runners:
        runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(8))
def test_late_listings_break_nothing(round_: int, seed: int) -> None:
    """Scenario 5: no id comes twice, one driver writes, the retained checkpoints are whole."""
    assert [print(step) for step in _stale_history(seed + round_)]


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[LocalStorage]:
    """A checkpoints directory below one that others may not enter."""
    above = tmp_path / "above"
    above.mkdir()
    let_enter(above)
    yield LocalStorage(above / "checkpoints")
    above.chmod(0o755)


def test_a_directory_that_may_not_be_entered_is_named_and_left_alone(
    forbidden: LocalStorage,
) -> None:
    """Scenario 4: at the start of a driver, of a checkpoint and of a restore."""
    epochs = two_checkpoints(forbidden)
    runner = epochs.runner()  # before its right is taken
    before = files_of(forbidden)
    forbidden.root.parent.chmod(0o700 if os.getuid() == 0 else 0o000)
    runner_of_another = as_nobody(epochs.runner)
    restored = as_nobody(lambda: read_metadata(open_storage(forbidden.url), "chk-2"))
    listed = as_nobody(lambda: CompletedCheckpoints(forbidden).ids())
    taken = as_nobody(lambda: runner.take(epochs.committed_epoch, periodic=False))
    forbidden.root.parent.chmod(0o755)
    for said in (runner_of_another, restored, listed):
        assert said.startswith("PermissionError"), said
        assert forbidden.url in said
    assert taken.startswith("CheckpointAbortedError")
    assert "Permission denied" in taken
    assert forbidden.url in taken
    assert files_of(forbidden) == before
    assert isinstance(take(runner, epochs), CompletedCheckpoint)


def test_a_directory_that_may_not_be_written_is_named_and_left_alone(
    forbidden: LocalStorage,
) -> None:
    """Scenario 4: readable, so it restores, but no driver begins."""
    epochs = two_checkpoints(forbidden)
    before = files_of(forbidden)
    for path in (forbidden.root, *forbidden.root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    started = as_nobody(epochs.runner)
    restored = as_nobody(
        lambda: restored_epoch(CompletedCheckpoints(forbidden), open_storage(forbidden.url), 2)
    )
    assert started.startswith("PermissionError")
    assert f"{forbidden.url}/drivers" in started
    assert restored == "returned 1"
    assert files_of(forbidden) == before


def test_a_medium_that_cannot_be_written_is_enough_to_restore_from(
    forbidden: LocalStorage,
) -> None:
    """Scenario 33: read-only."""
    epochs = two_checkpoints(forbidden)
    copies = forbidden.root.parent / "copies"
    copies.mkdir()
    copies.chmod(0o777)
    assert epochs.storage.url == forbidden.url
    for path in (forbidden.root, *forbidden.root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def restored() -> list[str]:
        source = RestoreSource(str(forbidden.root / "chk-2"))
        source.verify()
        target = LocalStorage(copies)
        files = {file.path: file for file in source.metadata.files()}.values()
        return [target.copy_in(source.storage, file, file.path).path for file in files]

    said = as_nobody(restored)
    for path in (forbidden.root, *forbidden.root.rglob("*")):
        path.chmod(0o755)
    assert said.startswith("returned ["), said
    assert files_of(LocalStorage(copies)), said
