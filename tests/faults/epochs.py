"""A query without Spark, on any storage: commits epochs and tells what each consists of."""

from __future__ import annotations

import hashlib
from typing import Any

from pyspark_ckpt.checkpoint.acknowledgement import Subtask
from pyspark_ckpt.checkpoint.checkpoint_runner import CheckpointRunner
from pyspark_ckpt.checkpoint.checkpoint_store import CompletedCheckpointStore
from pyspark_ckpt.configuration import Settings
from pyspark_ckpt.on_disk.handle import (
    BaseFile,
    BaseSnapshot,
    FileReference,
    Handle,
    Segment,
    following,
)
from pyspark_ckpt.on_disk.layout import base_path, segment_path, source_log_path
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata, OperatorMetadata, SourceLog
from pyspark_ckpt.on_disk.storage import Storage

QUERY_ID = "0123456789"
NUM_RETAINED = 2
_SUBTASKS = frozenset({Subtask("count", 0)})


class Epochs:
    """One subtask that writes a segment in every epoch and a base snapshot in every third.

    Parameters
    ----------
    storage
        Where the tasks write.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.handles: list[Handle] = []

    def commit(self) -> int:
        """Run an epoch; its files are durable."""
        epoch = len(self.handles)
        last = self.handles[-1] if self.handles else None
        base = None if last is None else last.base
        segments = () if last is None else last.segments
        if epoch % 3 == 0:
            file = self.storage.write(base_path("count", 0, epoch), [b"base", str(epoch).encode()])
            base = BaseSnapshot(f"{epoch}-b", epoch, 1, (BaseFile("state.chg", file),))
            segments = ()
        file = self.storage.write(
            segment_path("count", 0, epoch), [b"segment", str(epoch).encode()]
        )
        segment = Segment(f"{epoch}-s", epoch, 1, file.size_bytes, file=file)
        handle = Handle(
            query_id=QUERY_ID, uid="count", subtask=0, parallelism=1, max_parallelism=128,
            epoch=epoch, key_schema="{}", base=base, segments=(*segments, segment),
        )  # fmt: skip
        self.handles.append(following(handle, last))
        return epoch

    def committed_epoch(self) -> int | None:
        return len(self.handles) - 1 if self.handles else None

    def runner(self, storage: Storage | None = None, **changed: Any) -> CheckpointRunner:
        """Start a driver, which may see the files through a storage of its own."""
        storage = storage or self.storage
        settings = {
            "num_retained": NUM_RETAINED,
            "interval_ms": 3_600_000,
            "tolerable_failed_checkpoints": 1000,
            **changed,
        }
        return CheckpointRunner(
            QUERY_ID,
            _SUBTASKS,
            storage,
            Settings(**settings),
            lambda epoch: self.snapshot(epoch, storage),
        )

    def snapshot(self, epoch: int, storage: Storage) -> CheckpointMetadata:
        """Gather an epoch as a driver does: its source log is copied beside the state."""
        content = f"log of {epoch}".encode()
        sha256 = hashlib.sha256(content).hexdigest()
        log = FileReference(source_log_path(0, "0", sha256), len(content), sha256)
        if not storage.exists(log.path):
            storage.write(log.path, [content])
        handle = self.handles[epoch]
        operator = OperatorMetadata(
            operator_id=0, uid="count", parallelism=1, max_parallelism=128, key_schema="{}",
            backend="heap", handles=(handle,),
        )  # fmt: skip
        metadata = CheckpointMetadata(
            checkpoint_id=None, kind="checkpoint", root="..", epoch=epoch, query_id=QUERY_ID,
            query_name=None, parent=None, spark_version="4.3.0", library_version="0.1.0",
            triggered_at_ms=1, completed_at_ms=2, watermark_ms=3, offsets_entry="v1\n{}\n-",
            commits_entry="v1\n{}", source_logs=(SourceLog(0, "0", log),), operators=(operator,),
        )  # fmt: skip
        for reference in metadata.files():
            storage.verify_size(reference)
        return metadata


def restored_epoch(store: CompletedCheckpointStore, storage: Storage, checkpoint_id: int) -> int:
    """Read all of a checkpoint, each file against its digest; return its epoch."""
    metadata = store.read(checkpoint_id)
    assert metadata.checkpoint_id == checkpoint_id
    for reference in metadata.files():
        with storage.open_verified(reference) as file:
            assert len(file.read()) == reference.size_bytes
    return metadata.epoch


def files_of(storage: Storage, directory: str | None = None) -> set[str]:
    """Return the paths of all files of a storage."""
    found = set()
    for name in storage.list(directory):
        path = name if directory is None else f"{directory}/{name}"
        if storage.size_bytes(path) is None:
            found |= files_of(storage, path)
        else:
            found.add(path)
    return found
