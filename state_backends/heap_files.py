"""The files of a heap backend; imports no LMDB."""

from __future__ import annotations

import os
from pathlib import Path

from state_backends.errors import BackendCorruptError

DATA_FILE = "data.mdb"
SIZE_FILE = "size"
"""A file with the smallest size that the data file may have."""

MAX_READERS = 1024
_LOCK_FILE = "lock.mdb"
_LOCK_FILE_BYTES = MAX_READERS * 64 + 4096
"""A cache line for each reader, and a header."""

_ALMOST_FULL_BYTES = 1 << 20


def allocate_lock_file(directory: Path) -> None:
    """Allocate the lock file now.

    LMDB writes the file through its map, and on a full disk such a write would kill the process.
    """
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_FILE_BYTES)
    finally:
        os.close(descriptor)


def is_full(directory: Path) -> bool:
    """Return whether the disk is almost full."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize < _ALMOST_FULL_BYTES


def write_size(directory: Path, file: Path | None = None) -> None:
    """Note the size of a file, by default of the directory's data file."""
    size = (file or directory / DATA_FILE).stat().st_size
    descriptor = os.open(directory / SIZE_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, b"%020d" % size, 0)  # one small write: a kill cannot split it
    finally:
        os.close(descriptor)


def check_size(directory: Path) -> None:
    """Refuse a data file that was cut, because reading a missing page would kill the process.

    LMDB's page count does not help, because it counts pages that were never written.

    Raises
    ------
    BackendCorruptError
        If the data file is missing or smaller than the noted size.
    """
    try:
        recorded = int((directory / SIZE_FILE).read_text())
        size = (directory / DATA_FILE).stat().st_size
    except (FileNotFoundError, NotADirectoryError, ValueError) as exc:
        raise BackendCorruptError(f"there is no whole LMDB file in {directory}") from exc
    if size < recorded or size == 0:
        raise BackendCorruptError(
            f"the heap state in {directory} has {size} bytes, but {recorded} were written"
        )
