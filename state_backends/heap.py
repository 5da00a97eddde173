"""The heap backend: state in memory pages shared by all workers of a host. The only module that
imports lmdb.

LMDB maps its file into memory and is never synced, so the pages live in the page cache (or in
memory for good, when the directory is on a memory-backed file system). Every Python worker of the
executor sees the same single copy, and an epoch costs in proportion to the keys it touches.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import GEN_CLOSED, getgeneratorstate
from pathlib import Path
from typing import NoReturn, cast
from weakref import WeakSet

import lmdb

from state_backends.backend import (
    FIRST_RESERVED_KEY,
    STEP_BYTES,
    VERSION_KEY,
    Changes,
    StateBackend,
)
from state_backends.errors import (
    BackendCorruptError,
    BackendFullError,
    BackendResourceError,
    StateBackendError,
)
from state_backends.heap_entries import (
    HEAD_BYTES,
    DamagedEntryError,
    check,
    check_all,
    in_key_order,
    opened,
    opened_all,
    sealed,
    sealed_all,
    stored_key,
)
from state_backends.heap_files import (
    DATA_FILE,
    MAX_READERS,
    SIZE_FILE,
    allocate_lock_file,
    check_size,
    is_full,
    write_size,
)

MOST_MAP_BYTES = 1 << 42
"""Largest address space of a state."""

ROOM_BYTES = 1 << 30
"""Address space beyond the file; it grows before a transaction could use it up."""

LEAST_ROOM_BYTES = 32 << 20
"""The same in a process whose address space is limited; it grows with the limit."""

_ROOM_SHARE = 16
_STEP_ENTRIES = 20_000
"""Most entries of a transaction: each may change one or two pages of 4 KiB."""

_ENTRY_ROOM_BYTES = 4 * 4096

_SPARSE_BYTES = 64 << 20
_SPARSE_TIMES = 4
"""A file of so many bytes, and so many times its used pages, is rewritten without free pages."""

_NEW = "new"
"""A directory for the file that replaces the old one."""

_AFTER_ALL = b"\xff" * 512

_OF_LMDB = (DamagedEntryError, OSError, lmdb.Error)

_NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class HeapBackend(StateBackend):
    """One subtask's state in a memory-mapped LMDB environment.

    Each entry has a checksum (:mod:`state_backends.heap_entries`). If a key is not found, its two
    neighbours are checked, because a changed byte may hide an entry.
    """

    def __init__(self, directory: Path, *, create: bool) -> None:
        self._directory = directory
        self._open_scans: WeakSet[Generator[tuple[bytes, bytes], None, None]] = WeakSet()
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        with self._translated("open"):
            if not create:
                check_size(directory)
            allocate_lock_file(directory)
            self._env: lmdb.Environment | None = _open(directory, create=create)
            try:
                self._env.reader_check()
                if create:
                    write_size(self._directory)
            except BaseException:
                self.close()  # now, not when the error is garbage-collected
                raise

    def marker(self) -> bytes | None:
        return self.get_many([VERSION_KEY])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if len(keys) == 1:
            return [self._get(keys[0])]
        is_short = max(map(len, keys), default=0) < HEAD_BYTES
        under = list(keys) if is_short else list(map(stored_key, keys))
        with self._translated("read"), self._environment.begin() as transaction:
            found = list(map(transaction.get, under))
            if None not in found:
                check_all(under, cast("list[bytes]", found))
                if is_short:
                    return cast("list[bytes | None]", opened_all(cast("list[bytes]", found)))
            else:
                _check_missing(transaction, under, found)
                check_all(*_present(under, found))
        return [
            None if stored is None else opened(key, stored)
            for key, stored in zip(keys, found, strict=True)
        ]

    def _get(self, key: bytes) -> bytes | None:
        """Return one entry, in a third of the time of a call for several."""
        under = stored_key(key)
        try:  # a context manager takes as long as the rest of it
            with self._environment.begin() as transaction:
                stored = transaction.get(under)
                if stored is None:
                    _check_missing(transaction, [under], [None])
                    return None
                check(under, stored)
                return opened(key, stored)
        except _OF_LMDB as exc:
            self._raise_typed("read", exc)

    def scan(self, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        scan = self._scan(prefix, start)
        self._open_scans.add(scan)
        return scan

    def _scan(self, prefix: bytes, start: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        first = max(prefix, start)
        scanned = 0
        with self._translated("scan"), self._environment.begin() as transaction:
            cursor = transaction.cursor()
            if cursor.set_range(first[:HEAD_BYTES] or b"\x00"):
                cursor.prev() or cursor.first()  # the entry before is checked too
                for key, value in in_key_order(cursor.iternext(keys=True, values=True)):
                    if key >= FIRST_RESERVED_KEY:
                        if not first and scanned + 1 != transaction.stat()["entries"]:
                            raise DamagedEntryError(f"there are not as many entries as {scanned}")
                        return
                    if key < first:
                        continue
                    if not key.startswith(prefix):
                        return
                    scanned += 1
                    yield key, value
            if transaction.get(VERSION_KEY) is not None:
                raise DamagedEntryError("a scan ended before the last entry")

    def apply(self, changes: Iterable[Changes], version: str) -> None:
        # A transaction holds its changed pages in memory, so there are many small transactions.
        step = _Step(_step_entries())
        is_marked = False
        for part in changes:
            begin = 0
            while begin < len(part):
                if step.is_full:
                    if not is_marked and (marker := self.marker_applying(version)) is not None:
                        step.marker = marker
                    is_marked = True
                    self._commit(step)
                    step = _Step(_step_entries())
                begin = step.add(part, begin)
        step.marker = version.encode()
        self._commit(step)
        self._write_without_gaps()
        with self._translated("write"):
            write_size(self._directory)

    def load(self, changes: Iterable[Changes], version: str) -> None:
        self.apply(changes, version)

    def _commit(self, step: _Step) -> None:
        with self._translated("write"):
            self._make_room(step.size_bytes)
            with self._environment.begin(write=True) as transaction:
                cursor = transaction.cursor()
                for part in step.parts:
                    if None not in part.values and max(map(len, part.keys), default=0) < HEAD_BYTES:
                        cursor.putmulti(sealed_all(part.keys, part.values))
                        continue
                    for key, value in zip(part.keys, part.values, strict=True):
                        if value is None:
                            transaction.delete(stored_key(key))
                        else:
                            transaction.put(*sealed(key, value))
                if step.marker is not None:
                    transaction.put(*sealed(VERSION_KEY, step.marker))

    def _make_room(self, size_bytes: int) -> None:
        """Reserve more address space if the next transaction may need it."""
        info, page_bytes = self._environment.info(), self._environment.stat()["psize"]
        used = (info["last_pgno"] + 1) * page_bytes
        if used + _room_for(size_bytes) > info["map_size"] and not self._is_scanned:
            self._environment.set_mapsize(_map_bytes(used + 2 * _room_for(size_bytes)))

    def _write_without_gaps(self) -> None:
        """Replace a file of mostly free pages, because LMDB's files never shrink."""
        stat, size = self._environment.stat(), (self._directory / DATA_FILE).stat().st_size
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        if size < max(_SPARSE_BYTES, _SPARSE_TIMES * pages * stat["psize"]) or self._is_scanned:
            return
        new = self._directory / _NEW
        shutil.rmtree(new, ignore_errors=True)  # left by a process that was killed
        new.mkdir()
        try:
            with self._translated("copy"):
                self._environment.copy(str(new), compact=True)
            self.close()
            # A kill in between leaves a file that is larger than the noted size.
            write_size(self._directory, new / DATA_FILE)
            (new / DATA_FILE).replace(self._directory / DATA_FILE)
        except BackendFullError:
            return  # the old file is still good
        finally:
            shutil.rmtree(new, ignore_errors=True)
        with self._translated("open"):
            self._env = _open(self._directory, create=False)

    @property
    def _is_scanned(self) -> bool:
        """Whether a scan may read the map, which must then not move."""
        return any(getgeneratorstate(scan) != GEN_CLOSED for scan in self._open_scans)

    def snapshot_files(self, directory: Path) -> list[str]:
        directory.mkdir()
        with self._translated("snapshot"):
            self._environment.copy(str(directory))
            write_size(directory)
        return [DATA_FILE, SIZE_FILE]

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
        except _OF_LMDB as exc:
            self._raise_typed(action, exc)

    def _raise_typed(self, action: str, exc: Exception) -> NoReturn:
        """Raise a typed error that names the directory, or the error itself if it has no type."""
        error: Exception | None = None
        if isinstance(exc, DamagedEntryError):
            error = BackendCorruptError(f"the heap state in {self._directory}: {exc}")
        elif isinstance(exc, lmdb.MapFullError | lmdb.DiskError):
            error = _full(self._directory, exc)
        elif isinstance(exc, OSError):
            if exc.errno in _NO_RESOURCES:
                error = _no_resources(self._directory, exc)
            elif exc.errno == errno.ENOSPC:
                error = _full(self._directory, exc)
        elif any(os.strerror(number) in str(exc) for number in _NO_RESOURCES):
            error = _no_resources(self._directory, exc)
        elif os.strerror(errno.EIO) in str(exc) and is_full(self._directory):
            error = _full(self._directory, exc)  # LMDB reports a short write this way
        else:
            error = BackendCorruptError(f"LMDB could not {action} {self._directory}: {exc}")
        if error is None:
            raise exc
        raise error from exc


