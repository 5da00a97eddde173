"""The local copy of a subtask's state, brought to the version that a handle names.

A local copy is a cache on the executor. An epoch's own writes are not applied before the next
epoch's handle confirms them, so a retry, a speculative twin or a second action of ``foreachBatch``
finds the copy at the version that it needs.

==================================================  ==============================================
The copy's version                                  What is done
==================================================  ==============================================
is in the handle's lineage                          the segments that follow are applied
is in the lineage, and a part of what follows is    the segments that follow are applied again
applied, because a process was killed
is any other                                        the copy is rebuilt from durable files
==================================================  ==============================================

A task that has opened its own copy looks now and then for others to remove. A copy is in use while
a lock in its directory is held. Tasks claim a copy while they hold the door open, and a copy is
moved away while the door is shut, so no copy is moved away that a task is claiming. A removal costs
only time, because the copy is a cache.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import io
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

from pyspark_ckpt.formats.handle import EMPTY_VERSION, BaseSnapshot, Handle, Segment
from pyspark_ckpt.gathering import gathered
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshots, directories_of_all
from pyspark_ckpt.operator.durable.stored_files import (
    fetch_files,
    open_fetched,
    read_base,
    segment_changes,
)
from pyspark_ckpt.storage.base import WorkerStorage
from state_backends import (
    BackendCorruptError,
    BackendResourceError,
    SnapshotFormat,
    StateBackend,
    StateBackendError,
    open_backend,
    snapshot_format_of,
)

_PRIVATE = "private-"
_SCRATCH = "scratch"

_GROUP_BYTES = 64 << 20
"""Segments of about 64 MiB are applied together: a kill loses the work of one group at most."""

LOCK = "lock"
_DOOR = "door"
_LOOKED = "looked"
_REMOVED = "removed-"
logger = library_logger(__name__)


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A subtask's backend, and an empty directory for the length of the epoch.

    A private copy is removed with its snapshots when its attempt ends. `is_rebuilt` says that there
    was no usable copy before.
    """

    backend: StateBackend
    scratch: Path
    backend_type: str
    snapshots: LocalSnapshots
    is_private: bool
    is_rebuilt: bool


@contextmanager
def open_local_copy(
    directory: Path,
    backend_type: str,
    storage: WorkerStorage,
    handle: Handle | None,
    root: Path | None = None,
) -> Iterator[LocalCopy]:
    """Open a subtask's backend at exactly the version of `handle`.

    Called by a task on an executor, which holds the copy for the length of the context. Another
    attempt that holds it already is left alone: this one works on a private copy.

    `handle` is ``None`` for a subtask that has no state yet. If `root` is given, unused local
    copies below it are removed, and a copy that is rebuilt shares files with the snapshots of
    others there.
    """
    with _claimed(directory, root) as claimed:
        place = claimed / backend_type
        snapshots = LocalSnapshots(claimed)
        scratch_place = claimed / _SCRATCH
        backend, is_rebuilt = at_version(
            place, backend_type, storage, handle, snapshots, scratch_place, root
        )
        try:
            with backend, _scratch(scratch_place) as scratch:
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
    return copies_root(root) / query_id / operator / str(subtask)


def copies_root(local_root: Path) -> Path:
    """Return the directory of all local copies on one of an executor's disks."""
    return local_root / "pyspark_ckpt"


def executor_local_root(subtask: int) -> Path:
    """Return the executor's own scratch directory for a subtask, spread over its disks.

    Spark makes it new for each executor process and deletes it at its end, so what lies there was
    never written by another boot of the host.
    """
    directories = (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")
    return Path(directories[subtask % len(directories)])


@contextmanager
def _claimed(directory: Path, root: Path | None) -> Iterator[Path]:
    """Yield a directory that no other attempt uses: the subtask's own, or else a private one."""
    with ExitStack() as held:
        with nullcontext() if root is None else door_open(root):
            # Spark's own directory may be open to every user of the host.
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            claimed = _claim(directory, held)
        yield claimed


def _claim(directory: Path, held: ExitStack) -> Path:
    lock = held.enter_context((directory / LOCK).open("ab"))
    if _try_lock(lock):
        note_opened(directory)
        _sweep(directory)
        return directory
    while True:
        private = Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=directory))
        lock = held.enter_context((private / LOCK).open("ab"))
        if _try_lock(lock) and _is_at(lock, private / LOCK):
            held.callback(shutil.rmtree, private, ignore_errors=True)
            return private

        # It is being swept, or was swept: for a moment it looked abandoned.


def _sweep(directory: Path) -> None:
    """Remove the private copies of attempts that were killed."""
    for private in directory.glob(f"{_PRIVATE}*"):
        # Its attempt may end, and remove it, in any moment of this.
        with suppress(FileNotFoundError), (private / LOCK).open("r+b") as lock:
            if _try_lock(lock):
                shutil.rmtree(private, ignore_errors=True)


