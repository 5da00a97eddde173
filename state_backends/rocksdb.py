"""The RocksDB backend: state on the executor's local disk. Only this module imports rocksdict.

Measured facts shape it:

* A default open turns missing files into an empty database, so only `create` may create one.
* Iterators end without an error on a corrupt file, so every scan checks ``status()``.
* ``Rdict`` without raw mode would unpickle values.
* A live iterator keeps the lock after ``close()``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast
from weakref import WeakSet

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Checkpoint,
    DBCompactionStyle,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

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
    BackendLockedError,
    BackendResourceError,
    StateBackendError,
)
from state_backends.rocksdb_files import is_snapshot_file

# RocksDB's messages for a lock that another process holds, and for a lock of this process.
_LOCKED = re.compile(r"While lock file|lock hold by current process")
_NO_RESOURCES = re.compile(r"Too many open files|Cannot allocate memory")

_FILTER_BITS_PER_KEY = 10
"""One lookup in a hundred reads a file that does not have the key."""

_WRITE_BUFFER_BYTES = 32 << 20
"""Writes are sorted in a memory buffer while another buffer is written to disk."""

FIGURES = (
    "block-cache-capacity", "block-cache-usage", "block-cache-pinned-usage",
    "cur-size-all-mem-tables", "size-all-mem-tables", "num-immutable-mem-table",
    "num-entries-active-mem-table", "mem-table-flush-pending", "num-running-flushes",
    "compaction-pending", "num-running-compactions", "estimate-pending-compaction-bytes",
    "total-sst-files-size", "live-sst-files-size", "estimate-live-data-size", "estimate-num-keys",
    "estimate-table-readers-mem", "num-snapshots", "num-live-versions", "background-errors",
    "actual-delayed-write-rate", "is-write-stopped",
)  # fmt: skip
"""RocksDB's properties that are figures, without the prefix ``rocksdb.``."""

_SMALL_RUNS = 4
_LARGE_RUN_BYTES = 4 << 20
_LARGEST_FILE_BYTES = 60 << 20
_MOST_LARGE_RUNS = 8
_MOST_TIMES_THE_LARGEST = 3
"""RocksDB merges when there are four small sorted runs; up to eight large runs do not count.

Otherwise RocksDB would merge each new run of a large state with the smallest large run, which takes
longer than a short epoch, again and again (measured)."""

_KEYS_OF_A_READ = 256
"""RocksDB holds 300 bytes for each key of a read: 50,000 at once take half as long again as 256
at a time, which stay in the processor's cache (measured: 58 and 37 ms, with 50,000 keys missing 31
and 15)."""

_KEYS_AT_ONCE = 10_000

_Scanned = TypeVar("_Scanned")


