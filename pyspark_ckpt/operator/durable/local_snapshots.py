"""Base snapshots on an executor's disk: taken there, and uploaded from there.

::

    <subtask's directory>/snapshots/<snapshot id>/
      files/    hard links to the SST files of RocksDB, or a copy of the heap
      note      which files the snapshot has, and of each that is uploaded the reference
      lock      held by the thread that uploads
      damaged   is there if a file was changed after it was written
    <subtask's directory>/snapshots/removed-<snapshot id>
      one that is being removed: its name goes first, so that no upload finds damage in the rest

Nothing here is the truth: a directory that is lost costs one upload. The note is replaced as a
whole after each uploaded file, so the next upload continues where a killed one ended.

A file is checked before the note says that it is uploaded, so no damaged file becomes a base
snapshot. A file of RocksDB is checked after its upload; the heap is checked while it is read.

One thread of a Python worker uploads the snapshots of the worker's tasks, one after the other. The
worker may end at any moment. Then the next task that opens the subtask's local copy gives the rest
to its own worker.
"""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import queue
import shutil
import threading
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import Context, copy_context
from pathlib import Path

import msgspec

from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import CHANGES_FORMAT, BaseFile, BaseSnapshot, Handle
from pyspark_ckpt.formats.layout import is_snapshot_id, new_snapshot_id, snapshot_path
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.durable.stored_files import CHANGES_NAME
from pyspark_ckpt.operator.table.writes import frames_of
from pyspark_ckpt.storage.base import JSON_ERRORS, FileReference, WorkerStorage, chunks_of
from state_backends import (
    BackendCorruptError,
    SnapshotFormat,
    StateBackend,
    find_snapshot_format,
    open_backend,
    open_snapshot,
    snapshot_format_of,
)

_DIRECTORY = "snapshots"
_FILES = "files"
_NOTE = "note"
_LOCK = "lock"
_DAMAGED = "damaged"
_INCOMING = "incoming"
_REMOVED = "removed-"
_encoder = msgspec.json.Encoder()

DAMAGED = (
    "%s is not used for a base snapshot, because a file on this executor's disk was changed (%s). "
    "No state is lost: the next epoch rebuilds the local copy. Check the disk."
)
"""What to log of a damaged snapshot: its directory, and what was found."""

logger = library_logger(__name__)


def directories_of_all(root: Path) -> list[Path]:
    """Return where the snapshots of all subtasks have their files; some may go soon."""
    # `glob.glob`, because that of pathlib fails if a directory is removed while it walks.
    found = glob.glob(f"*/*/*/{_DIRECTORY}/*/{_FILES}", root_dir=root)  # noqa: PTH207
    return [root / name for name in found]


class SnapshotNote(msgspec.Struct, frozen=True):
    """What a local snapshot is of, and which of its files are uploaded.

    `backend` took the snapshot; it is empty if the files were fetched.
    """

    snapshot_id: str
    version: str
    epoch: int
    uid: str
    subtask: int
    format: str
    files: dict[str, FileReference | None]
    backend: str = ""

    @property
    def missing(self) -> list[str]:
        """The names of the files that are not uploaded yet."""
        return [name for name, reference in self.files.items() if reference is None]

    def base(self) -> BaseSnapshot:
        """Return the base snapshot that this is, once nothing is missing."""
        files = tuple(
            BaseFile(name, reference)
            for name, reference in self.files.items()
            if reference is not None
        )
        assert len(files) == len(self.files)
        return BaseSnapshot(
            self.version, self.epoch, None, files, self.format, snapshot_id=self.snapshot_id
        )


_decoder = msgspec.json.Decoder(SnapshotNote)


