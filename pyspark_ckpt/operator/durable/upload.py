"""The upload of local snapshots: at once, or in the background while epochs continue.

A file is checked before the note says that it is uploaded, so no damaged file becomes a base
snapshot. A file of RocksDB is checked after its upload; the heap is checked while it is read.

One thread of a Python worker uploads the snapshots of the worker's tasks, one after the other. The
worker may end at any moment. Then the next task that opens the subtask's local copy gives the rest
to its own worker.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from contextvars import Context, copy_context
from pathlib import Path

import msgspec

from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.layout import snapshot_path
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshot, SnapshotNote
from pyspark_ckpt.operator.table.writes import frames_of
from pyspark_ckpt.storage.base import WorkerStorage
from pyspark_ckpt.storage.chunks import chunks_of
from state_backends import (
    BackendCorruptError,
    SnapshotFormat,
    StateBackend,
    find_snapshot_format,
    open_backend,
    open_snapshot,
)

DAMAGED = (
    "%s is not used for a base snapshot, because a file on this executor's disk was changed (%s). "
    "No state is lost: the next epoch rebuilds the local copy. Check the disk."
)
"""What to log of a damaged snapshot: its directory, and what was found."""

logger = library_logger(__name__)


def upload(storage: WorkerStorage, snapshot: LocalSnapshot) -> None:
    """Upload the missing files of a snapshot; all of them are durable on return.

    Waits for an upload that is under way.

    If a file was changed on this disk after it was written, BackendCorruptError is raised, the
    snapshot is marked as damaged, and the next epoch rebuilds the local copy. After an OSError,
    what was uploaded is noted.
    """
    for _ in upload_steps(storage, snapshot, wait=True):
        pass


def upload_steps(
    storage: WorkerStorage, snapshot: LocalSnapshot, *, wait: bool
) -> Generator[str, None, None]:
    """Upload the missing files of a snapshot one by one, and yield the path of each.

    It does nothing if another thread uploads the snapshot and `wait` is false. Every attempt
    writes under names of its own.
    """
    with snapshot.claimed(wait=wait) as claimed:
        if not claimed:
            return
        note = snapshot.note()
        missing = note.missing
        own = find_snapshot_format(note.format)
        for name in missing:
            path = snapshot_path(note.uid, note.subtask, note.epoch, note.snapshot_id)
            with _marking_damage(snapshot):
                if own is None:
                    content = _changes(snapshot, note)
                else:
                    content = _content(snapshot.files / name)
                with closing(content):  # the backend that it may be read from
                    reference = storage.write(path, content)
                if own is not None:
                    _check(snapshot, own, name, note.version, is_last=name == missing[-1])
            note = msgspec.structs.replace(note, files={**note.files, name: reference})
            snapshot.write_note(note)
            yield path


_Waiting = tuple[Context, WorkerStorage, LocalSnapshot]


class BackgroundUploads:
    """Uploads snapshots one after the other in a thread of this process.

    The thread is a daemon: it ends with the process at any point, because nothing depends on it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._known: set[Path] = set()
        self._thread: threading.Thread | None = None

    def start(self, storage: WorkerStorage, snapshot: LocalSnapshot) -> None:
        """Upload a snapshot when those before it are done; does nothing if it waits already."""
        with self._lock:
            if snapshot.directory in self._known:
                return
            self._known.add(snapshot.directory)
            self._waiting.put((copy_context(), storage, snapshot))  # with the log's fields
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="pyspark_ckpt uploads", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            context, storage, snapshot = self._waiting.get()
            context.run(self._upload, storage, snapshot)

    def _upload(self, storage: WorkerStorage, snapshot: LocalSnapshot) -> None:
        try:
            for _ in upload_steps(storage, snapshot, wait=False):
                pass
        except BackendCorruptError as exc:
            logger.error(DAMAGED, snapshot.directory, exc)
        except Exception as exc:
            # The subtask's next epoch tries again, unless it no longer uses this snapshot.
            level = logging.WARNING if snapshot.directory.is_dir() else logging.DEBUG
            logger.log(level, "the upload of the snapshot %s failed: %s", snapshot.directory, exc)
        finally:
            with self._lock:
                self._known.discard(snapshot.directory)


background_uploads = BackgroundUploads()
"""The uploads of this Python worker."""


def outlives_tasks() -> bool:
    """Return whether this process is a worker that Spark keeps after its task.

    Elsewhere an upload in the background would be cut short each time.
    """
    return "SPARK_REUSE_WORKER" in os.environ


def _content(path: Path) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        yield from chunks_of(file)


def _changes(snapshot: LocalSnapshot, note: SnapshotNote) -> Generator[bytes, None, None]:
    # Without a format of its own, a snapshot shares no file, so it can be opened where it is.
    with (
        _marking_damage(snapshot),
        open_backend(note.backend, snapshot.files, create=False) as backend,
    ):
        _check_version(backend, note.version)
        yield from encode_changes(frames_of(backend))


def _check(
    snapshot: LocalSnapshot, own: SnapshotFormat, name: str, version: str, *, is_last: bool
) -> None:
    """Check a file that was uploaded, and with the last one what they are together."""
    if own.is_immutable(name):
        own.check_file(snapshot.files / name)
    if is_last:
        with open_snapshot(own.name, snapshot.files, read_only=True) as backend:
            _check_version(backend, version)


def _check_version(backend: StateBackend, version: str) -> None:
    if (found := backend.version()) != version:
        raise BackendCorruptError(f"a snapshot of version {version!r} is at {found!r}")


@contextmanager
def _marking_damage(snapshot: LocalSnapshot) -> Iterator[None]:
    """Mark a snapshot that turns out to be damaged, also if a storage translates the error.

    Files that another thread removes meanwhile are no damage.
    """
    try:
        yield
    except BackendCorruptError as exc:
        if snapshot.is_removed:
            raise FileNotFoundError(f"{snapshot.directory} was removed meanwhile") from exc
        snapshot.mark_damaged()
        raise
    except OSError as exc:
        if snapshot.is_damaged:
            raise BackendCorruptError(str(exc)) from exc
        raise