def _is_at(lock: io.BufferedWriter, path: Path) -> bool:
    """Return whether a lock that was taken is still that of `path`, not of a file removed since."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _try_lock(lock: io.BufferedIOBase) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def at_version(
    place: Path,
    backend_type: str,
    storage: WorkerStorage,
    handle: Handle | None,
    snapshots: LocalSnapshots,
    scratch: Path,
    root: Path | None = None,
) -> tuple[StateBackend, bool]:
    """Return the backend, and whether it had to be rebuilt from durable files.

    `handle` is ``None`` for a subtask that has no state yet. `scratch` is made if it does not
    exist.
    """
    base = None if handle is None else handle.base
    try:
        if snapshots.is_any_damaged():  # it shares its files with the local copy
            raise BackendCorruptError(f"a snapshot next to {place} is damaged")
        backend = _existing_at_version(place, backend_type, storage, handle)
        if backend is not None:
            return backend, False
    except BackendResourceError:
        raise  # it would not be any better for another copy
    except StateBackendError:  # a damaged copy is replaced like an outdated one
        snapshots.keep_only(() if base is None else {base.snapshot_id})  # it has digests
    own = snapshot_format_of(backend_type)
    if base is not None and own is not None and base.format == own.name:
        assert handle is not None  # it has the base
        return _rebuild_from_files(place, storage, handle, base, own, snapshots, root), True
    shutil.rmtree(place, ignore_errors=True)
    # The first segment goes into a new backend as it would into an empty one.
    had_more = handle is not None and (base is not None or len(handle.segments) > 1)
    return _rebuild(place, backend_type, storage, handle, scratch), had_more


def _existing_at_version(
    place: Path, backend_type: str, storage: WorkerStorage, handle: Handle | None
) -> StateBackend | None:
    """Open the existing copy; ``None`` without one, or if it cannot get to the version."""
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
    version = _complete_version(backend, lineage)
    if version is None:
        return False
    if version == EMPTY_VERSION and lineage[-1] != EMPTY_VERSION:
        # A rebuild costs no more. It leaves RocksDB no tiny oldest file, because of which RocksDB
        # would soon rewrite all other files.
        return False
    if handle is not None:
        for group in _groups(handle.segments[lineage.index(version) :]):
            backend.apply(segment_changes(storage, group), group[-1].version)
    return True


def _complete_version(backend: StateBackend, lineage: Sequence[str]) -> str | None:
    """Return the version of a lineage that a copy has, perhaps with a part of what follows.

    A part of what follows does no harm if all of that is applied once more: segments never change,
    so each of them puts and deletes the same entries again.
    """
    version = backend.version()
    half = backend.half_applied()
    if half is not None and half.before in lineage:
        follows = lineage[lineage.index(half.before) + 1 :]
        version = half.before if half.after in follows else None
    return version if version in lineage else None


def _groups(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Divide segments into groups that are each worth a separate step."""
    return gathered(segments, _GROUP_BYTES, attrgetter("size_bytes"))


def _rebuild(
    place: Path, backend_type: str, storage: WorkerStorage, handle: Handle | None, scratch: Path
) -> StateBackend:
    with _whole_or_gone(place):
        backend = open_backend(backend_type, place, create=True)
        try:
            _fill(backend, storage, handle, scratch)
        except BaseException:
            with suppress(StateBackendError):
                backend.close()
            raise
    return backend


def _fill(
    backend: StateBackend, storage: WorkerStorage, handle: Handle | None, scratch: Path
) -> None:
    groups = _groups(() if handle is None else handle.segments)
    if handle is not None and handle.base is not None:
        scratch.mkdir(exist_ok=True)
        backend.load(read_base(storage, handle.base, scratch), handle.base.version)
    elif (first := next(groups, None)) is not None:
        backend.load(segment_changes(storage, first), first[-1].version)
    else:
        backend.load((), EMPTY_VERSION)
    for group in groups:
        backend.apply(segment_changes(storage, group), group[-1].version)


@contextmanager
def _whole_or_gone(directory: Path) -> Iterator[None]:
    """Remove an incomplete directory after a failure, because it may have filled the disk."""
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _rebuild_from_files(
    place: Path,
    storage: WorkerStorage,
    handle: Handle,
    base: BaseSnapshot,
    own: SnapshotFormat,
    snapshots: LocalSnapshots,
    root: Path | None,
) -> StateBackend:
    """Build a backend from the files of its snapshot; fetch the files that are not here.

    The query that a fork comes from, or the subtask that it had before a rescale, may have them.
    """
    here = [path for path in (*place.glob("*"), *snapshots.all_files()) if path.is_file()]
    others: Callable[[], list[Path]] = list if root is None else partial(directories_of_all, root)
    kept = snapshots.keep_base(
        base, handle, lambda files: fetch_files(storage, base, own, files, here, others)
    )
    building = place.with_name(f"{place.name}.new")
    shutil.rmtree(building, ignore_errors=True)  # of an attempt that was killed
    with _whole_or_gone(building):
        kept.copy_to(building, own)
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


