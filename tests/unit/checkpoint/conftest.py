"""A snapshot of a small query, with its files."""

from __future__ import annotations

import msgspec
import pytest

from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle, Segment
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata, SourceLog
from pyspark_ckpt.storage.open import Storage


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
        checkpoint_id=None, kind="checkpoint", root="..", epoch=6, query_id="0123456789",
        query_name="q", parent=None, spark_version="4.3.0", library_version="0.1.0",
        triggered_at_ms=1, completed_at_ms=2, watermark_ms=3, offsets_entry="v1\n{}\n-",
        commits_entry="v1\n{}", source_logs=(log,), operators=(operator,),
    )  # fmt: skip