class RocksDBBackend(StateBackend):
    """One subtask's state in a RocksDB database.

    The write-ahead log is off: atomic write batches and a flush per version give the same guarantee
    against a killed process, without writing the data twice.
    """

    def __init__(self, directory: Path, *, create: bool, read_only: bool = False) -> None:
        self._directory = directory
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        access = AccessType.read_only() if read_only else AccessType.read_write()
        options = _options(create=create)
        merged_from = _SMALL_RUNS + _large_runs(directory)
        options.set_level_zero_file_num_compaction_trigger(merged_from)
        # Without them, an existing database is opened with the options that rocksdict can read from
        # its files: without filters (measured).
        families = None if create else {"default": options}
        with self._translated("open"):
            self._db: Rdict | None = Rdict(
                str(directory), options, column_families=families, access_type=access
            )
        self._db.set_write_options(_write_options())
        self._open_scans: WeakSet[Generator[Any, None, None]] = WeakSet()

    def marker(self) -> bytes | None:
        return self.get_many([VERSION_KEY])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        wanted = keys if isinstance(keys, list) else list(keys)
        try:  # a context manager takes as long as reading one key
            get = self._database.get
            if len(wanted) == 1:  # rocksdict takes half as long without a list
                return [cast("bytes | None", get(wanted[0]))]
            found: list[bytes | None] = []
            for start in range(0, len(wanted), _KEYS_OF_A_READ):
                found += cast("list[bytes | None]", get(wanted[start : start + _KEYS_OF_A_READ]))
            return found
        except StateBackendError:
            raise
        except Exception as exc:
            raise self._typed("read", exc) from exc

    def scan(self, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        yield from self._while_open(self._scan(prefix, start))

    def scan_in_parts(self, entries: int, size_bytes: int) -> Iterator[Changes]:
        yield from self._while_open(self._scan_in_parts(entries, size_bytes))

    def _while_open(self, scan: Generator[_Scanned, None, None]) -> Iterator[_Scanned]:
        self._open_scans.add(scan)
        yield from scan
        if self._db is None:
            raise StateBackendError(f"{self._directory} was closed before a scan of it had ended")

    def _scan_in_parts(self, entries: int, size_bytes: int) -> Generator[Changes, None, None]:
        # A loop over rocksdict's own iterator takes a third of the time of `_scan` (measured). In
        # steps of several entries it takes a tenth less, but a step may be all large values.
        # The iterator ends without an error at a corrupt file, so its end is checked.
        read_options = _scan_options()
        items = cast("Iterator[tuple[bytes, bytes]]", self._database.items(read_opt=read_options))
        try:
            key = b""
            keys: list[bytes] = []
            values: list[bytes | None] = []
            gathered_bytes = 0
            for key, value in items:
                keys.append(key)
                values.append(value)
                gathered_bytes += len(key) + len(value)
                if len(keys) == entries or gathered_bytes >= size_bytes:
                    yield Changes(keys, values)
                    keys, values, gathered_bytes = [], [], 0
            self._check_end(key)
            if keys:
                yield Changes(keys, values)
        finally:
            del items, read_options

    def _check_end(self, last: bytes) -> None:
        """Check that no key follows the key at which a scan ended."""
        read_options = _scan_options()
        iterator = self._database.iter(read_options)
        try:
            iterator.seek(last)
            if iterator.valid() and iterator.key() == last:
                iterator.next()
            with self._translated("scan"):
                iterator.status()
            if iterator.valid():
                raise BackendCorruptError(f"a scan of {self._directory} ended before its end")
        finally:
            del iterator, read_options

    def _scan(self, prefix: bytes, start: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        # rocksdict's iterator points into its ReadOptions, which must outlive it (measured).
        read_options = _read_options()
        iterator = self._database.iter(read_options)
        try:
            iterator.seek(max(prefix, start))
            while iterator.valid():
                key = iterator.key()
                if not key.startswith(prefix) or key >= FIRST_RESERVED_KEY:
                    break
                yield key, iterator.value()
                iterator.next()
            with self._translated("scan"):
                iterator.status()
        finally:
            del iterator, read_options

    def apply(self, changes: Iterable[Changes], version: str) -> None:
        # A killed process leaves a prefix of the batches, so the first one has the marker.
        batch = WriteBatch(raw_mode=True)
        is_marked = False
        for part in changes:
            if batch.size_in_bytes() >= STEP_BYTES:
                if not is_marked and (marker := self.marker_applying(version)) is not None:
                    batch.put(VERSION_KEY, marker)
                is_marked = True
                self._write(batch)
                batch = WriteBatch(raw_mode=True)
            _add(batch, part)
        batch.put(VERSION_KEY, version.encode())
        self._write(batch)
        self._flush()

    def delete_ranges(self, ranges: Sequence[tuple[bytes, bytes]], version: str) -> None:
        batch = WriteBatch(raw_mode=True)
        for start, end in ranges:
            batch.delete_range(start, end)  # one entry for each range, however many keys it has
        batch.put(VERSION_KEY, version.encode())
        self._write(batch)
        self._flush()

    def load(self, changes: Iterable[Changes], version: str) -> None:
        self.apply(changes, version)

    def figures(self) -> dict[str, int]:
        database = self._database
        found = {name: database.property_int_value(f"rocksdb.{name}") for name in FIGURES}
        return {name: value for name, value in found.items() if value}

    def snapshot_files(self, directory: Path) -> list[str]:
        if directory.exists():
            raise FileExistsError(f"{directory} exists: a snapshot needs a new directory")
        with self._translated("snapshot"):
            checkpoint = Checkpoint(self._database)
            try:
                checkpoint.create_checkpoint(str(directory))
            finally:
                del checkpoint  # otherwise it keeps the lock
        return sorted(path.name for path in directory.iterdir() if is_snapshot_file(path.name))

    def close(self) -> None:
        if self._db is not None:
            for scan in list(self._open_scans):
                scan.close()
            db, self._db = self._db, None
            try:
                with self._translated("close"):
                    db.close()  # writes what a failed `apply` left, and may fail as it did
            finally:
                del db  # only this releases the lock then

    @property
    def _database(self) -> Rdict:
        if self._db is None:
            raise StateBackendError(f"the RocksDB backend in {self._directory} is closed")
        return self._db

    def _write(self, batch: WriteBatch) -> None:
        with self._translated("write"):
            self._database.write(batch)

    def _flush(self) -> None:
        with self._translated("flush"):
            self._database.flush()

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """Turn rocksdict's bare exceptions into typed ones that name the directory."""
        try:
            yield
        except StateBackendError:
            raise
        except Exception as exc:
            raise self._typed(action, exc) from exc

    def _typed(self, action: str, exc: Exception) -> StateBackendError:
        return _typed(self._directory, action, exc)


def check_file(path: Path) -> None:
    """Check all of an SST file against its checksums; see :meth:`SnapshotFormat.check_file`."""
    # A repair builds a database of the files that it can read to their end, and puts the others
    # aside. It takes 84 ns per entry, and a scan in Python takes 220 (measured).
    with TemporaryDirectory(
        prefix="check-", dir=path.parent.parent, ignore_cleanup_errors=True
    ) as directory:
        link = Path(directory) / path.name
        link.hardlink_to(path)
        try:
            Rdict.repair(directory, _options(create=False))
        except Exception as exc:
            path.stat()  # raises if the snapshot was removed while it was checked
            raise _typed(path, "read", exc) from exc
        if not link.exists():
            path.stat()
            raise BackendCorruptError(f"{path} does not match its checksums")


def written_keys(directory: Path) -> Iterator[list[bytes]] | None:
    """Return the keys in the SST files of a directory; see :meth:`SnapshotFormat.written_keys`."""
    names = {f"/{path.name}" for path in directory.iterdir()}
    try:
        Rdict.repair(str(directory), _options(create=False))  # makes a database of the files
        files = _files_of(directory)
    except StateBackendError:
        raise
    except Exception as exc:
        raise _typed(directory, "read the files in", exc) from exc
    if {file["name"] for file in files} != names:
        raise BackendCorruptError(f"a file in {directory} cannot be read")
    # RocksDB counts the entries of a few files only when it opens a database; 0 is not counted.
    if any(file["num_entries"] == 0 or file["num_deletions"] > 0 for file in files):
        return None
    return _keys(directory)


def _files_of(directory: Path) -> list[dict[str, Any]]:
    database = Rdict(str(directory), _options(create=False), access_type=AccessType.read_only())
    try:
        return database.live_files()
    finally:
        database.close()


def _keys(directory: Path) -> Iterator[list[bytes]]:
    with RocksDBBackend(directory, create=False, read_only=True) as database:
        for part in database.scan_in_parts(_KEYS_AT_ONCE, STEP_BYTES):
            yield list(part.keys)


def _typed(place: Path, action: str, exc: Exception) -> StateBackendError:
    text = str(exc)
    message = f"RocksDB could not {action} {place}: {text}"
    # First, because an error while opening the lock file has both texts.
    if _NO_RESOURCES.search(text):
        return BackendResourceError(f"{message}; raise the limit of open files or memory (ulimit)")
    if _LOCKED.search(text):
        return BackendLockedError(message)
    if "No space left" in text:
        return BackendFullError(message)
    return BackendCorruptError(message)


def _options(*, create: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_paranoid_checks(True)
    # Leveled compaction rewrites all SST files after a few epochs of scattered keys, and does not
    # finish in short epochs. Universal compaction leaves large files alone (measured).
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_keep_log_file_num(1)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    # Without a filter, a missing key is looked up in each file: five times as long (measured).
    table = BlockBasedOptions()
    table.set_bloom_filter(_FILTER_BITS_PER_KEY, block_based=False)
    options.set_block_based_table_factory(table)
    return options


def _large_runs(directory: Path) -> int:
    """Count by their files the large runs that should not be merged; a very large run has several.

    If all files are much larger than the largest, most entries are overwritten and the count is 0.
    """
    sizes = []
    for path in directory.glob("*.sst"):
        with suppress(OSError):  # a file of another process is gone; the count only tunes
            sizes.append(path.stat().st_size)
    if sum(sizes) > _MOST_TIMES_THE_LARGEST * max(sizes, default=0):
        return 0
    in_one_file = sum(_LARGE_RUN_BYTES <= size < _LARGEST_FILE_BYTES for size in sizes)
    in_several = any(size >= _LARGEST_FILE_BYTES for size in sizes)
    return min(in_one_file + in_several, _MOST_LARGE_RUNS)


def _write_options() -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign,assignment]  # a property at run time
    return options


def _read_options() -> ReadOptions:
    options = ReadOptions()
    options.set_verify_checksums(True)
    return options


def _scan_options() -> ReadOptions:
    """Options to read all state once without filling the cache."""
    options = _read_options()
    options.fill_cache(False)  # type: ignore[call-arg]  # noqa: FBT003
    options.set_iterate_upper_bound(FIRST_RESERVED_KEY)
    return options


def _add(batch: WriteBatch, changes: Changes) -> None:
    if None not in changes.values:
        deque(map(batch.put, changes.keys, changes.values), maxlen=0)
        return
    for key, value in zip(changes.keys, changes.values, strict=True):
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
