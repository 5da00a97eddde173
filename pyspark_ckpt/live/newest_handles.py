"""The newest committed epoch of a running query, and its handles, read from Spark's files.

::

    blocks of lz4-java: "LZ4Block" | token u8 | compressed u32 | size u32 | check u32 | data
    inside:             key size i32 | key | value size i32 | value ... | -1

Sizes of blocks are little-endian, the others big-endian. A value is an UnsafeRow: a word of null
bits, then a word per field. The word of a struct or of bytes is ``offset << 32 | size``.

A file that has any other form is not read here. Spark reads it then, which takes a job.
"""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.handles import checked_handles, committed_handle, committed_handles
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.clock import monotonic_ms, now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError, UnknownEpochError
from pyspark_ckpt.formats.handle import Handle, decode_handle
from pyspark_ckpt.formats.modes import TtlTime
from pyspark_ckpt.spark.log import Sources
from pyspark_ckpt.spark.state_files import STATE
from pyspark_ckpt.spark.state_reader import STORES_WITH_CHANGES
from pyspark_ckpt.storage.open import Storage

_LISTED_LATELY_MS = 1000
"""In this time a query cannot commit so many epochs that Spark deletes the next one's entry."""

_MOST_FILES = 20
"""So many small files of Spark's state store are read rather than all of it by Spark."""

_MAGIC = b"LZ4Block"
_BLOCK = struct.Struct("<BIII")
_PLAIN, _COMPRESSED = 0x10, 0x20
_METHOD = 0xF0
_MOST_BYTES = 64 << 20
_SIZE = struct.Struct(">i")
_END = -1
_WORD = struct.Struct("<q")

_FIRST_FIELD = 8
"""Where the first field is, after a word of null bits."""


@dataclass(frozen=True, slots=True)
class CommittedEpoch:
    """One committed epoch.

    `watermark_ms` is the watermark that follows it. `offsets` has where each source continues, as
    Spark writes it. `began_ms` is its processing time. `has_changes` says whether Spark's state
    store has a file of the epoch's changes.
    """

    epoch: int
    watermark_ms: int
    offsets: dict[int, str]
    began_ms: int
    has_changes: bool

    def time_ms(self, time: TtlTime) -> int:
        """Return the time in which entries age, as it is for the epoch that begins now."""
        if time is TtlTime.EVENT_TIME:
            return self.watermark_ms
        return max(now_ms(), self.began_ms)


