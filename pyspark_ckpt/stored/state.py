"""All state of one subtask as it is stored: the one place that merges a base and its changes.

A handle names a base snapshot, in the files of a backend, as a change file or a canonical file, and
the segments of changes after it. Readers see entries in the order of their stored keys, and need
not know where each was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.canonical_file import ArrowEntries, KeyGroups, canonical_batches
from pyspark_ckpt.formats.change_file import decode_changes_below
from pyspark_ckpt.formats.handle import (
    CANONICAL_FORMAT,
    CHANGES_FORMAT,
    BaseSnapshot,
    Handle,
    Segment,
)
from pyspark_ckpt.operator.durable.stored_files import (
    fetch_files,
    open_fetched,
    read_base,
    segment_changes,
)
from pyspark_ckpt.operator.table.stored_keys import (
    MAX_STATES,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_INDEX,
)
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stored.sorted_runs import (
    SortedRuns,
    cut_after,
    is_ordered,
    latest,
    rows_before,
    rows_up_to,
    sorted_entries,
)
from state_backends import Changes, SnapshotFormat, StateBackend, find_snapshot_format

_RUN_BYTES = 32 << 20
"""So many bytes of changes are sorted in memory; the base comes on top, a part at a time."""

_KEYS_AT_ONCE = 10_000
_STATE_ID_AT = 2

OnStep = Callable[[], None]


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class StoredRange:
    """The stored keys from `start` up to `end`, without `end`.

    `state_id` is the third byte that keyed entries must have, ``None`` for entries of all states.
    `prefix` is what all these keys begin with, empty if there are other keys between them.
    """

    start: bytes = b""
    end: bytes | None = None
    state_id: int | None = None
    prefix: bytes = b""

    @classmethod
    def below(cls, prefix: bytes) -> StoredRange:
        """Return where the keys with a prefix are."""
        after = int.from_bytes(prefix, "big") + 1
        is_last = after == 1 << (8 * len(prefix))
        end = None if is_last else after.to_bytes(len(prefix), "big")
        return cls(prefix, end, prefix=prefix)

    @classmethod
    def of_keyed_state(cls, state_id: int) -> StoredRange:
        """Return where a keyed state's entries are, among those of other states."""
        return cls(b"", TIME_INDEX, state_id)

    @classmethod
    def of_timers(cls) -> StoredRange:
        """Return where the timers of keys are."""
        return cls(b"", TIME_INDEX, MAX_STATES)

    @classmethod
    def of_operator_state(cls, state_id: int) -> StoredRange:
        """Return where the entries of an operator's list or broadcast state are."""
        return cls.below(OPERATOR_STATE + bytes([state_id]))

    @classmethod
    def of_raw_state(cls) -> StoredRange:
        """Return where raw state is."""
        return cls.below(RAW_STATE)

    def of(self, entries: ArrowEntries) -> ArrowEntries:
        """Return those of some entries, which are in key order, that are in the range."""
        found = entries[rows_before(entries.keys, self.start) :]
        if self.end is not None:
            found = found[: rows_before(found.keys, self.end)]
        if self.state_id is None or not len(found):
            return found
        head = pc.binary_slice(found.keys, _STATE_ID_AT, _STATE_ID_AT + 1)
        is_wanted = pc.equal(head, bytes([self.state_id]))
        if pc.all(is_wanted).as_py():
            return found
        return found.filter(is_wanted)

    @property
    def key_groups(self) -> KeyGroups | None:
        """The key groups of the range, ``None`` if it has entries with and without a key."""
        if self.start >= TIME_INDEX:
            return KeyGroups(without_key=True)
        if self.end is None or self.end > TIME_INDEX:
            return None
        first, last = (
            int.from_bytes(key[:2].ljust(2, b"\0"), "big") for key in (self.start, self.end)
        )
        return KeyGroups(first, last)


EVERYTHING = StoredRange()


