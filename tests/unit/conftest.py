"""What the unit tests share. None of them starts Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, settings

from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle, Segment
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata, SourceLog
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.storage.open import LocalStorage, Storage
from state_backends import StateBackend, open_backend

pytest.register_assert_rewrite("tests.contracts", "tests.faults.query_machine")

# A failed example is not made smaller, because that may take longer than the test's time limit,
# which ends the worker without a word about the example. HYPOTHESIS_PROFILE=smallest does it.
settings.register_profile(
    "unit",
    deadline=None,
    max_examples=40,
    print_blob=True,
    database=None,
    phases=[phase for phase in Phase if phase is not Phase.shrink],
)
settings.register_profile("smallest", settings.get_profile("unit"), phases=[*Phase])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unit"))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """An empty checkpoints directory that does not exist yet."""
    return LocalStorage(tmp_path / "checkpoints")


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[StateBackend]:
    """An empty backend; heap, the faster one to open."""
    with open_backend("heap", tmp_path / "state", create=True) as backend:
        backend.load((), "empty")
        yield backend


@pytest.fixture
def make_table(backend: StateBackend) -> Callable[[Sequence[tuple[bytes, bytes]]], StateTable]:
    """Return a function that makes an epoch's table; its first key is the current one."""

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
    """Return a function that puts a file of any name below the checkpoints directory."""

    def put(relative: str, content: bytes = b"content") -> Path:
        path = storage.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return put


@pytest.fixture
def snapshot(storage: Storage, handle: Handle) -> CheckpointMetadata:
    """Two subtasks that share a base file, a segment and a source log; all files are there."""
    base = BaseSnapshot(
        "4-b", 4, 9, (BaseFile("state.chg", storage.write("shared/base", [b"base" * 100])),)
    )
    segment = Segment("5-s", 5, 1, 7, file=storage.write("taskowned/segment", [b"segment"]))
    handles = (
        msgspec.structs.replace(handle, base=base, segments=(segment,)),
        msgspec.structs.replace(handle, subtask=1, base=base),
    )
    operator = OperatorMetadata(
        operator_id=0, uid="count", parallelism=4, max_parallelism=128, key_schema="{}",
        backend="heap", handles=handles,
    )  # fmt: skip
    log = SourceLog(0, "0", storage.write("shared/log", [b"log"]))
    return CheckpointMetadata(
        checkpoint_id=None, kind=CheckpointKind.CHECKPOINT,
        root="..", epoch=6, query_id="0123456789",
        query_name="q", parent=None, spark_version="4.3.0", library_version="0.1.0",
        triggered_at_ms=1, completed_at_ms=2, watermark_ms=3,
        offsets_entry='v1\n{"batchWatermarkMs":3,"batchTimestampMs":2}\n-',
        commits_entry="v1\n{}", source_logs=(log,), operators=(operator,),
    )  # fmt: skip


@pytest.fixture(params=["America/New_York", "Asia/Tokyo"])
def local_time_zone(request: pytest.FixtureRequest) -> Iterator[str]:
    """The time zone of this process: one that repeats an hour, one ahead of UTC at year 10000."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()
