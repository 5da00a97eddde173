"""The change file: a backend-neutral stream of puts and deletes.

Changelog segments and base snapshots are both change files::

    magic "CKPTCHG1" | frame ... frame | end frame
    frame:      payload length u32 | payload crc32 u32 | payload: MessagePack [keys, values]
    end frame:  0 u32              | number of entries u32 modulo 2**32

A value of nil is a delete. Integers are big-endian. The end frame shows whether a file was
cut, even if there is no digest.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterable, Iterator, Sized
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from pyspark_ckpt.errors import CorruptFileError, StateValueError
from pyspark_ckpt.storage.base import corrupt_file
from state_backends import Changes

MAGIC = b"CKPTCHG1"
MAX_FRAME_BYTES = 1 << 30
_FRAME_HEADER = struct.Struct(">II")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes | None]])


_Part = TypeVar("_Part", bound=Sized)


class EntryCount:
    """Counts the entries of changes that pass through; `entries` is the number so far."""

    def __init__(self) -> None:
        self.entries = 0

    def through(self, parts: Iterable[_Part]) -> Generator[_Part, None, None]:
        """Yield the parts as they are."""
        for part in parts:
            self.entries += len(part)
            yield part


def encode_changes(parts: Iterable[Changes]) -> Iterator[bytes]:
    """Yield the bytes of a change file: one frame for each part, or more for a large part."""
    yield MAGIC
    count = EntryCount()
    for part in count.through(parts):
        for payload in _payloads(part):
            yield _FRAME_HEADER.pack(len(payload), zlib.crc32(payload))
            yield payload
    yield _FRAME_HEADER.pack(0, count.entries & 0xFFFFFFFF)


def decode_changes(source: BinaryIO, name: str) -> Iterator[Changes]:
    """Yield the parts of a change file; if it ends without an error, the file was whole.

    `source` must be positioned at its start.
    """
    _check_magic(source, name)
    entries = 0
    while True:
        length, check = _FRAME_HEADER.unpack(_read(source, _FRAME_HEADER.size, name))
        if length == 0:
            if check != entries & 0xFFFFFFFF:
                raise corrupt_file(
                    name, f"it ends after {entries} entries, but {check} were written"
                )
            if source.read(1):
                raise corrupt_file(name, "it continues after its end")
            return
        if length > MAX_FRAME_BYTES:
            raise corrupt_file(name, f"it declares a frame of {length} bytes")
        part = _frame(_read(source, length, name), check, name)
        entries += len(part)
        yield part


def decode_changes_below(source: BinaryIO, name: str, prefix: bytes) -> Iterator[Changes]:
    """Yield the parts of a change file in key order that may have keys with a prefix.

    Only their frames are decoded; of the others, the first key is read. The caller has checked the
    digest of the file.

    `source` must be positioned at its start, and must be seekable.
    """
    _check_magic(source, name)
    last_key = b""
    waiting: _Frame | None = None  # the last frame that began before the prefix
    while (frame := _next_frame(source, name)) is not None:
        if frame.first_key < last_key:
            raise corrupt_file(name, "its frames are not in key order")
        last_key = frame.first_key
        if frame.first_key < prefix:
            waiting = frame
            continue
        if waiting is not None:
            yield _read_frame(source, waiting, name)
            waiting = None
        if not frame.first_key.startswith(prefix):
            return
        yield _read_frame(source, frame, name)
    if waiting is not None:
        yield _read_frame(source, waiting, name)


def _check_magic(source: BinaryIO, name: str) -> None:
    magic = source.read(len(MAGIC))
    if magic == MAGIC:
        return
    if magic[:-1] == MAGIC[:-1] and MAGIC < magic <= MAGIC[:-1] + b"9":
        raise CorruptFileError(
            f"{name}: change file format {chr(magic[-1])} is newer than this library's "
            f"{chr(MAGIC[-1])}; upgrade pyspark_ckpt"
        )
    raise corrupt_file(name, "it does not start as a change file")


class _Frame(NamedTuple):
    """Where a frame is, its checksum, and its first key."""

    place: int
    length: int
    check: int
    first_key: bytes


def _next_frame(source: BinaryIO, name: str) -> _Frame | None:
    """Read the head of the frame at the file's position, and move to the end of the frame."""
    length, check = _FRAME_HEADER.unpack(_read(source, _FRAME_HEADER.size, name))
    if length == 0:
        return None
    if length > MAX_FRAME_BYTES:
        raise corrupt_file(name, f"it declares a frame of {length} bytes")
    place = source.tell()
    first_key = _first_key(source, length, name)
    source.seek(place + length)
    return _Frame(place, length, check, first_key)


def _read_frame(source: BinaryIO, frame: _Frame, name: str) -> Changes:
    behind = source.tell()
    source.seek(frame.place)
    part = _frame(_read(source, frame.length, name), frame.check, name)
    source.seek(behind)
    return part


_HEAD_BYTES = 16
"""More than the heads of three MessagePack values have."""


def _first_key(source: BinaryIO, length: int, name: str) -> bytes:
    """Read the first key of a frame: an array whose first value is the array of its keys."""
    place = source.tell()
    head = _read(source, min(length, _HEAD_BYTES), name)
    try:
        key_at = 1 + {0xDC: 3, 0xDD: 5}.get(head[1], 1)
        start = key_at + 1 + {0xC4: 1, 0xC5: 2, 0xC6: 4}[head[key_at]]
    except LookupError as exc:
        raise corrupt_file(name, "a frame holds no keys") from exc
    key_bytes = int.from_bytes(head[key_at + 1 : start], "big")
    if start + key_bytes > length:
        raise corrupt_file(name, "a frame is shorter than its first key")
    source.seek(place + start)
    return _read(source, key_bytes, name)


def _payloads(part: Changes) -> Iterator[bytes]:
    payload = _encoder.encode((part.keys, part.values))
    if len(payload) <= MAX_FRAME_BYTES:
        yield payload
        return
    half = len(part) // 2
    if half == 0:
        raise StateValueError(
            f"one state entry has {len(payload)} bytes, and the limit is {MAX_FRAME_BYTES}: split "
            "it, for example into entries of a map"
        )
    yield from _payloads(Changes(part.keys[:half], part.values[:half]))
    yield from _payloads(Changes(part.keys[half:], part.values[half:]))


def _frame(payload: bytes, check: int, name: str) -> Changes:
    if zlib.crc32(payload) != check:
        raise corrupt_file(name, "a frame does not match its checksum")
    return _decode(payload, name)


def _decode(payload: bytes, name: str) -> Changes:
    try:
        keys, values = _decoder.decode(payload)
    except msgspec.MsgspecError as exc:
        raise corrupt_file(name, f"a frame holds no keys and values ({exc})") from exc
    if len(keys) != len(values):
        raise corrupt_file(name, f"a frame has {len(keys)} keys and {len(values)} values")
    return Changes(keys, values)


def _read(source: BinaryIO, size: int, name: str) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise corrupt_file(name, "it is cut short")
    return data
