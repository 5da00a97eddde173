"""Which stored entries differ between two snapshots; files that they share are not read.

===========================================  ===================================================
two handles of a subtask                     what is read
===========================================  ===================================================
are of the same version                      nothing
have a version in common                     the segments after it, and their keys at that version
have no version in common                    all entries, which are compared in key order
belong to another number of subtasks or key  all entries, in memory
groups, or number their states otherwise
===========================================  ===================================================

A version has a random name, so one version is one state, in whichever files it is. Timers and raw
state are compared as entries of :data:`TIMERS` and :data:`RAW`.

Entries of a deleted state stay stored until a sweep removes them, but belong to no state. Where a
subtask has such entries, and the other side a state with their id, all entries of that state are
read: each was added or removed.

A subtask that was idle may have other schemas than the newest one. Its values are rewritten as if
they moved to it, so that one history of schemas reads all values of a side. Of broadcast state, of
which every subtask has a copy, that of the newest subtask counts.

A file is never written again, and each entry in it has its number in the order of writes. So if the
newest writes of a key are in files that both databases have, they are one write. A key that differs
was therefore written by a file that only one of the databases has, or by a segment after it.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle, StateDescriptor
from pyspark_ckpt.operator.durable.base_snapshot import fetch_files, open_fetched, read_base
from pyspark_ckpt.operator.durable.local_copy import segment_changes
from pyspark_ckpt.operator.durable.merged_state import merged_state
from pyspark_ckpt.operator.rescale.entries import rewritten
from pyspark_ckpt.operator.rescale.tasks import newest_of
from pyspark_ckpt.operator.state.kinds import Movement, kind_of
from pyspark_ckpt.operator.table.catalog import is_beginning, is_deleted
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES, OPERATOR_STATE, RAW_STATE, is_keyed
from pyspark_ckpt.snapshot.reader import StoredOperator
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.values.message_pack import end_of_value
from state_backends import Changes, SnapshotFormat, find_snapshot_format

HEAD_BYTES = 3
"""Bytes before the user's key: the key group, and the id of the state."""

TIMERS, RAW = "\0timers", "\0raw"
"""What the places of timers and raw state have in place of a state's name, which has no null byte.
"""

Entries = dict[bytes, bytes | None]
_AT_ONCE = 10_000

_MOST_OF_ITS_OWN = 0.25
"""If a database has more than this share of its bytes for itself, reading all entries is faster,
and the keys of its own files take too much memory."""


class Place(NamedTuple):
    """Where an entry is, whatever the numbers of its key group and state: `key` is the rest.

    `state` is a name, :data:`TIMERS` or :data:`RAW`. `subtask` is ``None`` for keyed and broadcast
    state, which belong to no subtask.
    """

    state: str
    subtask: int | None
    key: bytes


class Change(NamedTuple):
    """The stored values of an entry before and after; ``None`` where there is no entry."""

    old: bytes | None
    new: bytes | None


@dataclass(frozen=True, slots=True)
class Side:
    """One operator of one snapshot."""

    storage: Storage
    operator: StoredOperator | None

    @property
    def handles(self) -> dict[int, Handle]:
        """The handles by subtask."""
        handles = () if self.operator is None else self.operator.handles
        return {handle.subtask: handle for handle in handles}

    @property
    def newest_subtask(self) -> int | None:
        """The subtask whose copy of broadcast state counts, ``None`` if there is no subtask."""
        handles = self.handles.values()
        return newest_of(handles).subtask if handles else None

    def entries(self) -> Iterator[tuple[Place, bytes]]:
        """Yield all entries of states, timers and raw state."""
        newest = self.newest_subtask
        for handle in self.handles.values():
            copied = _Places(handle).copied
            for place, value in self.entries_of(handle):
                if place.state not in copied or handle.subtask == newest:
                    yield place, value

    def copies(self) -> dict[Place, bytes]:
        """Return the entries of broadcast states."""
        newest = self.newest_subtask
        if newest is None:
            return {}
        handle = self.handles[newest]
        if not (copied := _Places(handle).copied):
            return {}
        return {place: value for place, value in self.entries_of(handle) if place.state in copied}

    def entries_of(self, handle: Handle) -> Iterator[tuple[Place, bytes]]:
        """Yield all entries of one of its subtasks."""
        places, moved = _Places(handle), _Moved(self, handle)
        for part in all_entries(self.storage, handle):
            for key, value in zip(part.keys, part.values, strict=True):
                place = places.of(key)
                if place is not None and value is not None:
                    yield place, moved.value(key, value)


