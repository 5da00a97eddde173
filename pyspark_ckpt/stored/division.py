"""Gives new subtasks the key groups of old subtasks without a shuffle.

Key groups are in ranges, and stored keys begin with them. So a new subtask's state is a range of
one old subtask's state, or of some that follow each other. If one of them is a database whose
ranges can be deleted, the new subtask keeps its files, deletes the other key groups, and adds the
entries of the other old subtasks. Otherwise it writes the entries of all of them, in their order.
New subtasks that keep the same files share them until their databases merge them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import pyarrow as pa

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.handle import (
    BaseFile,
    BaseSnapshot,
    Handle,
    decode_handle,
    encode_handle,
    new_version,
)
from pyspark_ckpt.formats.layout import new_snapshot_id, snapshot_path
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.operator.durable.stored_files import fetch_files, open_fetched, segment_changes
from pyspark_ckpt.operator.rows.keys import key_groups_of
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    OPERATOR_STATE,
    TIME_BYTES,
    TIME_INDEX,
    encode_key_group,
)
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.storage.base import chunks_of
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stored.binary_column import BinaryColumn
from pyspark_ckpt.stored.sorted_runs import SortedRuns, cut_before
from pyspark_ckpt.stored.state import StoredRange, StoredState
from pyspark_ckpt.stored.unify import UnifiedStates
from pyspark_ckpt.stored.writing import (
    TWICE_STORED,
    Destination,
    earliest_timer_ms,
    timeout_before,
    write_base,
)
from state_backends import (
    BackendCorruptError,
    SnapshotFormat,
    StateBackend,
    find_snapshot_format,
)

_MEMORY_BYTES = 16 << 20
"""Memory for the timers that are deleted; more go to disk."""

_MOST_READS = 4
"""Above so many reads of one old subtask's entries, a shuffle is faster, which reads them once."""

_GROUP_START = len(TIME_INDEX) + TIME_BYTES
_GROUP_END = _GROUP_START + KEY_GROUP_BYTES


@dataclass(frozen=True, slots=True)
class Share:
    """What one new subtask takes over.

    `kept` is the handle of the old subtask whose files it keeps, if any. `read` has the handles of
    the other old subtasks that have some of its key groups, in their order.
    """

    subtask: int
    kept: Handle | None
    read: tuple[Handle, ...]


def shares_of(
    handles: Sequence[Handle], operator: OperatorDescriptor, states: UnifiedStates
) -> tuple[Share, ...] | None:
    """Return what each new subtask takes over, without those that get no state.

    ``None`` means that entries change or go to several subtasks, or that a shuffle is faster.
    """
    if any(
        handle.has_state_of_no_key is not False
        or handle.max_parallelism != operator.max_parallelism
        or not states.are_those_of(handle)
        for handle in handles
    ):
        return None
    shares = [
        Share(subtask, *_parts(handles, subtask, operator))
        for subtask in range(operator.parallelism)
    ]
    reads = Counter(handle.subtask for share in shares for handle in share.read)
    if max(reads.values(), default=0) > _MOST_READS:
        return None
    return tuple(share for share in shares if share.kept is not None or share.read)


def _parts(
    handles: Sequence[Handle], subtask: int, operator: OperatorDescriptor
) -> tuple[Handle | None, tuple[Handle, ...]]:
    """Return the old subtask whose files a new one keeps, and those whose entries it reads."""
    sizes = {
        handle.subtask: size
        for handle in handles
        if (size := _bytes_of_overlap(subtask, operator, handle)) is not None
    }
    parts = sorted((h for h in handles if h.subtask in sizes), key=lambda each: each.subtask)
    databases = [handle for handle in parts if _ranged_format(handle) is not None]
    kept = max(databases, key=lambda each: sizes[each.subtask], default=None)
    return kept, tuple(handle for handle in parts if handle is not kept)


def _bytes_of_overlap(subtask: int, operator: OperatorDescriptor, handle: Handle) -> float | None:
    """Estimate how large the part of an old subtask's base is; ``None`` without a common group."""
    new = key_groups_of(subtask, operator.parallelism, operator.max_parallelism)
    old = key_groups_of(handle.subtask, handle.parallelism, handle.max_parallelism)
    groups = min(new.stop, old.stop) - max(new.start, old.start)
    if groups <= 0:
        return None
    files = () if handle.base is None else handle.base.files
    return sum(each.file.size_bytes for each in files) * groups / len(old)


