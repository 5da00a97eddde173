"""The table of backends: their names, and how the files of their snapshots are stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from state_backends.backend import StateBackend
from state_backends.rocksdb_format import RocksDBFormat
from state_backends.snapshot_format import SnapshotFormat


class _Opener(Protocol):
    """Imports a backend's module when it is called, so a worker loads only the library it uses."""

    def __call__(self, directory: Path, *, create: bool, read_only: bool) -> StateBackend: ...


@dataclass(frozen=True, slots=True)
class _Backend:
    """A row of the table; `open` is asked to open read only if there is a snapshot format."""

    open: _Opener
    snapshot_format: SnapshotFormat | None = None


def _open_rocksdb(directory: Path, *, create: bool, read_only: bool) -> StateBackend:
    from state_backends.rocksdb import RocksDBBackend

    return RocksDBBackend(directory, create=create, read_only=read_only)


def _open_heap(directory: Path, *, create: bool, read_only: bool) -> StateBackend:  # noqa: ARG001
    from state_backends.heap import HeapBackend

    return HeapBackend(directory, create=create)


_BACKENDS = {
    "rocksdb": _Backend(_open_rocksdb, RocksDBFormat()),
    "heap": _Backend(_open_heap),
}

BACKEND_TYPES = tuple(_BACKENDS)
"""The names of the backends, as a user sets them."""


def open_backend(
    backend_type: str, directory: Path, *, create: bool, read_only: bool = False
) -> StateBackend:
    """Open the backend of type `backend_type` in `directory`.

    Parameters
    ----------
    backend_type
        One of :data:`BACKEND_TYPES`.
    directory
        A local directory that only this backend uses.
    create
        ``True`` makes a new, empty backend and needs an empty or missing directory.
        ``False`` opens an existing backend and never makes an empty one in its place.
    read_only
        Open an existing backend without its lock, in half the time: no file is written and nothing
        is compacted. Only a backend with a snapshot format supports it.

    Returns
    -------
    StateBackend
        The open backend; the caller closes it.

    Raises
    ------
    BackendCorruptError
        If `create` is false and there is no readable backend in `directory`.
    BackendLockedError
        If another process has the directory open.
    ValueError
        If `backend_type` is unknown, `create` meets files, or the backend cannot be read only.
    """
    if create and read_only:
        raise ValueError("a new backend cannot be read only")
    if create and directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty: a new backend needs an empty directory")
    backend = _BACKENDS.get(backend_type)
    if backend is None:
        raise ValueError(f"unknown backend type {backend_type!r}: use one of {BACKEND_TYPES}")
    if read_only and backend.snapshot_format is None:
        raise ValueError(f"a {backend_type} backend cannot be opened read only")
    return backend.open(directory, create=create, read_only=read_only)


def open_temporary(directory: Path) -> StateBackend:
    """Open a new backend for temporary data that may be too large for memory.

    Parameters
    ----------
    directory
        An empty or missing local directory; the caller removes it.
    """
    return open_backend("rocksdb", directory, create=True)


def snapshot_format_of(backend_type: str) -> SnapshotFormat | None:
    """Return the format of a backend's own snapshot files.

    Parameters
    ----------
    backend_type
        One of :data:`BACKEND_TYPES`.

    Returns
    -------
    SnapshotFormat or None
        ``None`` if the backend's snapshots are stored as change files.
    """
    return _BACKENDS[backend_type].snapshot_format


def find_snapshot_format(name: str) -> SnapshotFormat | None:
    """Return the snapshot format of that name, ``None`` if no backend has it."""
    found = _backend_with_format(name)
    return None if found is None else _BACKENDS[found].snapshot_format


def open_snapshot(format_name: str, directory: Path, *, read_only: bool = False) -> StateBackend:
    """Open the files of a snapshot as the backend that they belong to.

    Parameters
    ----------
    format_name
        The name of the snapshot format.
    directory
        The directory of the files.
    read_only
        Leave the files as they are. Otherwise they become the backend's own.

    Returns
    -------
    StateBackend
        The open backend; the caller closes it.

    Raises
    ------
    BackendCorruptError
        If the files are not a readable backend.
    ValueError
        If no backend has the format.
    """
    backend_type = _backend_with_format(format_name)
    if backend_type is None:
        raise ValueError(f"no backend has the snapshot format {format_name!r}")
    return open_backend(backend_type, directory, create=False, read_only=read_only)


def _backend_with_format(name: str) -> str | None:
    for backend_type, backend in _BACKENDS.items():
        if backend.snapshot_format is not None and backend.snapshot_format.name == name:
            return backend_type
    return None
