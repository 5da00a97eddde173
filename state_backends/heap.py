"""The heap backend: state in memory pages shared by all workers of a host. The only module that
imports lmdb.

LMDB maps its file into memory and is never synced, so the pages live in the page cache (or in
memory for good, when the directory is on a memory-backed file system). Every Python worker of the
executor sees the same single copy, and an epoch costs in proportion to the keys it touches.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb

from state_backends.backend import FIRST_RESERVED_KEY, VERSION_KEY, Changes, StateBackend
from state_backends.errors import (
    BackendCorruptError,
    BackendFullError,
    BackendResourceError,
    StateBackendError,
)

MAP_SIZE_BYTES = 1 << 38
"""Address space reserved per subtask; pages are taken only as they are written."""

_DATA_FILE = "data.mdb"
_LOCK_FILE = "lock.mdb"
_MAX_READERS = 1024
_LOCK_FILE_BYTES = _MAX_READERS * 64 + 4096
"""A cache line for each reader, and a head."""
_SIZE_FILE = "size"
"""Holds the size of the data file, which never shrinks."""

_HEAD_BYTES = 448
_STORED_LONG_KEY_BYTES = _HEAD_BYTES + 32
_LENGTH = struct.Struct(">I")
_ALMOST_FULL_BYTES = 1 << 20
_NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class HeapBackend(StateBackend):
    """One subtask's state in a memory-mapped LMDB environment.

    LMDB refuses keys over 511 bytes. A key of :data:`_HEAD_BYTES` or more is stored as its head
    and its SHA-256, with the whole key in front of the value; shorter keys are stored as they are.
    """

    def __init__(self, directory: Path, *, create: bool) -> None:
        self._directory = directory
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        else:
            _check_size(directory)
        with self._translated("open"):
            _allocate_lock_file(directory)
            self._env: lmdb.Environment | None = lmdb.open(
                str(directory),
                map_size=MAP_SIZE_BYTES,
                create=create,
                sync=False,
                metasync=False,
                meminit=False,
                readahead=False,
                max_readers=_MAX_READERS,
            )
            try:
                self._env.reader_check()
                if create:
                    _write_size(self._directory)
            except BaseException:
                self.close()  # not only once nobody holds the error any more
                raise

    def version(self) -> str | None:
        with self._translated("read"), self._environment.begin() as transaction:
            marker = transaction.get(VERSION_KEY)
        return None if marker is None else marker.decode()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._translated("read"), self._environment.begin() as transaction:
            return [_value(key, transaction.get(_stored_key(key))) for key in keys]

    def scan(self, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        first = max(prefix, start)
        with self._translated("scan"), self._environment.begin() as transaction:
            cursor = transaction.cursor()
            if not cursor.set_range(first[:_HEAD_BYTES]):
                return
            for key, value in _in_key_order(cursor.iternext(keys=True, values=True)):
                if key >= FIRST_RESERVED_KEY:
                    return
                if key < first:
                    continue
                if not key.startswith(prefix):
                    return
                yield key, value

    def apply(self, changes: Iterable[Changes], version: str) -> None:
        with self._translated("write"), self._environment.begin(write=True) as transaction:
            for part in changes:
                for key, value in zip(part.keys, part.values, strict=True):
                    if value is None:
                        transaction.delete(_stored_key(key))
                    else:
                        transaction.put(_stored_key(key), _stored_value(key, value))
            transaction.put(VERSION_KEY, version.encode())
        with self._translated("write"):
            _write_size(self._directory)

    def load(self, changes: Iterable[Changes], version: str) -> None:
        # One transaction: LMDB spills dirty pages to its map, so memory stays bounded all the same.
        self.apply(changes, version)

    def snapshot_files(self, directory: Path) -> list[str]:
        directory.mkdir()
        with self._translated("snapshot"):
            self._environment.copy(str(directory))
            _write_size(directory)
        return [_DATA_FILE, _SIZE_FILE]

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    @property
    def _environment(self) -> lmdb.Environment:
        if self._env is None:
            raise StateBackendError(f"the heap backend in {self._directory} is closed")
        return self._env

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """Turn lmdb's exceptions into typed ones that name the directory."""
        try:
            yield
        except (lmdb.MapFullError, lmdb.DiskError) as exc:
            raise _full(self._directory, exc) from exc
        except OSError as exc:
            if exc.errno in _NO_RESOURCES:
                raise _no_resources(self._directory, exc) from exc
            if exc.errno == errno.ENOSPC:
                raise _full(self._directory, exc) from exc
            raise
        except lmdb.Error as exc:
            if any(os.strerror(number) in str(exc) for number in _NO_RESOURCES):
                raise _no_resources(self._directory, exc) from exc
            if os.strerror(errno.EIO) in str(exc) and _is_full(self._directory):
                raise _full(self._directory, exc) from exc  # LMDB's word for a short write
            raise BackendCorruptError(f"LMDB could not {action} {self._directory}: {exc}") from exc