@dataclass(slots=True)
class _Step:
    """Changes of one transaction, of at most so many entries."""

    most_entries: int
    parts: list[Changes] = field(default_factory=list)
    entries: int = 0
    size_bytes: int = 0
    marker: bytes | None = None

    @property
    def is_full(self) -> bool:
        """Whether another change has to go into the next transaction."""
        return self.entries >= self.most_entries or self.size_bytes >= STEP_BYTES

    def add(self, part: Changes, begin: int) -> int:
        """Add the changes of a part from a place on; return the place behind those that fit."""
        end = min(len(part), begin + self.most_entries - self.entries)
        if end - begin < len(part):
            part = Changes(part.keys[begin:end], part.values[begin:end])
        self.parts.append(part)
        self.entries += len(part)
        self.size_bytes += sum(map(len, part.keys)) + sum(map(len, filter(None, part.values)))
        return end


def _open(directory: Path, *, create: bool) -> lmdb.Environment:
    file = directory / DATA_FILE
    size = file.stat().st_size if file.exists() else 0
    return lmdb.open(
        str(directory),
        map_size=_map_bytes(size + _room_for(0)),
        create=create,
        sync=False,
        metasync=False,
        readahead=False,
        max_readers=MAX_READERS,
    )


def _room_for(size_bytes: int) -> int:
    """Return the address space that a transaction of so many bytes may need."""
    return room_bytes() + 2 * size_bytes