class _Places:
    """Where the entries of a subtask are."""

    def __init__(self, *handles: Handle | None) -> None:
        found = [handle for handle in handles if handle is not None]
        self._subtask = found[0].subtask
        self._names: dict[int, str] = {}
        for handle in found:
            self._names |= state_names(handle)
        self.copied = {
            state.name
            for handle in found
            for state in handle.states
            if state.sweeps is None and kind_of(state).movement is Movement.COPIED
        }

    def of(self, key: bytes) -> Place | None:
        """Return the place of a stored key, ``None`` if it belongs to no state."""
        place = place_of(key, self._subtask, self._names)
        if place is not None and place.state in self.copied:
            return place._replace(subtask=None)
        return place


class _Moved:
    """The values of a subtask as the schemas of its operator's newest subtask read them."""

    def __init__(self, side: Side, handle: Handle | None) -> None:
        moves = (
            {} if side.operator is None or handle is None else side.operator.states.moves(handle)
        )
        self._moves = {number: move for number, move in moves.items() if move.rewrite or move.stamp}

    def value(self, key: bytes, value: bytes) -> bytes:
        """Return the value of a stored key."""
        if not self._moves or not (is_keyed(key) or key.startswith(OPERATOR_STATE)):
            return value
        move = self._moves.get(key[HEAD_BYTES - 1])
        if move is None:
            return value
        end = end_of_value(key, HEAD_BYTES) if is_keyed(key) else HEAD_BYTES
        return rewritten(move, key[end:], value)[1]

    def change(self, key: bytes, value: bytes | None) -> bytes | None:
        """Return the value of a stored key that may have none."""
        return None if value is None else self.value(key, value)


def changed_entries(old: Side, new: Side) -> dict[Place, Change]:
    """Return the entries of states, timers and raw state that differ, by their places."""
    if not is_same_layout(old, new):
        return _differences(dict(old.entries()), dict(new.entries()))
    found: dict[Place, Change] = {}
    newest = old.newest_subtask, new.newest_subtask
    for subtask in sorted(old.handles.keys() | new.handles.keys()):
        first, second = old.handles.get(subtask), new.handles.get(subtask)
        places = _Places(first, second)
        moved, moved_later = _Moved(old, first), _Moved(new, second)
        removed, added = _deleted_in(second, first), _deleted_in(first, second)
        for key, stored in _of_subtask(old.storage, first, new.storage, second):
            place = places.of(key)
            change = Change(moved.change(key, stored.old), moved_later.change(key, stored.new))
            if place is None or place.state in removed or place.state in added:
                continue
            if place.state in places.copied and newest != (subtask, subtask):
                continue  # the copy of the newest subtask counts
            if change.old != change.new:
                found[place] = change
        found |= {place: Change(value, None) for place, value in _of_states(old, first, removed)}
        found |= {place: Change(None, value) for place, value in _of_states(new, second, added)}
    if newest[0] != newest[1]:
        found |= _differences(old.copies(), new.copies())
    return found


def _differences(
    before: Mapping[Place, bytes], after: Mapping[Place, bytes]
) -> dict[Place, Change]:
    return {
        place: Change(before.get(place), after.get(place))
        for place in before.keys() | after.keys()
        if before.get(place) != after.get(place)
    }


def _deleted_in(handle: Handle | None, other: Handle | None) -> set[str]:
    """Return the states of another handle whose ids a deleted state has in this one."""
    if handle is None or other is None:
        return set()
    deleted = {number for number, state in enumerate(handle.states) if is_deleted(state)}
    return {name for number, name in state_names(other).items() if number in deleted}


def _of_states(
    side: Side, handle: Handle | None, names: Container[str]
) -> Iterator[tuple[Place, bytes]]:
    """Yield all entries of some states of a subtask."""
    if handle is None or not names:
        return iter(())
    return (each for each in side.entries_of(handle) if each[0].state in names)


def is_same_layout(old: Side, new: Side) -> bool:
    """Return whether equal entries have equal stored keys in the same subtask."""
    if old.operator is None or new.operator is None:
        return False
    first, second = old.operator.metadata, new.operator.metadata
    if (first.parallelism, first.max_parallelism) != (second.parallelism, second.max_parallelism):
        return False
    for subtask in old.handles.keys() & new.handles.keys():
        names, later = state_names(old.handles[subtask]), state_names(new.handles[subtask])
        if any(names[number] != later[number] for number in names.keys() & later.keys()):
            return False
        if {*names.values()} & {*later.values()} != {
            names[number] for number in names.keys() & later.keys()
        }:
            return False
        if not all(
            are_related(old.handles[subtask].states[number], new.handles[subtask].states[number])
            for number in names.keys() & later.keys()
        ):
            return False
    return True


