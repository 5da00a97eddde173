"""Scenario 28: no file descriptors are left, for more and more of the work.

In a separate process, whose limit is really reached.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from state_backends import BACKEND_TYPES, BackendResourceError
from tests.faults.confined import in_a_process
from tests.faults.epochs import Epochs, restored_epoch
from tests.unit.checkpoint.test_full_disk import new_subtask
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER

pytestmark = pytest.mark.slow

MOST = 40


def open_files() -> list[str]:
    """What is open, apart from the listing itself."""
    links = Path("/proc/self/fd").iterdir()
    return sorted(str(link.readlink()) for link in links if link.is_symlink())


@contextmanager
def free_descriptors(number: int) -> Iterator[None]:
    """Allow only this many more open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open("/", os.O_RDONLY)  # the lowest that is free
    os.close(probe)
    held = [os.open("/", os.O_RDONLY) for _ in range(64)]
    highest = held[-1] + 1
    for descriptor in held[:number]:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held[number:]:
            os.close(descriptor)


def tried(action: Callable[[], object], number: int) -> OSError | None:
    """Run it with this many descriptors; return the error, which must not blame a file."""
    error = None
    before = open_files()
    with free_descriptors(number):
        try:
            action()
        except OSError as exc:
            error = exc
    if error is not None:
        assert not isinstance(error, CorruptFileError), error
        assert isinstance(error, BackendResourceError) or error.errno == 24, repr(error)
        error.__traceback__ = None
    assert open_files() == before, error
    return error


def epochs_of_a_subtask(directory: Path, backend_type: str) -> None:
    storage = LocalStorage(directory / "checkpoints")
    subtask = new_subtask(directory / "local", storage, backend_type)
    subtask.epoch({b"third": b"3"}, ALWAYS)
    assert subtask.uploads is not None
    subtask.uploads.run()
    subtask.settings = NEVER
    assert subtask.epoch().base is not None
    failed = 0
    for number in range(MOST):
        failed += tried(lambda n=number: subtask.epoch({b"%d" % n: b"x"}), number) is not None
        subtask.check()
        subtask.directory = directory / f"executor {number}"
        failed += tried(subtask.read, number) is not None
        subtask.check()
    print(f"{failed} of {2 * MOST} failed")
    assert 2 <= failed < 2 * MOST


def checkpoints(directory: Path) -> None:
    storage = LocalStorage(directory / "checkpoints")
    epochs, store = Epochs(storage), CompletedCheckpoints(storage)
    runner = epochs.runner()
    epochs.commit()
    runner.take(epochs.committed_epoch, periodic=False)
    reasons = []
    for number in range(6):
        newest = store.ids()[-1]
        epochs.commit()
        with free_descriptors(number):
            try:
                runner.take(epochs.committed_epoch, periodic=False)
            except CheckpointAbortedError as exc:
                reasons.append(exc.reason)
        assert restored_epoch(store, storage, newest) >= 0
        epochs.commit()
        one = runner.take(epochs.committed_epoch, periodic=False)
        assert isinstance(one, CompletedCheckpoint)
        assert restored_epoch(store, storage, one.checkpoint_id) == one.epoch
    print(reasons)
    assert reasons
    assert set(reasons) <= {AbortReason.STORAGE_FAILED, AbortReason.METADATA_UNCERTAIN}
    runner.close()


@pytest.mark.soak_variants
@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_a_task_without_descriptors_blames_no_file_and_continues_later(
    tmp_path: Path, backend_type: str
) -> None:
    in_a_process(epochs_of_a_subtask, tmp_path, backend_type)


@pytest.mark.soak
def test_a_checkpoint_without_descriptors_aborts_and_the_next_is_taken(tmp_path: Path) -> None:
    in_a_process(checkpoints, tmp_path)