class StoredState:
    """The state of one subtask at the version that a handle names; on the driver or an executor.

    `root` is where temporary directories are made, by default where the system has them.
    """

    def __init__(self, storage: Storage, handle: Handle, root: Path | None = None) -> None:
        self.storage = storage
        self.handle = handle
        self._root = root

    def at(self, version: str) -> StoredState:
        """Return the state at another version of the handle's lineage."""
        end = self.handle.lineage.index(version)
        handle = msgspec.structs.replace(self.handle, segments=self.handle.segments[:end])
        return StoredState(self.storage, handle, self._root)

    def scan(
        self, wanted: StoredRange = EVERYTHING, on_step: OnStep = _nothing
    ) -> Generator[ArrowEntries, None, None]:
        """Yield the entries of a range in key order, in parts of bounded size.

        What has a prefix is put together in memory. `on_step` is called after each part of a file
        that is read, also if nothing of it is in the range; what it raises ends the reading.
        """
        for part in self._parts(wanted, on_step):
            on_step()
            found = wanted.of(part)
            if len(found):
                yield found

    def _parts(self, wanted: StoredRange, on_step: OnStep) -> Iterator[ArrowEntries]:
        base = self.handle.base
        if base is not None and base.format == CANONICAL_FORMAT and not self.handle.segments:
            yield from self._in_order(self._canonical(base, wanted.key_groups))
        elif wanted.prefix:
            yield self._below(wanted.prefix, on_step)
        else:
            with self._scratch() as scratch:
                yield from self._merged(scratch, on_step)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each stored key, ``None`` for a key without an entry."""
        found: dict[bytes, bytes | None] = {}
        wanted = pa.array(sorted(set(keys)), pa.binary())
        if len(wanted) and self.handle.base is not None:
            found.update(self._in_base(self.handle.base, wanted))
        if len(wanted):
            for part in self._changes(self.handle.segments):
                found.update(_among(part, wanted))
        return [found.get(key) for key in keys]

    def changes(self, since: str) -> Iterator[ArrowEntries] | None:
        """Return the puts and deletes after a version, in the order in which they were written.

        The value of a delete is null. ``None`` is returned if the version is not in the lineage.
        """
        later = self.handle.segments_since(since)
        return None if later is None else self._changes(later)

    def last_changes(self, since: str) -> dict[bytes, bytes | None]:
        """Return the last write to each key after a version, which must be in the lineage.

        The value of a delete is ``None``.
        """
        changes = self.changes(since)
        if changes is None:
            raise ValueError(f"version {since!r} is not in the lineage of {self.handle.uid!r}")
        written: dict[bytes, bytes | None] = {}
        for part in changes:
            written.update(part.pairs())
        return written

    def _changes(self, segments: Iterable[Segment]) -> Iterator[ArrowEntries]:
        return map(ArrowEntries.of, segment_changes(self.storage, list(segments)))

    def _merged(self, scratch: Path, on_step: OnStep) -> Iterator[ArrowEntries]:
        """Yield all entries; all segments are read before the first."""
        with closing(SortedRuns(scratch, only_last=True, run_bytes=_RUN_BYTES)) as runs:
            for part in self._changes(self.handle.segments):
                runs.add(part)
                on_step()
            yield from _overlaid(self._base(scratch), runs.taken())

    def _base(self, scratch: Path) -> Iterator[ArrowEntries]:
        base = self.handle.base
        if base is None:
            return iter(())
        if base.format == CANONICAL_FORMAT:
            return self._in_order(self._canonical(base, None))
        parts = map(ArrowEntries.of, read_base(self.storage, base, scratch))
        if find_snapshot_format(base.format) is not None:
            return parts  # a backend scans in order
        return self._in_order(parts)

    def _canonical(
        self, base: BaseSnapshot, key_groups: KeyGroups | None
    ) -> Iterator[ArrowEntries]:
        for each in base.files:
            with self.storage.open_verified(each.file) as file:
                batches = canonical_batches(file, each.file.path, base.entries or 0, key_groups)
                for batch in batches:
                    yield ArrowEntries(batch.column(0), batch.column(1))

    def _in_order(self, parts: Iterator[ArrowEntries]) -> Iterator[ArrowEntries]:
        last: bytes | None = None
        for part in parts:
            if not len(part):
                continue
            follows = last is None or last < part.keys[0].as_py()
            if not follows or not is_ordered(part.keys):
                raise CorruptFileError(
                    f"the base snapshot of operator {self.handle.uid!r}, subtask "
                    f"{self.handle.subtask} is not in key order; restore from another checkpoint"
                )
            last = part.keys[-1].as_py()
            yield part

    def _below(self, prefix: bytes, on_step: OnStep) -> ArrowEntries:
        """Return the entries with a prefix; segments are read whole, a base where it has them."""
        parts: list[ArrowEntries] = [ArrowEntries.of(Changes([], []))]
        if self.handle.base is not None:
            for part in self._base_below(self.handle.base, prefix):
                parts.append(_with_prefix(part, prefix))
                on_step()
        for part in self._changes(self.handle.segments):
            parts.append(_with_prefix(part, prefix))
            on_step()
        return _puts(latest(sorted_entries(parts)))

    def _base_below(self, base: BaseSnapshot, prefix: bytes) -> Iterator[ArrowEntries]:
        files_format = find_snapshot_format(base.format)
        if files_format is not None:
            with self._database(base, files_format) as backend:
                entries = list(backend.scan(prefix))
            yield ArrowEntries.of(
                Changes([key for key, _ in entries], [value for _, value in entries])
            )
        elif base.format == CHANGES_FORMAT:
            for each in base.files:
                with self.storage.open_verified(each.file) as file:
                    changes = decode_changes_below(file, each.file.path, prefix)
                    yield from map(ArrowEntries.of, changes)
        else:
            yield from self._canonical(base, StoredRange.below(prefix).key_groups)

    def _in_base(self, base: BaseSnapshot, wanted: pa.BinaryArray) -> dict[bytes, bytes | None]:
        """Return the entries of some keys, which are in order."""
        found: dict[bytes, bytes | None] = {}
        files_format = find_snapshot_format(base.format)
        if files_format is None:
            with self._scratch() as scratch:
                for part in self._base(scratch):
                    due = rows_up_to(wanted, part.keys[-1].as_py())
                    found.update(_among(part, wanted[:due]))
                    wanted = wanted[due:]
                    if not len(wanted):
                        break
            return found
        with self._database(base, files_format) as backend:
            keys = wanted.to_pylist()
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                some = keys[start : start + _KEYS_AT_ONCE]
                found.update(zip(some, backend.get_many(some), strict=True))
        return found

    @contextmanager
    def _database(self, base: BaseSnapshot, files_format: SnapshotFormat) -> Iterator[StateBackend]:
        """Open a base snapshot in the files of a backend, to read."""
        with self._scratch() as scratch:
            place = scratch / "files"
            fetch_files(self.storage, base, files_format, place, in_place=True)
            with open_fetched(place, base, read_only=True) as backend:
                yield backend

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Make a temporary directory."""
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-read-", dir=self._root) as name:
            yield Path(name)