def are_related(one: StateDescriptor, other: StateDescriptor) -> bool:
    """Return whether equal stored values are equal."""
    before = (*one.earlier_schemas, one.value_schema)
    after = (*other.earlier_schemas, other.value_schema)
    return is_beginning(before, after) or is_beginning(after, before)


def state_names(handle: Handle) -> dict[int, str]:
    """Return the names of a subtask's states by their ids, without deleted states."""
    return {
        number: state.name for number, state in enumerate(handle.states) if state.sweeps is None
    }


def place_of(key: bytes, subtask: int, names: dict[int, str]) -> Place | None:
    """Return the place of a stored key in a subtask, ``None`` if it belongs to no state."""
    if is_keyed(key):
        number = key[HEAD_BYTES - 1]
        keyed = TIMERS if number == MAX_STATES else names.get(number)
        return None if keyed is None else Place(keyed, None, key[HEAD_BYTES:])
    if key.startswith(OPERATOR_STATE):
        name = names.get(key[HEAD_BYTES - 1])
        return None if name is None else Place(name, subtask, key[HEAD_BYTES:])
    if key.startswith(RAW_STATE):
        return Place(RAW, subtask, key[len(RAW_STATE) :])
    return None  # the timers in the order of their time


def all_entries(storage: Storage, handle: Handle) -> Iterator[Changes]:
    """Yield all stored entries of a subtask in key order."""
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-diff-") as scratch:
        yield from merged_state(storage, handle, Path(scratch))


def _of_subtask(
    old_storage: Storage, old: Handle | None, new_storage: Storage, new: Handle | None
) -> Iterator[tuple[bytes, Change]]:
    if old is not None and new is not None:
        common = _newest_common_version(old, new)
        if common is not None:
            yield from _since(common, old_storage, old, new_storage, new)
            return
        of_shared_files = _outside_shared_files(old_storage, old, new_storage, new)
        if of_shared_files is not None:
            yield from of_shared_files
            return
    yield from _compare(
        iter(()) if old is None else all_entries(old_storage, old),
        iter(()) if new is None else all_entries(new_storage, new),
    )


def _newest_common_version(old: Handle, new: Handle) -> str | None:
    shared = set(new.lineage)
    return next((version for version in reversed(old.lineage) if version in shared), None)


def _since(
    common: str, old_storage: Storage, old: Handle, new_storage: Storage, new: Handle
) -> Iterator[tuple[bytes, Change]]:
    """Yield what differs after a version that both handles have in their lineage."""
    before = _last_writes(old_storage, old, old.lineage.index(common), len(old.segments))
    after = _last_writes(new_storage, new, new.lineage.index(common), len(new.segments))
    keys = sorted(before.keys() ^ after.keys())  # the other keys were written on both sides
    at_common = _values_at(old_storage, old, common, keys)
    for key in before.keys() | after.keys():
        change = Change(
            before[key] if key in before else at_common.get(key),
            after[key] if key in after else at_common.get(key),
        )
        if change.old != change.new:
            yield key, change


def _outside_shared_files(
    old_storage: Storage, old: Handle, new_storage: Storage, new: Handle
) -> Iterator[tuple[bytes, Change]] | None:
    """Return what differs if the two base snapshots share files, else ``None``."""
    if old.base is None or new.base is None:
        return None
    before = _last_writes(old_storage, old, 0, len(old.segments))
    after = _last_writes(new_storage, new, 0, len(new.segments))
    values = values_that_may_differ(
        StoredBase(old_storage, old.base),
        StoredBase(new_storage, new.base),
        before.keys() | after.keys(),
    )
    if values is None:
        return None
    before, after = values[0] | before, values[1] | after
    changes = ((key, Change(before[key], after[key])) for key in before)
    return ((key, change) for key, change in changes if change.old != change.new)


def _last_writes(storage: Storage, handle: Handle, first: int, end: int) -> Entries:
    """Return the last writes to each key in some segments."""
    writes: Entries = {}
    for part in segment_changes(storage, handle.segments[first:end]):
        writes.update(zip(part.keys, part.values, strict=True))
    return writes


def _values_at(storage: Storage, handle: Handle, version: str, keys: Sequence[bytes]) -> Entries:
    """Return the values of keys, which are in order, at a version of a handle's lineage."""
    if not keys:
        return {}
    found: Entries = {} if handle.base is None else _in_base(storage, handle.base, keys)
    wanted = set(keys)
    end = handle.lineage.index(version)
    for part in segment_changes(storage, handle.segments[:end]):
        for key, value in zip(part.keys, part.values, strict=True):
            if key in wanted:
                found[key] = value
    return found


def _in_base(storage: Storage, base: BaseSnapshot, keys: Sequence[bytes]) -> Entries:
    files_format = find_snapshot_format(base.format)
    if files_format is not None:
        return values_in(StoredBase(storage, base), files_format, keys)
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-diff-") as scratch:
        return _among(read_base(storage, base, Path(scratch)), keys)