def _ranged_format(handle: Handle) -> SnapshotFormat | None:
    found = None if handle.base is None else find_snapshot_format(handle.base.format)
    return found if found is not None and found.deletes_ranges else None


class DivideSubtasks:
    """The function given to ``mapInArrow`` over the numbers of shares: yields the new handles.

    `first` has the handle of each share's new subtask without state. `copied` has the base
    snapshots, in the target, of the old subtasks whose files are kept.
    """

    def __init__(
        self,
        shares: Sequence[Share],
        first: Sequence[Handle],
        copied: Mapping[int, BaseSnapshot],
        source_root: str,
        target_root: str,
        *,
        has_same_clock: bool,
    ) -> None:
        self._shares = [
            (
                encode_handle(handle),
                None if share.kept is None else encode_handle(share.kept),
                [encode_handle(handle) for handle in share.read],
            )
            for share, handle in zip(shares, first, strict=True)
        ]
        self._copied = dict(copied)
        self._source_root = source_root
        self._target_root = target_root
        self._has_same_clock = has_same_clock

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the handle of each new subtask, whose files are durable."""
        source, target = open_storage(self._source_root), open_storage(self._target_root)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first, share = self._share(number)
                root = executor_local_root(first.subtask)
                with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-", dir=root) as scratch:
                    place = Path(scratch)
                    handle = divided(
                        first, share, source, target, place, has_same_clock=self._has_same_clock
                    )
                yield pa.RecordBatch.from_arrays(
                    [pa.array([encode_handle(handle)], pa.binary())], names=["handle"]
                )

    def _share(self, number: int) -> tuple[Handle, Share]:
        first, kept, read = self._shares[number]
        handle = None
        if kept is not None:
            handle = decode_handle(kept)
            handle = msgspec.structs.replace(handle, base=self._copied[handle.subtask])
        new = decode_handle(first)
        return new, Share(new.subtask, handle, tuple(map(decode_handle, read)))


def divided(
    first: Handle,
    share: Share,
    source: Storage,
    target: Storage,
    scratch: Path,
    *,
    has_same_clock: bool,
) -> Handle:
    """Store a new subtask's state durably, and return its handle.

    Called by a task on an executor.

    `first` is the handle of the new subtask without entries. The base snapshot that `share` keeps
    lies in `target`. `scratch` is used only during the call.
    """
    groups = key_groups_of(first.subtask, first.parallelism, first.max_parallelism)
    ranges = [StateRange(StoredState(source, handle, scratch), groups) for handle in share.read]
    try:
        if share.kept is None:
            destination = Destination(target.url, TWICE_STORED, sets_timeouts=has_same_clock)
            return write_base(target, first, in_key_order(ranges, scratch), destination)
        return _store_database(
            first, share.kept, ranges, source, target, scratch, has_same_clock=has_same_clock
        )
    finally:
        for each in ranges:
            each.close()


def _store_database(
    first: Handle,
    kept: Handle,
    ranges: Sequence[StateRange],
    source: Storage,
    target: Storage,
    scratch: Path,
    *,
    has_same_clock: bool,
) -> Handle:
    """Store a database that has the files of an old one, and return its subtask's handle."""
    base, files_format = kept.base, _ranged_format(kept)
    assert base is not None  # as `shares_of` says
    assert files_format is not None
    place, snapshot = scratch / "files", scratch / "snapshot"
    # A restore has just checked these files. A rescale in place has not, so that its pause does not
    # grow with the state. Whoever fetches them for the result checks them too.
    fetch_files(target, base, files_format, place, in_place=True, checked=True)
    groups = key_groups_of(first.subtask, first.parallelism, first.max_parallelism)
    version = new_version(first.epoch)
    others = [
        (encode_key_group(0), encode_key_group(groups.start)),
        (encode_key_group(groups.stop), TIME_INDEX),
    ]
    try:
        with open_fetched(place, base) as backend:
            if kept.segments:
                backend.apply(segment_changes(source, kept.segments), version)
            if next(backend.scan(start=OPERATOR_STATE), None) is not None:
                raise _state_of_no_key(kept)
            backend.delete_ranges([(start, end) for start, end in others if start < end], version)
            _delete_timers(backend, groups, version, scratch)
            for each in ranges:
                backend.apply(
                    map(ArrowEntries.changes, chain(each.keyed(), each.timers())), version
                )
            earliest_ms = next(map(earliest_timer_ms, _keys(backend, TIME_INDEX)), None)
            names = backend.snapshot_files(snapshot)
    except BackendCorruptError as exc:
        raise CorruptFileError(
            f"the base snapshot of operator {first.uid!r}, subtask {kept.subtask} cannot "
            f"be divided: {exc}; restore from another checkpoint"
        ) from exc
    snapshot_id = new_snapshot_id()
    files = _stored_files(first, base, files_format, snapshot, names, snapshot_id, target)
    return msgspec.structs.replace(
        first,
        base=BaseSnapshot(version, first.epoch, None, files, base.format, snapshot_id=snapshot_id),
        timeout_ms=(
            timeout_before(earliest_ms) if has_same_clock and earliest_ms is not None else None
        ),
    )


