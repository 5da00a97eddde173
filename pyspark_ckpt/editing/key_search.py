"""Searches a savepoint for the entries of keys, and for the bytes of keys in other entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    KEY_START,
    RAW_STATE,
    TIME_INDEX,
)
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stored.state import StoredState

_FOUND_SCHEMA = "own long, mentions long"
_FEWEST_BYTES = 4
"""Fewer bytes are in other entries by chance."""
_STREAM_HEAD = len(RAW_STATE) + 2
"""Bytes of a stored key that all chunks of a stream of raw state share."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class KeyBytes:
    """What the entries of others have that mention a key."""

    patterns: frozenset[bytes] = frozenset()
    too_short: int = 0

    @classmethod
    def of(cls, keys: Iterable[tuple[bytes, bytes]]) -> KeyBytes:
        """Return the bytes of keys, each given as a key after its key group, and as a value."""
        patterns: set[bytes] = set()
        too_short: set[bytes] = set()
        for stored, value in keys:
            # A key has some leaves in another form than values: nested ones are JSON.
            for data in (value, stored[KEY_GROUP_BYTES:]):
                for leaf in _leaves(msgspec.msgpack.decode(data)):
                    forms = _forms(leaf)
                    patterns.update(form for form in forms if len(form) >= _FEWEST_BYTES)
                    if len(forms[0]) < _FEWEST_BYTES:
                        too_short.add(value)
        return cls(frozenset(patterns), len(too_short))

    def are_in(self, data: bytes) -> bool:
        """Return whether one of the patterns is in some bytes."""
        return any(pattern in data for pattern in self.patterns)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the texts, numbers and binaries of a plain value that can be searched for at all."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _leaves(pair)
    elif not isinstance(value, bool) and value not in (None, "", b""):
        yield value


def _forms(leaf: Any) -> tuple[bytes, ...]:
    """Return the bytes of a leaf, and other bytes that entries may have of it.

    The first are without the head that says how long a text is, so that they are found in longer
    ones. A short text is found at least where it is the whole text. A number may be in a text.
    """
    if isinstance(leaf, str):
        text = leaf.encode()
        in_json = msgspec.json.encode(leaf)[1:-1]
        return (text, in_json) if len(text) >= _FEWEST_BYTES else (text, _encode(leaf))
    if isinstance(leaf, bytes):
        return (leaf,)
    return (_encode(leaf), str(leaf).encode()) if isinstance(leaf, int) else (_encode(leaf),)


@dataclass(frozen=True, slots=True)
class Found:
    """What a savepoint has of keys."""

    own: int = 0
    mentions: int = 0


@dataclass(frozen=True, slots=True)
class KeySearch:
    """Searches savepoints for keys, in Spark jobs.

    `keys` are as they are stored after their key groups, by the uid of the operator.
    """

    spark: SparkSession
    keys: Mapping[str, frozenset[bytes]]
    key_bytes: KeyBytes

    @property
    def too_short(self) -> int:
        """How many keys are not searched for in entries of others."""
        return self.key_bytes.too_short

    def found_in(self, source: RestoreSource) -> Found:
        """Return what a savepoint has of the keys.

        A handle has the stored key at which the removal of expired entries continues; it counts as
        an entry.
        """
        handles = source.metadata.handles()
        if not handles or not (self.keys or self.key_bytes.patterns):
            return Found()
        encoded = tuple(map(encode_handle, handles))
        places = self.spark.range(len(encoded), numPartitions=len(encoded))
        search = _Search(encoded, source.storage.url, self.keys, self.key_bytes)
        rows = collected(places.mapInArrow(search, _FOUND_SCHEMA), f"searching {source.path}")
        return Found(sum(row.own for row in rows), sum(row.mentions for row in rows))


class _Search:
    """The function given to ``mapInArrow`` over the places of handles: counts what is found."""

    def __init__(
        self,
        handles: tuple[bytes, ...],
        source: str,
        keys: Mapping[str, frozenset[bytes]],
        key_bytes: KeyBytes,
    ) -> None:
        self._handles = handles
        self._source = source
        self._keys = keys
        self._bytes = key_bytes

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self._source)
        for batch in batches:
            for place in batch.column(0).to_pylist():
                found = self._found(storage, decode_handle(self._handles[place]))
                columns = [pa.array([each], pa.int64()) for each in (found.own, found.mentions)]
                yield pa.RecordBatch.from_arrays(columns, names=["own", "mentions"])

    def _found(self, storage: Storage, handle: Handle) -> Found:
        erased = self._keys.get(handle.uid, frozenset())
        own = any(key[KEY_GROUP_BYTES:] in handle.sweep_from for key in erased)
        mentions = not own and self._bytes.are_in(handle.sweep_from)
        counts = Found(int(own), int(mentions))
        raw = _RawState(self._bytes)
        for part in StoredState(storage, handle, executor_local_root(handle.subtask)).scan():
            is_own = _has_key(part.keys, erased)
            has_bytes = _has_bytes(part.keys, part.values, self._bytes.patterns)
            is_mention = pc.and_not(has_bytes, is_own)
            counts = Found(
                counts.own + (pc.sum(is_own).as_py() or 0),
                counts.mentions + (pc.sum(is_mention).as_py() or 0) + raw.over_borders(part),
            )
        return counts


def _has_key(keys: pa.BinaryArray, erased: Iterable[bytes]) -> pa.BooleanArray:
    """Return whether each entry is state or a timer of an erased key."""
    found = pa.array([False] * len(keys))
    for key in erased:
        group, user_key = key[:KEY_GROUP_BYTES], key[KEY_GROUP_BYTES:]
        same_group = pc.starts_with(keys, group)
        end = KEY_START + len(user_key)
        of_key = pc.equal(pc.binary_slice(keys, KEY_START, end), user_key)
        by_time = pc.and_(pc.starts_with(keys, TIME_INDEX), pc.ends_with(keys, key))
        found = pc.or_(found, pc.or_(pc.and_(same_group, of_key), by_time))
    return found


def _has_bytes(
    keys: pa.BinaryArray, values: pa.BinaryArray, patterns: Iterable[bytes]
) -> pa.BooleanArray:
    """Return whether each entry contains one of the patterns."""
    found = pa.array([False] * len(keys))
    for pattern in patterns:
        for data in (keys, values):
            found = pc.or_(found, pc.match_substring(data, pattern))
    return found


class _RawState:
    """Finds bytes that a border between two chunks of raw state divides."""

    def __init__(self, key_bytes: KeyBytes) -> None:
        self._patterns = key_bytes.patterns
        self._stream = b""
        self._last = b""

    def over_borders(self, part: ArrowEntries) -> int:
        """Return how many chunks have the end of a pattern that the chunk before them begins."""
        if part.keys[-1].as_py() < RAW_STATE:
            return 0
        found = 0
        for key, data in part.pairs():
            stream = key[:_STREAM_HEAD]
            if stream == self._stream:
                found += any(self._is_divided(pattern, data) for pattern in self._patterns)
            self._stream, self._last = stream, data if key.startswith(RAW_STATE) else b""
        return found

    def _is_divided(self, pattern: bytes, data: bytes) -> bool:
        most = len(pattern) - 1
        return pattern in self._last[-most:] + data[:most]