def _map_bytes(wanted: int) -> int:
    room = room_bytes()
    return min(-(-wanted // room) * room, MOST_MAP_BYTES)


def room_bytes() -> int:
    """Return the address space beyond the file, a part of what the process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ROOM_BYTES
    pages = limit // _ROOM_SHARE // mmap.PAGESIZE
    return max(LEAST_ROOM_BYTES, min(ROOM_BYTES, pages * mmap.PAGESIZE))


def _step_entries() -> int:
    return min(_STEP_ENTRIES, room_bytes() // _ENTRY_ROOM_BYTES)


def _present(
    under: Sequence[bytes], found: Sequence[bytes | None]
) -> tuple[list[bytes], list[bytes]]:
    keys = [key for key, stored in zip(under, found, strict=True) if stored is not None]
    return keys, [stored for stored in found if stored is not None]


def _check_missing(
    transaction: lmdb.Transaction[bytes], under: Sequence[bytes], found: Sequence[bytes | None]
) -> None:
    """Check that each missing key lies between two good neighbours, so that no damage hides it.

    A damaged pointer leads to a good entry elsewhere. So the two neighbours have to lie between
    their own neighbours, too.
    """
    cursor = transaction.cursor()
    before, after = b"", b""
    for key, stored in zip(under, found, strict=True):
        if stored is not None or before < key < after:
            continue
        before, after, in_order = b"", _AFTER_ALL, True
        if cursor.set_range(key):
            after = cursor.key()
            check(after, cursor.value())
            is_last = not cursor.next()
            in_order = is_last or after < cursor.key()
            has_before = (cursor.last() if is_last else cursor.prev()) and cursor.prev()
        else:
            has_before = cursor.last()
        if has_before:
            before = cursor.key()
            check(before, cursor.value())
            in_order &= not cursor.prev() or cursor.key() < before
        if not (in_order and before < key < after):
            raise DamagedEntryError(f"the entry {key[:80]!r} is not between its neighbours")


def _full(directory: Path, error: Exception) -> BackendFullError:
    return BackendFullError(
        f"the heap backend has no room left in {directory} ({error}): free space there or use the "
        "rocksdb backend"
    )


def _address_space() -> str:
    """Return what to say of a limit of the address space, which holds the whole state."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return (
        f"; the process may have {limit >> 20} MiB of address space, of which the state takes all "
        "of its size: raise spark.executor.pyspark.memory, or use the rocksdb backend"
    )


def _no_resources(directory: Path, error: Exception) -> BackendResourceError:
    return BackendResourceError(
        f"the heap backend in {directory} got no file descriptor or memory ({error}): raise the "
        f"limit (ulimit{_address_space()})"
    )
