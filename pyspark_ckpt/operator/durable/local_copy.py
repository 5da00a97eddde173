"""The local copy of a subtask's state, at the version that a handle names.

A local copy is a cache on the executor. An epoch's own writes are not applied before the next
epoch's handle confirms them, so a retry, a speculative twin or a second action of ``foreachBatch``
finds the copy at the version that it needs.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshots
from pyspark_ckpt.operator.durable.local_version import at_version
from pyspark_ckpt.operator.durable.unused_copies import LOCK, door_open, note_opened
from pyspark_ckpt.storage.base import WorkerStorage
from state_backends import (
    BackendResourceError,
    StateBackend,
    StateBackendError,
)

_PRIVATE = "private-"
_SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A subtask's backend and, beside it, an empty directory for the length of the epoch.

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