def _with_prefix(part: ArrowEntries, prefix: bytes) -> ArrowEntries:
    return part.filter(pc.starts_with(part.keys, prefix))


def _among(part: ArrowEntries, wanted: pa.BinaryArray) -> dict[bytes, bytes | None]:
    """Return the entries of wanted keys; of a key that comes twice, the last one."""
    return dict(part.filter(pc.is_in(part.keys, value_set=wanted)).pairs())


def _puts(entries: ArrowEntries) -> ArrowEntries:
    """Leave out deletes."""
    if not entries.values.null_count:
        return entries
    return entries.filter(entries.values.is_valid())


def _overlaid(
    base: Iterator[ArrowEntries], changes: Iterator[ArrowEntries]
) -> Iterator[ArrowEntries]:
    """Merge two streams in key order; where both have a key, the second one counts."""
    pending: list[ArrowEntries] = []
    highest = b""
    for part in base:
        last = part.keys[-1].as_py()
        while highest <= last and (more := next(changes, None)) is not None:
            pending.append(more)
            highest = more.keys[-1].as_py()
        due, pending = _cut_at(pending, last)
        found = _puts(latest(sorted_entries([part, *due]))) if due else part
        if len(found):
            yield found
    for more in (*pending, *changes):
        found = _puts(more)
        if len(found):
            yield found


def _cut_at(
    parts: list[ArrowEntries], last: bytes
) -> tuple[list[ArrowEntries], list[ArrowEntries]]:
    """Divide parts, which are in key order, after a key."""
    first: list[ArrowEntries] = []
    for number, part in enumerate(parts):
        before, rest = cut_after(part, last)
        if len(before):
            first.append(before)
        if rest is not None:
            return first, [rest, *parts[number + 1 :]]
    return first, []