def _stored_files(
    first: Handle,
    base: BaseSnapshot,
    files_format: SnapshotFormat,
    snapshot: Path,
    names: Sequence[str],
    snapshot_id: str,
    target: Storage,
) -> tuple[BaseFile, ...]:
    """Store the files of a snapshot that the old base does not have."""
    stored = {each.name: each for each in base.files}
    files = []
    for name in names:
        path = snapshot / name
        before = stored.get(name)
        if before is None or not files_format.is_immutable(name):
            if files_format.is_immutable(name):
                files_format.check_file(path)
            new = snapshot_path(first.uid, first.subtask, first.epoch, snapshot_id)
            with path.open("rb") as file:
                before = BaseFile(name, target.write(new, chunks_of(file)))
        files.append(before)
    return tuple(files)


def _delete_timers(backend: StateBackend, groups: range, version: str, scratch: Path) -> None:
    """Delete the timers of other key groups in the order of time."""
    deleted = EpochWrites(_MEMORY_BYTES, scratch)
    try:
        for key in _keys(backend, TIME_INDEX):
            if key_group_of_timer(key) not in groups:
                deleted.add(key, None)
        if len(deleted) > 0 or deleted.is_spilled:
            backend.apply(deleted.all_in_order(), version)
    finally:
        deleted.close()


def _keys(backend: StateBackend, prefix: bytes) -> Iterator[bytes]:
    return (key for key, _ in backend.scan(prefix))


def _state_of_no_key(handle: Handle) -> CorruptFileError:
    return CorruptFileError(
        f"operator {handle.uid!r}, subtask {handle.subtask}: the stored files have state that "
        "belongs to no key, and its handle denies that; restore from another checkpoint"
    )


def key_group_of_timer(stored_key: bytes) -> int:
    """Return the key group of a timer in the order of time."""
    return int.from_bytes(stored_key[_GROUP_START:_GROUP_END], "big")


class StateRange:
    """The part of an old subtask's state that belongs to some key groups."""

    def __init__(self, state: StoredState, groups: range) -> None:
        self._handle = state.handle
        self._parts = state.scan()
        self._groups = groups
        self._range = StoredRange(encode_key_group(groups.start), encode_key_group(groups.stop))
        self._held: ArrowEntries | None = None

    def keyed(self) -> Iterator[ArrowEntries]:
        """Yield the entries that begin with one of the key groups; is called first."""
        for part in self._parts:
            keyed, rest = cut_before(part, TIME_INDEX)
            found = self._range.of(keyed)
            if len(found):
                yield found
            if len(rest):
                self._held = rest
                return

    def timers(self) -> Iterator[ArrowEntries]:
        """Yield the timers of the key groups in the order of time; called after :meth:`keyed`."""
        while (part := self._held) is not None:
            if part.keys[-1].as_py() >= OPERATOR_STATE:
                raise _state_of_no_key(self._handle)
            groups = BinaryColumn.of(part.keys).numbers(KEY_GROUP_BYTES, from_start=_GROUP_START)
            chosen = (groups >= self._groups.start) & (groups < self._groups.stop)
            if chosen.any():
                mask = pa.array(chosen)
                yield ArrowEntries(part.keys.filter(mask), part.values.filter(mask))
            self._held = next(self._parts, None)

    def close(self) -> None:
        """Release the files that are read."""
        self._parts.close()


def in_key_order(ranges: Sequence[StateRange], scratch: Path) -> Iterator[ArrowEntries]:
    """Yield the entries of ranges whose key groups follow each other, in key order."""
    for each in ranges:
        yield from each.keyed()
    with closing(SortedRuns(scratch)) as timers:
        for each in ranges:
            for part in each.timers():
                timers.add(part)
        yield from timers.taken()