class CommittedEpochs:
    """Finds the newest committed epoch of a query."""

    def __init__(self, files: QueryFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._newest: CommittedEpoch | None = None
        self._looked_at_ms = 0
        self._commits = files.spark_log.storage.local_path("commits")

    def newest(self) -> CommittedEpoch:
        """Return the newest epoch that was committed before the call, or a newer one.

        It raises ``UnknownEpochError`` if no epoch is committed yet.
        """
        if self._is_newest():
            assert self._newest is not None  # it is the newest
            return self._newest
        looked_at_ms = monotonic_ms()
        epoch = self._files.spark_log.committed_epoch()
        if epoch is None:
            raise UnknownEpochError(
                f"query {self._files.query_id} has committed no epoch yet: read its state after "
                "the first epoch, for example after processAllAvailable"
            )
        with self._lock:
            if self._newest is None or self._newest.epoch < epoch:
                self._newest = self._read(epoch)
            self._looked_at_ms = looked_at_ms
            return self._newest

    def _is_newest(self) -> bool:
        """Return whether the known epoch is the newest, which on a disk is a look at one file.

        Spark deletes old entries, so a missing file means that only if they were listed lately.
        """
        newest = self._newest
        if newest is None or self._commits is None:
            return False
        if monotonic_ms() - self._looked_at_ms > _LISTED_LATELY_MS:
            return False
        return not os.path.exists(f"{self._commits}/{newest.epoch + 1}")  # noqa: PTH110  # 2 us

    def _read(self, epoch: int) -> CommittedEpoch:
        log = self._files.spark_log
        entry = log.offsets_entry(epoch)
        names = self._files.given_names if entry.is_named else ()
        sources = Sources(self._files.source_ids, names)
        offsets = entry.in_order(sources).source_offsets
        return CommittedEpoch(
            epoch,
            log.watermark_ms(epoch),
            dict(zip(sources.ids, offsets, strict=False)),
            int(entry.metadata.get("batchTimestampMs", 0)),
            entry.state_store in STORES_WITH_CHANGES,
        )


class NewestHandles:
    """The handles of one operator at committed epochs, each epoch as new as the one before.

    Threads look up the newest epoch before they ask for handles, so one may ask for an older epoch
    than another did. It gets the newer epoch: handles before that are no longer known.

    `spark` must be a session of :func:`reading_session`.
    """

    def __init__(self, spark: SparkSession, files: QueryFiles, operator_id: int) -> None:
        self._spark = spark
        self._files = files
        self._operator_id = operator_id
        self._lock = threading.Lock()
        self._asked: CommittedEpoch | None = None
        self._known: dict[int, tuple[int, Handle | None]] = {}

    def of_subtask(
        self, committed: CommittedEpoch, subtask: int
    ) -> tuple[CommittedEpoch, Handle | None]:
        """Return the handle of a subtask at an epoch or a newer one, with the epoch that it is of.

        The handle is ``None`` if the subtask has no state yet.

        It reads a small file if the subtask wrote a handle in the epoch. Else Spark may have to
        read the subtask's partition of its state store, once.
        """
        with self._lock:
            committed = self._newest_asked(committed)
            if not self._is_known(committed, subtask):
                handle = committed_handle(
                    self._spark, self._files, committed.epoch, self._operator_id, subtask
                )
                self._known[subtask] = committed.epoch, handle
            return committed, self._known[subtask][1]

    def of_all(self, committed: CommittedEpoch) -> tuple[CommittedEpoch, list[Handle]]:
        """Return the handles of all subtasks that have state, as :meth:`of_subtask`."""
        subtasks = range(self._files.operators.ours[self._operator_id].parallelism)
        with self._lock:
            committed = self._newest_asked(committed)
            if not all(self._is_known(committed, subtask) for subtask in subtasks):
                self._read_all(committed.epoch)
            handles = [self._known[subtask][1] for subtask in subtasks]
        return committed, [handle for handle in handles if handle is not None]

    def _newest_asked(self, committed: CommittedEpoch) -> CommittedEpoch:
        if self._asked is None or self._asked.epoch < committed.epoch:
            self._asked = committed
        return self._asked

    def _is_known(self, committed: CommittedEpoch, subtask: int) -> bool:
        """Return whether a subtask's handle is known, or small files have it."""
        since, handle = self._known.get(subtask, (None, None))
        if since is None or since < committed.epoch:
            written = self._written(committed, subtask, since)
            if written is None:
                return False
            self._known[subtask] = committed.epoch, written[0] if written else handle
        return True

    def _written(
        self, committed: CommittedEpoch, subtask: int, since: int | None
    ) -> list[Handle] | None:
        """Return the last handle that a subtask wrote after an epoch; ``None`` if unknown."""
        first = committed.epoch if since is None else since + 1
        epochs = range(committed.epoch, first - 1, -1)
        if not committed.has_changes or len(epochs) > _MOST_FILES:
            return None
        for epoch in epochs:
            location = self._files.spark_log.storage
            encoded = handles_in_changes(location, self._operator_id, subtask, epoch)
            if encoded is None or len(encoded) > 1:
                return None
            if encoded:
                return self._checked(encoded[0], epoch, subtask)
        return None if since is None else []

    def _checked(self, encoded: bytes, epoch: int, subtask: int) -> list[Handle] | None:
        try:
            handle = decode_handle(encoded)
            checked_handles(self._files, epoch, self._operator_id, [handle])
        except (CorruptFileError, CheckpointAbortedError):
            return None  # Spark's own reader decides
        return [handle] if (handle.subtask, handle.epoch) == (subtask, epoch) else None

    def _read_all(self, epoch: int) -> None:
        handles = committed_handles(self._spark, self._files, epoch, self._operator_id)
        found = {handle.subtask: handle for handle in handles}
        for subtask in range(self._files.operators.ours[self._operator_id].parallelism):
            if self._known.get(subtask, (-1, None))[0] <= epoch:
                self._known[subtask] = epoch, found.get(subtask)


class _OtherFormError(Exception):
    """The bytes are not what this module knows."""


def handles_in_changes(
    location: Storage, operator_id: int, partition: int, epoch: int
) -> list[bytes] | None:
    """Return the handles that an epoch wrote in a partition of Spark's state store.

    Call it for an epoch that ran with the default state store, and that is committed.

    An empty list means that the epoch wrote no handle. ``None`` means that only Spark can read the
    file, or that the file does not exist.
    """
    try:
        data = location.read(f"{STATE}/{operator_id}/{partition}/{epoch + 1}.delta")
    except FileNotFoundError:
        return None
    try:
        # The handle is the only field of a struct, which is the first field of a row.
        return [_first_field(_first_field(row)) for row in _rows(_uncompressed(data))]
    except (_OtherFormError, struct.error, OSError, pa.ArrowException):
        return None


def _uncompressed(data: bytes) -> bytes:
    codec = pa.Codec("lz4_raw")
    parts: list[bytes] = []
    place = total = 0
    while place < len(data):
        if not data.startswith(_MAGIC, place):
            raise _OtherFormError
        token, stored, size, _ = _BLOCK.unpack_from(data, place + len(_MAGIC))
        place += len(_MAGIC) + _BLOCK.size
        if size == 0:  # the last block of a stream
            continue
        block = data[place : place + stored]
        place += stored
        total += size
        if len(block) != stored or total > _MOST_BYTES:
            raise _OtherFormError
        method = token & _METHOD
        if method == _COMPRESSED:
            block = codec.decompress(block, decompressed_size=size, asbytes=True)
        elif method != _PLAIN:
            raise _OtherFormError
        if len(block) != size:
            raise _OtherFormError
        parts.append(block)
    return b"".join(parts)


def _rows(data: bytes) -> list[bytes]:
    rows: list[bytes] = []
    place = 0
    while True:
        (key_size,) = _SIZE.unpack_from(data, place)
        place += _SIZE.size
        if key_size == _END:
            break
        (value_size,) = _SIZE.unpack_from(data, place + max(key_size, 0))
        place += key_size + _SIZE.size
        if key_size < 0 or value_size < 0 or place + value_size > len(data):
            raise _OtherFormError  # among others, a row that was removed
        rows.append(data[place : place + value_size])
        place += value_size
    if place != len(data):
        raise _OtherFormError
    return rows


def _first_field(row: bytes) -> bytes:
    (nulls,) = _WORD.unpack_from(row, 0)
    (word,) = _WORD.unpack_from(row, _FIRST_FIELD)
    offset, size = word >> 32, word & 0xFFFFFFFF
    if nulls & 1 or offset <= _FIRST_FIELD or offset + size > len(row):
        raise _OtherFormError
    return row[offset : offset + size]
