"""What one epoch changed in a partition of Spark's default state store: ``<version>.delta``.

::

    blocks of lz4-java: "LZ4Block" | token u8 | compressed u32 | size u32 | check u32 | data
    inside:             key size i32 | key | value size i32 | value ... | -1

Sizes of blocks are little-endian, the others big-endian. `check` is the xxHash32 of the data before
compression, without its first four bits. A value is an UnsafeRow: a word of null bits, then a word
per field. The word of a struct or of bytes is ``offset << 32 | size``.

A file that has any other form is not read here. Spark reads its store then, which takes longer.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import xxhash

from pyspark_ckpt.spark.state_files import STATE
from pyspark_ckpt.storage.open import Storage

STORES_WITH_CHANGES = frozenset(
    {"org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}
)
"""State stores that write each epoch's changes to such a file, and replace it if the epoch runs
again.

RocksDB's changelog, if it is on, stays when an epoch runs again with the changelog off.
"""

_MAGIC = b"LZ4Block"
_BLOCK = struct.Struct("<BIII")
_PLAIN, _COMPRESSED = 0x10, 0x20
_METHOD = 0xF0
_SEED, _CHECK_BITS = 0x9747B28C, 0x0FFFFFFF
_MOST_BYTES = 64 << 20
_SIZE = struct.Struct(">i")
_END = -1
_WORD = struct.Struct("<q")

_FIRST_FIELD = 8
"""Where the first field is, after a word of null bits."""


class _OtherFormError(Exception):
    """The bytes are not what this module knows."""


def handles_in_changes(
    location: Storage, operator_id: int, partition: int, epoch: int
) -> list[bytes] | None:
    """Return the handles that an epoch wrote in a partition of Spark's state store.

    Call it for a committed epoch that ran with a store of :data:`STORES_WITH_CHANGES`.

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
        token, stored, size, check = _BLOCK.unpack_from(data, place + len(_MAGIC))
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
        if len(block) != size or xxhash.xxh32_intdigest(block, _SEED) & _CHECK_BITS != check:
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