def _among(parts: Iterable[Changes], keys: Sequence[bytes]) -> Entries:
    """Return the entries of some keys; both are in key order."""
    found: Entries = {}
    for part in parts:
        if not part.keys:
            continue
        place = 0
        first, end = bisect_left(keys, part.keys[0]), bisect_right(keys, part.keys[-1])
        for key in keys[first:end]:
            place = bisect_left(part.keys, key, place)
            if part.keys[place] == key:
                found[key] = part.values[place]
    return found


def _compare(old: Iterator[Changes], new: Iterator[Changes]) -> Iterator[tuple[bytes, Change]]:
    """Yield what differs between two states in key order."""
    first, second = _nonempty(old), _nonempty(new)
    left, right = next(first, None), next(second, None)
    while left is not None and right is not None:
        high = min(left.keys[-1], right.keys[-1])
        before, left = _cut(left, high)
        after, right = _cut(right, high)
        if before.keys != after.keys or before.values != after.values:
            yield from _different(before, after)
        left = next(first, None) if left is None else left
        right = next(second, None) if right is None else right
    nothing = Changes([], [])
    while left is not None:
        yield from _different(left, nothing)
        left = next(first, None)
    while right is not None:
        yield from _different(nothing, right)
        right = next(second, None)


def _nonempty(parts: Iterator[Changes]) -> Iterator[Changes]:
    return (part for part in parts if part.keys)


def _cut(part: Changes, high: bytes) -> tuple[Changes, Changes | None]:
    """Divide a part after a key; the second half is ``None`` if nothing is left."""
    place = bisect_right(part.keys, high)
    rest = Changes(part.keys[place:], part.values[place:])
    return Changes(part.keys[:place], part.values[:place]), rest if rest.keys else None


def _different(old: Changes, new: Changes) -> Iterator[tuple[bytes, Change]]:
    before = dict(zip(old.keys, old.values, strict=True))
    after = dict(zip(new.keys, new.values, strict=True))
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            yield key, Change(before.get(key), after.get(key))


@dataclass(frozen=True, slots=True)
class StoredBase:
    """A base snapshot, and the storage that its paths are in."""

    storage: Storage
    base: BaseSnapshot


def values_that_may_differ(
    old: StoredBase, new: StoredBase, written_later: Iterable[bytes]
) -> tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]] | None:
    """Return the values of all keys that may differ between two base snapshots.

    `written_later` has further keys, which segments after one of the base snapshots have written.
    The result has the values in the old and in the new snapshot. It is ``None`` if all entries have
    to be compared, because too few files are shared or deletions cannot be read.
    """
    files_format = find_snapshot_format(old.base.format)
    if files_format is None or new.base.format != old.base.format:
        return None
    shared = _digests(old.base, files_format) & _digests(new.base, files_format)
    own = [_own_files(side.base, files_format, shared) for side in (old, new)]
    if not shared or any(
        sum(each.file.size_bytes for each in files) > _MOST_OF_ITS_OWN * side.base.size_bytes
        for side, files in zip((old, new), own, strict=True)
    ):
        return None
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-diff-") as scratch:
        keys = set(written_later)
        for number, (side, files) in enumerate(zip((old, new), own, strict=True)):
            place = Path(scratch) / f"own-{number}"
            part = msgspec.structs.replace(side.base, files=tuple(files))
            fetch_files(side.storage, part, files_format, place, in_place=True)
            written = files_format.written_keys(place) if files else iter(())
            if written is None:
                return None
            for some in written:
                keys.update(some)
    in_order = sorted(keys)
    return values_in(old, files_format, in_order), values_in(new, files_format, in_order)


def values_in(
    stored: StoredBase, files_format: SnapshotFormat, keys: Sequence[bytes]
) -> dict[bytes, bytes | None]:
    """Return the values of keys in a base snapshot that is a database."""
    found: dict[bytes, bytes | None] = {}
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-diff-") as scratch:
        place = Path(scratch) / "files"
        fetch_files(stored.storage, stored.base, files_format, place, in_place=True)
        with open_fetched(place, stored.base, read_only=True) as backend:
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                found.update(zip(some, backend.get_many(some), strict=True))
    return found


def _digests(base: BaseSnapshot, files_format: SnapshotFormat) -> set[str]:
    return {each.file.sha256 for each in base.files if files_format.is_immutable(each.name)}


def _own_files(
    base: BaseSnapshot, files_format: SnapshotFormat, shared: set[str]
) -> list[BaseFile]:
    return [
        each
        for each in base.files
        if files_format.is_immutable(each.name) and each.file.sha256 not in shared
    ]