def _allocate_lock_file(directory: Path) -> None:
    """Take the room of the lock file now: LMDB writes it through its map, and a page for which a
    full disk has no room would kill the process.
    """
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_FILE_BYTES)
    finally:
        os.close(descriptor)


def _is_full(directory: Path) -> bool:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize < _ALMOST_FULL_BYTES


def _full(directory: Path, error: Exception) -> BackendFullError:
    return BackendFullError(
        f"the heap backend has no room left in {directory} ({error}): free space there or use the "
        "rocksdb backend"
    )


def _no_resources(directory: Path, error: Exception) -> BackendResourceError:
    return BackendResourceError(
        f"the heap backend in {directory} got no file descriptor or memory ({error}): raise the "
        "limit (ulimit)"
    )


def _write_size(directory: Path) -> None:
    size = (directory / _DATA_FILE).stat().st_size
    descriptor = os.open(directory / _SIZE_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, b"%020d" % size, 0)  # one small write: a kill cannot split it
    finally:
        os.close(descriptor)


def _check_size(directory: Path) -> None:
    """Refuse a file that was cut: reading pages that it lacks would kill the process.

    LMDB's own page count is no measure of it, since pages may be counted and never written.
    """
    try:
        recorded = int((directory / _SIZE_FILE).read_text())
        size = (directory / _DATA_FILE).stat().st_size
    except (OSError, ValueError) as exc:
        if isinstance(exc, OSError) and exc.errno in _NO_RESOURCES:
            raise _no_resources(directory, exc) from exc
        raise BackendCorruptError(f"there is no whole LMDB file in {directory}") from exc
    if size < recorded or size == 0:
        raise BackendCorruptError(
            f"the heap state in {directory} has {size} bytes, {recorded} were written"
        )


def _stored_key(key: bytes) -> bytes:
    if len(key) < _HEAD_BYTES:
        return key
    return key[:_HEAD_BYTES] + hashlib.sha256(key).digest()


def _stored_value(key: bytes, value: bytes) -> bytes:
    if len(key) < _HEAD_BYTES:
        return value
    return _LENGTH.pack(len(key)) + key + value


def _value(key: bytes, stored: bytes | None) -> bytes | None:
    if stored is None or len(key) < _HEAD_BYTES:
        return stored
    return stored[_LENGTH.size + len(key) :]


def _in_key_order(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Give long keys back whole and in order; those that share a head are sorted in memory."""
    head: bytes | None = None
    run: list[tuple[bytes, bytes]] = []
    for stored_key, stored_value in pairs:
        is_long = len(stored_key) == _STORED_LONG_KEY_BYTES
        if run and not (is_long and stored_key[:_HEAD_BYTES] == head):
            yield from sorted(run)
            run = []
        if is_long:
            head = stored_key[:_HEAD_BYTES]
            end = _LENGTH.size + _LENGTH.unpack_from(stored_value)[0]
            run.append((stored_value[_LENGTH.size : end], stored_value[end:]))
        else:
            yield stored_key, stored_value
    yield from sorted(run)
