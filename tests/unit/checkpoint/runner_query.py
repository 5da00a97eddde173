"""A query without Spark whose runner takes checkpoints; faults come from its storage or a pipe."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.checkpoint.machine import Refusal, Subtask
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.layout import segment_path, source_log_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata, SourceLog
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage

QUERY = "0123456789"
_LOG = b"log"


SUBTASKS = frozenset(Subtask("count", number) for number in range(4))


class FaultyStorage(LocalStorage):
    """A storage that fails or hangs when ``_metadata`` is written, before or after it exists."""

    before: Exception | None = None
    after: Exception | None = None
    pipe_after: Path | None = None

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        is_metadata = relative.endswith("/_metadata")
        if is_metadata and self.before is not None:
            raise self.before
        written = super().write(relative, chunks)
        if is_metadata and self.pipe_after is not None:
            self.pipe_after.read_bytes()
        if is_metadata and self.after is not None:
            raise self.after
        return written


class Paused(LocalStorage):
    """A storage whose driver is paused at one operation.

    Parameters
    ----------
    root
        The directory.
    operation
        A pattern for the beginning of what the driver is about to do, or has ``written``; ``None``
        pauses it nowhere.
    """

    def __init__(self, root: Path, operation: str | None = None) -> None:
        super().__init__(root)
        self._is_there, self._goes_on, self._is_over = (threading.Event() for _ in range(3))
        self.pause_at(operation)

    def pause_at(self, operation: str | None, before: int = 0) -> None:
        """Pause at the next operation like this one, after so many like it."""
        self._operation, self._before = operation, before

    def begin(self, work: Callable[[], object]) -> Future[object]:
        """Begin to do something in another thread; return when it is paused, or has ended."""
        pool = ThreadPoolExecutor(1)
        future = pool.submit(work)
        pool.shutdown(wait=False)
        future.add_done_callback(lambda _: self._is_there.set())
        assert self._is_there.wait(60)
        return future

    def go_on(self) -> None:
        self._goes_on.set()

    def await_write(self) -> None:
        """Wait until the write that was paused has ended."""
        assert self._is_over.wait(60)

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        was_paused = self._reached(f"write {relative}")
        try:
            reference = super().write(relative, chunks)
        finally:
            if was_paused:
                self._is_over.set()
        self._reached(f"written {relative}")
        return reference

    def delete(self, relatives: Iterable[str]) -> None:
        paths = tuple(relatives)
        for path in paths:
            self._reached(f"delete {path}")
        super().delete(paths)

    def delete_directory(self, relative: str) -> None:
        self._reached(f"delete directory {relative}")
        super().delete_directory(relative)

    def exists(self, relative: str) -> bool:
        self._reached(f"exists {relative}")
        return super().exists(relative)

    def list(self, directory: str | None = None) -> list[str]:
        self._reached(f"list {directory or '.'}")
        return super().list(directory)

    def _reached(self, operation: str) -> bool:
        """Pause if it is the operation; return whether it was."""
        if self._operation is None or not fnmatch(operation, f"{self._operation}*"):
            return False
        self._before -= 1
        if self._before != -1:
            return False
        self._is_there.set()
        assert self._goes_on.wait(60)
        return True


class Heard(CheckpointListener):
    """A listener that keeps what it is notified of."""

    def __init__(self) -> None:
        self.completed: list[CompletedCheckpoint] = []
        self.aborted: list[AbortedCheckpoint] = []

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        self.completed.append(checkpoint)

    def onCheckpointAborted(self, checkpoint: AbortedCheckpoint) -> None:
        self.aborted.append(checkpoint)


class Query:
    """A query without Spark: commits epochs, and has a segment and a source log for each."""

    def __init__(self, storage: FaultyStorage, snapshot: CheckpointMetadata) -> None:
        self.storage = storage
        self.epoch: int | None = None
        self.pipe: Path | None = None
        self.error: Exception | None = None
        self.segments: list[FileReference] = []
        self.gathered: list[int] = []
        self._snapshot = snapshot

    def commit(self) -> int:
        self.epoch = 0 if self.epoch is None else self.epoch + 1
        self.segments.append(self.storage.write(segment_path("count", 0, self.epoch), [b"segment"]))
        return self.epoch

    def committed_epoch(self) -> int | None:
        return self.epoch

    def snapshot(self, epoch: int) -> CheckpointMetadata:
        """Gather an epoch; hang until something writes to the pipe."""
        self.gathered.append(epoch)
        if self.error is not None:
            raise self.error
        path = source_log_path(0, "0", f"{epoch:016}{0:048}")
        log = (
            FileReference(path, len(_LOG), hashlib.sha256(_LOG).hexdigest())
            if self.storage.exists(path)
            else self.storage.write(path, [_LOG])
        )
        if self.pipe is not None:
            self.pipe.read_bytes()
        (operator,) = self._snapshot.operators
        base = operator.handles[0].base
        handles = (
            msgspec.structs.replace(operator.handles[0], subtask=0, base=base),
            msgspec.structs.replace(operator.handles[1], subtask=1, base=None),
        )
        segment = msgspec.structs.replace(
            operator.handles[0].segments[0], file=self.segments[epoch]
        )
        first = msgspec.structs.replace(handles[0], segments=(segment,), epoch=epoch)
        handles = (first, handles[1])
        return msgspec.structs.replace(
            self._snapshot,
            epoch=epoch,
            operators=(msgspec.structs.replace(operator, handles=handles),),
            source_logs=(SourceLog(0, "0", log),),
        )

    def hang(self) -> None:
        self.pipe = self.storage.root.parent / "pipe"
        os.mkfifo(self.pipe)

    def go_on(self) -> None:
        assert self.pipe is not None
        pipe, self.pipe = self.pipe, None
        pipe.open("wb").close()


def take(runner: CheckpointRunner, query: Query) -> CompletedCheckpoint | Refusal:
    return runner.take(query.committed_epoch, periodic=False)


def failed(runner: CheckpointRunner, query: Query) -> CheckpointAbortedError:
    with pytest.raises(CheckpointAbortedError) as caught:
        take(runner, query)
    return caught.value


def directories(query: Query) -> list[str]:
    return [name for name in query.storage.list() if name.startswith("chk-")]