class LocalSnapshot:
    """One snapshot's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = directory / _FILES

    def note(self) -> SnapshotNote:
        """Return what is known of the snapshot.

        ``OSError``, ``msgspec.MsgspecError``, ``UnicodeDecodeError`` or ``RecursionError`` means
        that the snapshot was never completed or was deleted.
        """
        return _decoder.decode((self.directory / _NOTE).read_bytes())

    def write_note(self, note: SnapshotNote) -> None:
        """Replace the note as a whole."""
        new = self.directory / f"{_NOTE}.new"
        new.write_bytes(_encoder.encode(note))
        new.replace(self.directory / _NOTE)

    def mark_damaged(self) -> None:
        """Note that a file was changed: neither this snapshot nor the local copy is to be used."""
        with suppress(FileNotFoundError):  # it has been removed
            (self.directory / _DAMAGED).touch()

    @property
    def is_removed(self) -> bool:
        """Whether another thread or process removed it."""
        return not (self.directory / _NOTE).exists()

    @property
    def is_damaged(self) -> bool:
        """Whether a file was found to be changed."""
        return (self.directory / _DAMAGED).exists()

    def copy_to(self, directory: Path, files_format: SnapshotFormat) -> None:
        """Put the files into a new directory, for a backend to open and change them there."""
        directory.mkdir()
        for path in self.files.iterdir():
            if files_format.is_immutable(path.name):
                (directory / path.name).hardlink_to(path)
            else:
                shutil.copyfile(path, directory / path.name)

    @contextmanager
    def claimed(self, *, wait: bool) -> Iterator[bool]:
        """Yield whether this thread, and no other in any process, may upload the snapshot.

        The claim ends with the context, or with the process if that ends first.
        """
        with (self.directory / _LOCK).open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True


class LocalSnapshots:
    """The snapshots of one subtask on this executor, for the holder of the local copy only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / _DIRECTORY

    def find(self, snapshot_id: str) -> LocalSnapshot | None:
        """Return the snapshot of that id, ``None`` if it is not here."""
        if not is_snapshot_id(snapshot_id):
            return None
        snapshot = LocalSnapshot(self._directory / snapshot_id)
        try:
            known = snapshot.note().snapshot_id
        except (OSError, *JSON_ERRORS):
            return None
        return snapshot if known == snapshot_id else None

    def take(
        self, backend: StateBackend, backend_type: str, handle: Handle, epoch: int
    ) -> LocalSnapshot:
        """Take a snapshot of a backend that is at the handle's version.

        RocksDB makes hard links. A file that is the very same file as one of the handle's
        base snapshot is not uploaded again. The snapshot exists from when its note exists.

        It raises ``BackendCorruptError`` if the backend is at another version, or if changes were
        applied to it only in part.
        """
        if (version := backend.version()) != handle.version:
            raise BackendCorruptError(
                f"the local copy next to {self._directory} is at version {version!r}, "
                f"{handle.version!r} was to be saved; it is rebuilt by the next attempt"
            )
        snapshot = LocalSnapshot(self._directory / new_snapshot_id())
        snapshot.directory.mkdir(parents=True)
        names = backend.snapshot_files(snapshot.files)
        own = snapshot_format_of(backend_type)
        files: dict[str, FileReference | None] = {CHANGES_NAME: None}
        if own is not None:
            shared = self._shared(snapshot, own, names, handle.base)
            files = {**dict.fromkeys(names), **shared}
        snapshot.write_note(
            SnapshotNote(
                snapshot.directory.name,
                handle.version,
                epoch,
                handle.uid,
                handle.subtask,
                CHANGES_FORMAT if own is None else own.name,
                files,
                backend_type,
            )
        )
        return snapshot

    def keep_base(
        self, base: BaseSnapshot, handle: Handle, fetch: Callable[[Path], None]
    ) -> LocalSnapshot:
        """Keep the files of a handle's base snapshot, which `fetch` puts into a new directory.

        It takes the place of what is known under the same id, from when it is whole.
        """
        known = is_snapshot_id(base.snapshot_id)
        snapshot_id = base.snapshot_id if known else new_snapshot_id()
        incoming = LocalSnapshot(self._directory / _INCOMING)
        shutil.rmtree(incoming.directory, ignore_errors=True)
        incoming.directory.mkdir(parents=True)
        files: dict[str, FileReference | None] = {each.name: each.file for each in base.files}
        try:
            fetch(incoming.files)
            incoming.write_note(
                SnapshotNote(
                    snapshot_id,
                    base.version,
                    base.epoch,
                    handle.uid,
                    handle.subtask,
                    base.format,
                    files,
                )
            )
        except BaseException:
            shutil.rmtree(incoming.directory, ignore_errors=True)  # a disk may be full of it
            raise
        snapshot = LocalSnapshot(self._directory / snapshot_id)
        _remove(snapshot.directory)
        incoming.directory.rename(snapshot.directory)
        return snapshot

    def all_files(self) -> list[Path]:
        """Return the files of all snapshots."""
        return list(self._directory.glob(f"*/{_FILES}/*"))

    def is_any_damaged(self) -> bool:
        """Return whether a snapshot is damaged; the local copy may be damaged then too."""
        return any(self._directory.glob(f"*/{_DAMAGED}"))

    def keep_only(self, snapshot_ids: Collection[str]) -> None:
        """Remove the other snapshots, those half made included."""
        if not self._directory.is_dir():
            return
        for path in self._directory.iterdir():
            if path.name not in snapshot_ids:
                _remove(path)

    def _shared(
        self,
        snapshot: LocalSnapshot,
        own: SnapshotFormat,
        names: Collection[str],
        base: BaseSnapshot | None,
    ) -> dict[str, FileReference]:
        """Return the files that are, link by link, files of the base snapshot."""
        if base is None or base.format != own.name:
            return {}
        before = self.find(base.snapshot_id)
        if before is None:
            return {}
        references = {each.name: each.file for each in base.files}
        return {
            name: references[name]
            for name in names
            if name in references
            and own.is_immutable(name)
            and _is_same_file(snapshot.files / name, before.files / name)
        }


def _remove(directory: Path) -> None:
    """Remove a directory, its name first; what is left of it after a kill is removed next time."""
    if not directory.name.startswith(_REMOVED):
        removed = directory.with_name(f"{_REMOVED}{directory.name}")
        shutil.rmtree(removed, ignore_errors=True)
        with suppress(OSError):  # it does not exist, or is removed under its own name
            directory = directory.rename(removed)
    shutil.rmtree(directory, ignore_errors=True)


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except FileNotFoundError:
        return False


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
    writes under other names.
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
    # Without a format of the backend, a snapshot shares no file, so it can be opened where it is.
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

    Files that another thread removes in the meantime are not damage.
    """
    try:
        yield
    except BackendCorruptError as exc:
        if snapshot.is_removed:
            raise FileNotFoundError(f"{snapshot.directory} was removed in the meantime") from exc
        snapshot.mark_damaged()
        raise
    except OSError as exc:
        if snapshot.is_damaged:
            raise BackendCorruptError(str(exc)) from exc
        raise
