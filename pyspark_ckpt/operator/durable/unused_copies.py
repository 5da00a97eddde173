"""Local copies that no task opens any more: of ended queries, and of subtasks that moved away.

A task that has opened its own copy looks now and then for others to remove. A copy is in use while
a lock in its directory is held. Tasks claim a copy while they hold the door open, and a copy is
moved away while the door is shut, so no copy is moved away that a task is claiming. A removal costs
only time, because the copy is a cache.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark_ckpt.log_fields import library_logger

LOCK = "lock"
_DOOR = "door"
_LOOKED = "looked"
_REMOVED = "removed-"

logger = library_logger(__name__)


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
    # `glob.glob` and `os.walk`, because those of pathlib fail where a directory goes meanwhile:
    # private copies go with their attempts, and threads delete what was removed before.
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
