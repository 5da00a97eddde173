"""The copy of a subtask's state on the driver, on a disk that is really full."""

from __future__ import annotations

import random
import tempfile
import threading
from pathlib import Path

import pytest

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stored import replica
from state_backends import BACKEND_TYPES
from tests.faults.confined import Ballast, on_a_small_disk
from tests.unit.operator.materialized_subtask import MaterializedSubtask

DISK_BYTES = 48 << 20
FOLD_SEGMENTS = 3
VALUE_BYTES = 200_000


def read_on_a_full_disk(disk: Path, durable: str, backend_type: str) -> None:
    """Follow epochs whose segments have no room in the backend, and then have it again."""
    tempfile.tempdir = str(disk)
    replica._FOLD_SEGMENTS = FOLD_SEGMENTS
    chance, ballast = random.Random(27), Ballast(disk)
    storage = LocalStorage(Path(durable) / "checkpoints")
    handle = Handle(
        query_id="q", uid="u", subtask=0, parallelism=1, max_parallelism=8, epoch=0,
        key_schema="{}",
    )  # fmt: skip
    subtask = MaterializedSubtask(Path(durable) / "local", backend_type, storage, handle)
    copy = replica.Replica(backend_type, storage)
    subtask.epoch({b"first": b"1"})
    assert copy.value(subtask.handle, b"first") == b"1"
    ballast.leave(20)
    failures = []
    for number in range(10 * FOLD_SEGMENTS):
        key = b"%03d" % number
        subtask.epoch({key: chance.randbytes(VALUE_BYTES)})
        try:
            assert copy.value(subtask.handle, key) == subtask.state[key]
            assert copy.value(subtask.handle, b"first") == b"1"
        except OSError as exc:
            failures.append(str(exc))
        for thread in threading.enumerate():
            if thread.name == replica.FOLDING:
                thread.join()
        if len(failures) == 2:  # RocksDB takes a second or two to give up
            break
    print(failures)
    assert failures, "what has no room on the disk is not kept in memory"
    assert all("No space left" in failure or "no room" in failure for failure in failures)
    ballast.drop()
    for key, value in subtask.state.items():
        assert copy.value(subtask.handle, key) == value
    copy.close()
    assert not list(disk.iterdir())


@pytest.mark.soak
@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_a_full_disk_is_an_error_and_does_not_fill_the_memory(
    tmp_path: Path, backend_type: str
) -> None:
    on_a_small_disk(read_on_a_full_disk, tmp_path / "disk", DISK_BYTES, tmp_path, backend_type)
