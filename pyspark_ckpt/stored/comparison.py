"""Which stored entries differ between two states of a subtask; what both share is not read.

===========================================  ===================================================
two states                                   what is read
===========================================  ===================================================
are of the same version                      nothing
have a version in common                     the changes after it, and their keys at that version
share files of a database                    the keys that the other files have, on both sides
have neither                                 all entries, which are compared in key order
===========================================  ===================================================

A version has a random name, so one version is one state, in whichever files it is. A file is never
written again, and each entry in it has its number in the order of writes. So if the newest writes
of a key are in files that both databases have, they are one write. A key that differs was therefore
written by a file that only one of the databases has, or by a segment after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow.compute as pc

from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle
from pyspark_ckpt.operator.durable.stored_files import fetch_files
from pyspark_ckpt.stored.sorted_runs import cut_after
from pyspark_ckpt.stored.state import StoredState
from state_backends import SnapshotFormat, find_snapshot_format

_MOST_OF_ITS_OWN = 0.25
"""If a database shares less than the rest of its bytes with the other one, reading all entries is
faster, and the keys of the files that it does not share take too much memory."""


class Change(NamedTuple):
    """The stored values of an entry before and after; ``None`` where there is no entry."""

    old: bytes | None
    new: bytes | None


def changes_between(
    old: StoredState | None, new: StoredState | None
) -> Iterator[tuple[bytes, Change]]:
    """Yield the stored keys whose values differ; a subtask without state is ``None``."""
    if old is not None and new is not None:
        common = _newest_common_version(old.handle, new.handle)
        if common is not None:
            return _since(common, old, new)
        of_own_files = _outside_shared_files(old, new)
        if of_own_files is not None:
            return of_own_files
    return _compared(
        iter(()) if old is None else old.scan(), iter(()) if new is None else new.scan()
    )


def _newest_common_version(old: Handle, new: Handle) -> str | None:
    shared = set(new.lineage)
    return next((version for version in reversed(old.lineage) if version in shared), None)


def _since(common: str, old: StoredState, new: StoredState) -> Iterator[tuple[bytes, Change]]:
    """Yield what differs after a version that both states have in their lineage."""
    before, after = old.last_changes(common), new.last_changes(common)
    keys = sorted(before.keys() ^ after.keys())  # the other keys were written on both sides
    at_common = dict(zip(keys, old.at(common).get_many(keys), strict=True))
    for key in before.keys() | after.keys():
        first = before[key] if key in before else at_common[key]
        second = after[key] if key in after else at_common[key]
        if first != second:
            yield key, Change(first, second)


def _outside_shared_files(
    old: StoredState, new: StoredState
) -> Iterator[tuple[bytes, Change]] | None:
    """Return what differs if the two base snapshots share files, else ``None``."""
    first, second = old.handle.base, new.handle.base
    if first is None or second is None or first.format != second.format:
        return None
    files_format = find_snapshot_format(first.format)
    if files_format is None:
        return None
    shared = _digests(first, files_format) & _digests(second, files_format)
    own = _own_files(first, files_format, shared), _own_files(second, files_format, shared)
    if not shared or any(
        sum(each.file.size_bytes for each in files) > _MOST_OF_ITS_OWN * base.size_bytes
        for base, files in zip((first, second), own, strict=True)
    ):
        return None
    keys = {*old.last_changes(first.version), *new.last_changes(second.version)}
    for side, base, files in zip((old, new), (first, second), own, strict=True):
        written = _written_keys(side, base, files, files_format)
        if written is None:
            return None
        keys |= written
    in_order = sorted(keys)
    values = zip(in_order, old.get_many(in_order), new.get_many(in_order), strict=True)
    return ((key, Change(before, after)) for key, before, after in values if before != after)


def _written_keys(
    side: StoredState,
    base: BaseSnapshot,
    files: Sequence[BaseFile],
    files_format: SnapshotFormat,
) -> set[bytes] | None:
    """Return the keys that some files of a database write; ``None`` if that cannot be read."""
    if not files:
        return set()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-diff-") as scratch:
        place = Path(scratch) / "own"
        part = msgspec.structs.replace(base, files=tuple(files))
        fetch_files(side.storage, part, files_format, place, in_place=True)
        written = files_format.written_keys(place)
        return None if written is None else {key for some in written for key in some}


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


def _compared(
    old: Iterator[ArrowEntries], new: Iterator[ArrowEntries]
) -> Iterator[tuple[bytes, Change]]:
    """Yield what differs between two states in key order."""
    left, right = next(old, None), next(new, None)
    while left is not None and right is not None:
        high = min(left.keys[-1].as_py(), right.keys[-1].as_py())
        before, left = cut_after(left, high)
        after, right = cut_after(right, high)
        yield from _different(before, after)
        left = next(old, None) if left is None else left
        right = next(new, None) if right is None else right
    while left is not None:
        yield from _removed(left)
        left = next(old, None)
    while right is not None:
        yield from _added(right)
        right = next(new, None)


def _different(before: ArrowEntries, after: ArrowEntries) -> Iterator[tuple[bytes, Change]]:
    """Yield what differs between all entries of a range of keys; equal ones stay columns."""
    if before.keys.equals(after.keys):
        later = after.values
    else:
        places = pc.index_in(before.keys, value_set=after.keys)
        yield from _removed(before.filter(places.is_null()))
        yield from _added(after.filter(pc.invert(pc.is_in(after.keys, value_set=before.keys))))
        before, later = before.filter(places.is_valid()), after.values.take(places.drop_null())
    differ = pc.not_equal(before.values, later)
    new_values = later.filter(differ).to_pylist()
    for (key, old), new in zip(before.filter(differ).pairs(), new_values, strict=True):
        yield key, Change(old, new)


def _removed(entries: ArrowEntries) -> Iterator[tuple[bytes, Change]]:
    return ((key, Change(value, None)) for key, value in entries.pairs())


def _added(entries: ArrowEntries) -> Iterator[tuple[bytes, Change]]:
    return ((key, Change(None, value)) for key, value in entries.pairs())
