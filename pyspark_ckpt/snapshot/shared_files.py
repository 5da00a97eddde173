"""What differs between two databases that have files in common; those files are not read.

A file is never written again, and each entry in it has its number in the order of writes. So if the
newest writes of a key are in files that both databases have, they are one write. A key that differs
was therefore written by a file that only one of the databases has, or by a segment after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot
from pyspark_ckpt.operator.durable.base_snapshot import fetch_files, open_fetched
from pyspark_ckpt.storage.open import Storage
from state_backends import SnapshotFormat, find_snapshot_format

_AT_ONCE = 10_000
_MOST_OF_ITS_OWN = 0.25
"""If a database has more than this share of its bytes for itself, reading all entries is faster,
and the keys of its own files take too much memory."""


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