@dataclass(frozen=True, slots=True)
class Keeping:
    """The rules by which copies stay that no task opens.

    A copy that was opened within `shortest_s` stays in any case, and a copy that was not opened for
    `longest_s` is removed. Of the copies between the two, the longest unused ones are removed until
    the rest has at most `most_bytes` together.
    """

    longest_s: float = 3600.0
    shortest_s: float = 600.0
    most_bytes: int = 10 << 30
    every_s: float = 60.0


KEEPING = Keeping()


@contextmanager
def door_open(root: Path) -> Iterator[None]:
    """Keep copies below `root` from being moved away while one of them is claimed."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (root / _DOOR).open("ab") as door:
        fcntl.flock(door, fcntl.LOCK_SH)
        yield


def remove_unused(root: Path, keeping: Keeping = KEEPING) -> list[Path]:
    """Remove copies that are not in use, by age and size; return where they were.

    Does nothing if there was a look not long ago, in any process. Files are deleted in a thread.

    `root` holds the local copies as ``<query id>/<operator>/<subtask>``.
    """
    try:
        with (root / _DOOR).open("ab") as door:
            fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_time(root, keeping):
                return []
            moved = [
                (copy.directory, away)
                for copy in _to_remove(root, keeping)
                if (away := _moved_away(root, copy.directory)) is not None
            ]
    except BlockingIOError:  # another process claims a copy, or looks for unused copies
        return []
    except OSError as exc:
        logger.warning("unused local copies below %s could not be removed: %s", root, exc)
        return []
    # What an earlier process left of a deletion goes too.
    left = list(root.glob(f"{_REMOVED}*"))
    if left:
        threading.Thread(target=_delete, args=(left,), name="pyspark_ckpt removal").start()
    return [directory for directory, _ in moved]


@dataclass(frozen=True, slots=True)
class _Copy:
    directory: Path
    opened_s: float


def _is_time(root: Path, keeping: Keeping) -> bool:
    looked = root / _LOOKED
    with suppress(FileNotFoundError):
        if 0 <= time.time() - looked.stat().st_mtime < keeping.every_s:
            return False
    looked.touch()
    return True


def _to_remove(root: Path, keeping: Keeping) -> list[_Copy]:
    """Return copies that are too old, and those that are too much, longest unused first."""
    now_s = time.time()
    unused = []
    # `glob.glob` and `os.walk`, because those of pathlib fail if a directory is removed
    # while they walk: attempts remove their private copies, and threads what was moved away.
    for name in glob.glob(f"*/*/*/{LOCK}", root_dir=root):  # noqa: PTH207
        if name.startswith(_REMOVED):
            continue
        lock = root / name
        with suppress(FileNotFoundError):
            copy = _Copy(lock.parent, lock.stat().st_mtime)
            if now_s - copy.opened_s >= keeping.shortest_s:
                unused.append(copy)
    unused.sort(key=lambda copy: copy.opened_s)
    sizes = [_size_bytes(copy.directory) for copy in unused]
    remaining = sum(sizes)
    chosen = []
    for copy, size in zip(unused, sizes, strict=True):
        if now_s - copy.opened_s >= keeping.longest_s or remaining > keeping.most_bytes:
            chosen.append(copy)
            remaining -= size
    return chosen


def _size_bytes(directory: Path) -> int:
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                size += Path(parent, name).lstat().st_blocks * 512  # the heap's are sparse
    return size


def _moved_away(root: Path, directory: Path) -> Path | None:
    """Move a copy out of the way at once, ``None`` if it is in use; the door is shut."""
    away = root / f"{_REMOVED}{secrets.token_hex(8)}"
    with ExitStack() as held:
        locks = [Path(at, LOCK) for at, _, names in os.walk(directory) if LOCK in names]
        if not all(_is_free(lock, held) for lock in locks):
            return None
        directory.rename(away)
    for parent in (directory.parent, directory.parent.parent):
        with suppress(OSError):
            parent.rmdir()  # if it is empty
    return away


def _is_free(lock: Path, held: ExitStack) -> bool:
    """Take a lock; return whether it was free."""
    try:
        file = held.enter_context(lock.open("ab"))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True


def _delete(directories: list[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def note_opened(directory: Path) -> None:
    """Note that a copy was opened just now; called by the holder of its lock."""
    os.utime(directory / LOCK)
