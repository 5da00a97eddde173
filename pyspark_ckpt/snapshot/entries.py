"""The stored entries of a subtask as columns of bytes, in key order: ranges, and lookups by key."""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pyspark_ckpt.formats.canonical_file import KeyGroups, canonical_batches
from pyspark_ckpt.formats.change_file import decode_changes_below
from pyspark_ckpt.formats.handle import CANONICAL_FORMAT, CHANGES_FORMAT, BaseSnapshot, Handle
from pyspark_ckpt.operator.durable.base_snapshot import fetch_files, open_fetched, read_base
from pyspark_ckpt.operator.durable.local_copy import segment_changes
from pyspark_ckpt.operator.durable.merged_state import merged_state
from pyspark_ckpt.operator.table.stored_keys import (
    MAX_STATES,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_INDEX,
)
from pyspark_ckpt.snapshot.columns import BinaryColumn
from pyspark_ckpt.storage.open import Storage
from state_backends import Changes, find_snapshot_format


@dataclass(frozen=True, slots=True)
class StoredRange:
    """The stored keys from `start` up to `end`, without `end`.

    `state_id` is the third byte that keyed entries must have, ``None`` for entries of all states.
    `prefix` is what all these keys begin with, empty if there are other keys between them.
    """

    start: bytes
    end: bytes
    state_id: int | None = None
    prefix: bytes = b""

    @classmethod
    def below(cls, prefix: bytes) -> StoredRange:
        """Return where the keys with a prefix are."""
        after = int.from_bytes(prefix, "big") + 1
        return cls(prefix, after.to_bytes(len(prefix), "big"), prefix=prefix)

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


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """Entries in key order."""

    keys: BinaryColumn
    values: BinaryColumn


def stored_entries(
    storage: Storage,
    handle: Handle,
    wanted: StoredRange,
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[StoredEntries]:
    """Yield the entries of a subtask in a range, in batches of bounded size.

    `on_step` is called after each part that is read, also if nothing of it is in the range. What it
    raises ends the reading.
    """
    for keys, values in _batches(storage, handle, wanted, on_step):
        on_step()
        all_keys = BinaryColumn.of(keys)
        start = bisect_left(range(len(keys)), wanted.start, key=all_keys.value)
        end = bisect_left(range(len(keys)), wanted.end, start, key=all_keys.value)
        part = StoredEntries(
            all_keys.between(start, end), BinaryColumn.of(values).between(start, end)
        )
        rows = part.keys.bytes_at(2) == wanted.state_id
        if wanted.state_id is None or rows.all():
            if len(part.keys):
                yield part
        elif rows.any():
            yield StoredEntries(part.keys.take(rows), part.values.take(rows))


def _batches(
    storage: Storage, handle: Handle, wanted: StoredRange, on_step: Callable[[], None]
) -> Iterator[tuple[pa.Array, pa.Array]]:
    base = handle.base
    if base is not None and base.format == CANONICAL_FORMAT and not handle.segments:
        for each in base.files:
            with storage.open_verified(each.file) as file:
                for batch in canonical_batches(
                    file, each.file.path, base.entries or 0, _key_groups(wanted)
                ):
                    yield batch.column(0), batch.column(1)
        return
    if wanted.prefix:
        found = entries_with_prefix(storage, handle, wanted.prefix, on_step)
        yield pa.array(found.keys, pa.binary()), pa.array(found.values, pa.binary())
        return
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-read-") as scratch:
        for part in merged_state(storage, handle, Path(scratch), on_step):
            start = bisect_left(part.keys, wanted.start)
            end = bisect_left(part.keys, wanted.end, start)
            if start < end:
                keys, values = part.keys[start:end], part.values[start:end]
                yield pa.array(keys, pa.binary()), pa.array(values, pa.binary())


def _key_groups(wanted: StoredRange) -> KeyGroups | None:
    """Return the key groups of a range, ``None`` if it has entries with and without a key."""
    if wanted.start >= TIME_INDEX:
        return KeyGroups(without_key=True)
    if wanted.end > TIME_INDEX:
        return None
    first, last = (
        int.from_bytes(key[:2].ljust(2, b"\0"), "big") for key in (wanted.start, wanted.end)
    )
    return KeyGroups(first, last)


def entries_with_prefix(
    storage: Storage, handle: Handle, prefix: bytes, on_step: Callable[[], None] = lambda: None
) -> Changes:
    """Return the entries of a subtask whose stored keys have a prefix, in key order.

    They must fit into memory. Segments are read whole; of a base snapshot in the files of a
    backend, only what the backend reads.

    `on_step` is called after each part that is read. What it raises ends the reading.
    """
    found: dict[bytes, bytes | None] = {}
    if handle.base is not None:
        for part in _of_base(storage, handle.base, prefix):
            found.update(_with_prefix(part, prefix))
            on_step()
    for part in segment_changes(storage, handle.segments):
        found.update(_with_prefix(part, prefix))
        on_step()
    keys = sorted(key for key, value in found.items() if value is not None)
    return Changes(keys, [found[key] for key in keys])


def _of_base(storage: Storage, base: BaseSnapshot, prefix: bytes) -> Iterator[Changes]:
    files_format = find_snapshot_format(base.format)
    if files_format is not None:
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-read-") as directory:
            place = Path(directory) / "files"
            fetch_files(storage, base, files_format, place, in_place=True)
            with open_fetched(place, base, read_only=True) as backend:
                entries = list(backend.scan(prefix))
        yield Changes([key for key, _ in entries], [value for _, value in entries])
    elif base.format == CHANGES_FORMAT:
        for each in base.files:
            with storage.open_verified(each.file) as file:
                yield from decode_changes_below(file, each.file.path, prefix)
    else:
        yield from read_base(storage, base)


def _with_prefix(part: Changes, prefix: bytes) -> dict[bytes, bytes | None]:
    return {
        key: value
        for key, value in zip(part.keys, part.values, strict=True)
        if key.startswith(prefix)
    }
