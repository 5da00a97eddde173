"""What the unit tests share. None of them starts Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.storage.open import LocalStorage, Storage
from state_backends import StateBackend, open_backend

pytest.register_assert_rewrite("state_backends.contract")

settings.register_profile("unit", deadline=None, max_examples=40, print_blob=True, database=None)
settings.load_profile("unit")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """An empty checkpoints directory that is not there yet."""
    return LocalStorage(tmp_path / "checkpoints")


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[StateBackend]:
    """An empty backend; heap, the faster one to open."""
    with open_backend("heap", tmp_path / "state", create=True) as backend:
        backend.load((), "empty")
        yield backend


@pytest.fixture
def make_table(backend: StateBackend) -> Callable[[Sequence[tuple[bytes, bytes]]], StateTable]:
    """Makes an epoch's table over the backend, with its first key as the current one."""

    def make(keys: Sequence[tuple[bytes, bytes]]) -> StateTable:
        table = StateTable(backend, keys)
        table.current.key_group, table.current.key = keys[0]
        return table

    return make


@pytest.fixture
def handle() -> Handle:
    """The handle of a subtask without state."""
    return Handle(
        query_id="q",
        uid="count",
        subtask=3,
        parallelism=4,
        max_parallelism=128,
        epoch=0,
        key_schema="{}",
    )


@pytest.fixture
def put_file(storage: Storage) -> Callable[..., Path]:
    """Puts a file of any name below the checkpoints directory."""

    def put(relative: str, content: bytes = b"content") -> Path:
        path = storage.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return put
