"""The local copy of a subtask's state, and how it comes to the version that a handle names.

A local copy is a cache on the executor. Its version is one of the handle's lineage: apply the
segments that follow. It is anything else: throw it away and rebuild it from durable files. An
epoch's own writes are not applied before the next epoch's handle confirms them, so a retry, a
speculative twin or a second action of ``foreachBatch`` finds the copy where it needs it.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark_ckpt.on_disk.change_file import decode_changes
from pyspark_ckpt.on_disk.handle import (
    EMPTY_VERSION,
    ROCKSDB_FORMAT,
    BaseSnapshot,
    Handle,
    Segment,
)
from pyspark_ckpt.on_disk.storage_views import WorkerStorage
from pyspark_ckpt.operator.base_snapshot import fetch_files, open_fetched, read_base
from pyspark_ckpt.operator.local_snapshots import LocalSnapshots
from state_backends import (
    BackendResourceError,
    Changes,
    StateBackend,
    StateBackendError,
    open_backend,
)

_LOCK = "lock"
_PRIVATE = "private-"
_SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A subtask's backend and, beside it, an empty directory for the length of the epoch.

    A private copy goes when its attempt ends, with its snapshots. `is_rebuilt` tells that what was
    here could not be used, or was not here.
    """

    backend: StateBackend
    scratch: Path
    backend_type: str
    snapshots: LocalSnapshots
    is_private: bool
    is_rebuilt: bool


@contextmanager
def open_local_copy(
    directory: Path, backend_type: str, storage: WorkerStorage, handle: Handle | None
) -> Iterator[LocalCopy]:
    """Open a subtask's backend at exactly the version of `handle`.

    Called by a task on an executor, which holds the copy for the length of the context. Another
    attempt that holds it already is left alone: this one works on a private copy.

    Parameters
    ----------
    directory
        The subtask's place on this executor.
    backend_type
        One of :data:`state_backends.BACKEND_TYPES`.
    storage
        The query's checkpoints directory.
    handle
        What Spark committed; ``None`` for a subtask that has no state yet.

    Raises
    ------
    CorruptFileError
        If a durable file that is needed is missing or changed.
    """
    # Spark's own directory may be open to every user of the host.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _claimed(directory) as claimed:
        place = claimed / backend_type
        snapshots = LocalSnapshots(claimed)
        backend, is_rebuilt = _at_version(place, backend_type, storage, handle, snapshots)
        try:
            with backend, _scratch(claimed / _SCRATCH) as scratch:
                is_private = claimed != directory
                yield LocalCopy(backend, scratch, backend_type, snapshots, is_private, is_rebuilt)
        except BackendResourceError:
            raise  # which says nothing against the copy
        except StateBackendError:
            shutil.rmtree(place, ignore_errors=True)  # a damaged copy: the retry builds a new one
            snapshots.keep_only(())  # they share files with it
            raise


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    shutil.rmtree(directory, ignore_errors=True)  # of an attempt that was killed
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def subtask_directory(root: Path, query_id: str, uid: str, subtask: int) -> Path:
    """Return where an executor keeps its copy of a subtask."""
    operator = hashlib.sha256(uid.encode()).hexdigest()[:16]
    return root / "pyspark_ckpt" / query_id / operator / str(subtask)


def executor_local_root(subtask: int) -> Path:
    """Return the executor's own scratch directory for a subtask, spread over its disks.

    Spark makes it new for each executor process and deletes it at its end, so what lies there was
    never written by another boot of the host.
    """
    directories = (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")
    return Path(directories[subtask % len(directories)])


@contextmanager
def _claimed(directory: Path) -> Iterator[Path]:
    """Yield a directory that no other attempt uses: the subtask's own, or else a private one."""
    with (directory / _LOCK).open("wb") as lock:
        if _try_lock(lock):
            _sweep(directory)
            yield directory
            return
    while True:
        private = Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=directory))
        with (private / _LOCK).open("wb") as lock:
            if not _try_lock(lock):  # being swept already, for a moment it looked abandoned
                continue
            try:
                yield private
            finally:
                shutil.rmtree(private, ignore_errors=True)
            return


def _sweep(directory: Path) -> None:
    """Remove the private copies of attempts that were killed."""
    for lock_file in directory.glob(f"{_PRIVATE}*/{_LOCK}"):
        with lock_file.open("wb") as lock:
            if _try_lock(lock):
                shutil.rmtree(lock_file.parent, ignore_errors=True)


