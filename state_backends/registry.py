"""The backends by the name a user sets in the conf."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from state_backends.backend import StateBackend

BackendType = Literal["rocksdb", "heap"]

BACKEND_TYPES: tuple[BackendType, ...] = ("rocksdb", "heap")


def open_backend(
    backend_type: str, directory: Path, *, create: bool, read_only: bool = False
) -> StateBackend:
    """Open the backend of type `backend_type` in `directory`.

    Parameters
    ----------
    backend_type
        One of :data:`BACKEND_TYPES`.
    directory
        A local directory used by this backend alone.
    create
        ``True`` makes a new, empty backend and needs an empty or missing directory;
        ``False`` opens an existing one and never makes an empty one in its place.
    read_only
        Opens an existing RocksDB one without its lock, in half the time: no file is written, and
        nothing is compacted meanwhile.

    Raises
    ------
    BackendCorruptError
        If `create` is false and there is no readable backend in `directory`.
    BackendLockedError
        If another process has the directory open.
    ValueError
        If `backend_type` is unknown, `create` meets files, or `read_only` another backend.
    """
    if create and read_only:
        raise ValueError("a backend that is to be made cannot be read only")
    if create and directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty: a new backend needs a directory of its own")
    # Imported here so that a worker loads only the native library it uses.
    if backend_type == "rocksdb":
        from state_backends.rocksdb import RocksDBBackend

        return RocksDBBackend(directory, create=create, read_only=read_only)
    if read_only:
        raise ValueError(f"a {backend_type} backend cannot be opened to be read only")
    if backend_type == "heap":
        from state_backends.heap import HeapBackend

        return HeapBackend(directory, create=create)
    raise ValueError(f"unknown backend type {backend_type!r}: allowed are {BACKEND_TYPES}")


def check_database_file(path: Path) -> None:
    """Read a file of a RocksDB snapshot to its end and compare all of it with its checksums.

    Parameters
    ----------
    path
        An immutable file, to which a hard link is made beside its directory for a while.

    Raises
    ------
    BackendCorruptError
        If a byte was changed. Changes of a filter alone are not found; RocksDB does without it.
    """
    from state_backends.rocksdb import check_file

    check_file(path)
