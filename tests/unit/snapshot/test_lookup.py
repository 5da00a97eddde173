"""The entries below a prefix are those of the whole state, of each backend and kind of base."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.snapshot.entries import entries_with_prefix
from pyspark_ckpt.storage.open import Storage
from state_backends import BACKEND_TYPES
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask

SEED = 20
GROUPS = 4


def key_of(number: int) -> bytes:
    return bytes([0, number % GROUPS, 0]) + f"{number:05}".encode() * (1 + number % 3)


@pytest.fixture(params=BACKEND_TYPES)
def subtask(
    request: pytest.FixtureRequest, tmp_path: Path, storage: Storage, handle: Handle
) -> MaterializedSubtask:
    """A base snapshot of 3,000 entries, and segments that change, delete and add some."""
    made = MaterializedSubtask(tmp_path / "local", str(request.param), storage, handle)
    numbers = random.Random(SEED)
    made.epoch({key_of(n): b"%d" % n for n in range(3000)})
    made.epoch(settings=ALWAYS)
    assert made.uploads is not None
    made.uploads.run()
    made.epoch()
    for epoch in range(3):
        writes = {key_of(n): b"later %d" % epoch for n in numbers.sample(range(4000), 30)}
        writes |= {key_of(n): None for n in numbers.sample(range(4000), 30)}  # type: ignore[misc]
        made.epoch(writes, NEVER)
    assert made.handle.base is not None
    assert made.handle.segments
    return made


def test_entries_below_any_prefix(subtask: MaterializedSubtask) -> None:
    numbers = random.Random(SEED)
    prefixes = [key_of(n) for n in numbers.sample(range(4100), 60)]
    prefixes += [bytes([0, group]) for group in range(GROUPS + 1)]
    prefixes += [b"\0", key_of(17)[:5], b"\xff", key_of(2999)]
    for prefix in prefixes:
        found = entries_with_prefix(subtask.storage, subtask.handle, prefix)
        expected = {k: v for k, v in subtask.state.items() if k.startswith(prefix)}
        assert list(zip(found.keys, found.values, strict=True)) == sorted(expected.items()), prefix


def test_a_damaged_base_is_refused(subtask: MaterializedSubtask) -> None:
    assert subtask.handle.base is not None
    for each in subtask.handle.base.files:
        path = subtask.storage.local_path(each.file.path)
        assert path is not None
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(CorruptFileError):
        entries_with_prefix(subtask.storage, subtask.handle, key_of(17))