def _try_lock(lock: io.BufferedWriter) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _at_version(
    place: Path,
    backend_type: str,
    storage: WorkerStorage,
    handle: Handle | None,
    snapshots: LocalSnapshots,
) -> tuple[StateBackend, bool]:
    """Return the backend, and whether it had to be rebuilt from durable files."""
    base = None if handle is None else handle.base
    try:
        backend = _existing_at_version(place, backend_type, storage, handle)
        if backend is not None:
            return backend, False
    except BackendResourceError:
        raise  # it would not be any better for another copy
    except StateBackendError:  # a damaged copy is replaced like an outdated one
        snapshots.keep_only(() if base is None else {base.snapshot_id})  # it has digests
    if base is not None and base.format == ROCKSDB_FORMAT and backend_type == "rocksdb":
        assert handle is not None  # it has the base
        return _rebuild_natively(place, storage, handle, base, snapshots), True
    shutil.rmtree(place, ignore_errors=True)
    # The first segment goes into a new backend as it would into an empty one.
    had_more = handle is not None and (base is not None or len(handle.segments) > 1)
    return _rebuild(place, backend_type, storage, handle), had_more


def _existing_at_version(
    place: Path, backend_type: str, storage: WorkerStorage, handle: Handle | None
) -> StateBackend | None:
    """Open the copy that is there, ``None`` if there is none or it cannot come to the version."""
    if not place.is_dir():
        return None
    backend = open_backend(backend_type, place, create=False)
    try:
        if _catch_up(backend, storage, handle):
            return backend
    except BaseException:
        backend.close()
        raise
    backend.close()
    return None


def _catch_up(backend: StateBackend, storage: WorkerStorage, handle: Handle | None) -> bool:
    """Apply the segments that a copy lacks; ``False`` if it is not in the handle's lineage."""
    lineage = (EMPTY_VERSION,) if handle is None else handle.lineage
    version = backend.version()
    if version not in lineage:
        return False
    if version == EMPTY_VERSION and lineage[-1] != EMPTY_VERSION:
        # Built anew it costs no more, and RocksDB has no tiny oldest file, for whose sake it would
        # soon rewrite all others.
        return False
    if handle is not None and version != handle.version:
        missing = handle.segments[lineage.index(version) :]
        backend.apply(segment_changes(storage, missing), handle.version)
    return True


def _rebuild(
    place: Path, backend_type: str, storage: WorkerStorage, handle: Handle | None
) -> StateBackend:
    with _whole_or_gone(place):
        backend = open_backend(backend_type, place, create=True)
        try:
            if handle is None:
                backend.load((), EMPTY_VERSION)
            else:
                scratch = place.parent / _SCRATCH
                scratch.mkdir(exist_ok=True)
                backend.load(_all_changes(storage, handle, scratch), handle.version)
        except BaseException:
            with suppress(StateBackendError):
                backend.close()
            raise
    return backend


@contextmanager
def _whole_or_gone(directory: Path) -> Iterator[None]:
    """Remove what was begun if it fails: half a copy is of no use, least of all on a full disk."""
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _rebuild_natively(
    place: Path,
    storage: WorkerStorage,
    handle: Handle,
    base: BaseSnapshot,
    snapshots: LocalSnapshots,
) -> StateBackend:
    """Build a database from the files of a snapshot, fetching those that are not here."""
    here = [path for path in (*place.glob("*"), *snapshots.all_files()) if path.is_file()]
    kept = snapshots.keep_base(base, handle, lambda files: fetch_files(storage, base, files, here))
    building = place.with_name(f"{place.name}.new")
    shutil.rmtree(building, ignore_errors=True)  # of an attempt that was killed
    with _whole_or_gone(building):
        kept.copy_to(building)
    shutil.rmtree(place, ignore_errors=True)
    building.rename(place)
    backend = open_fetched(place, base)
    try:
        is_at_version = _catch_up(backend, storage, handle)
        assert is_at_version  # the base is the first of the lineage
    except BaseException:
        backend.close()
        raise
    return backend


def _all_changes(storage: WorkerStorage, handle: Handle, directory: Path) -> Iterator[Changes]:
    if handle.base is not None:
        yield from read_base(storage, handle.base, directory)
    yield from segment_changes(storage, handle.segments)


def segment_changes(storage: WorkerStorage, segments: Sequence[Segment]) -> Iterator[Changes]:
    """Yield the puts and deletes of segments in their order, each checked by its digest."""
    for segment in segments:
        if segment.inline is not None:
            name = f"inline segment {segment.version}"
            yield from decode_changes(io.BytesIO(segment.inline), name)
        else:
            assert segment.file is not None  # a segment is inline or in a file
            with storage.open_verified(segment.file) as file:
                yield from decode_changes(file, segment.file.path)
