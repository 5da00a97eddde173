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
from collections.abc import Generator, Iterable, Iterator
from typing import BinaryIO

import msgspec

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.storage.corrupt_file import corrupt_file
from state_backends import Changes

MAGIC = b"CKPTCHG1"
MAX_FRAME_BYTES = 1 << 30
_FRAME_HEADER = struct.Struct(">II")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes | None]])


class EntryCount:
    """Counts the entries of changes that pass through; `entries` is the number so far."""

    def __init__(self) -> None:
        self.entries = 0

    def through(self, parts: Iterable[Changes]) -> Generator[Changes, None, None]:
        """Yield the parts as they are."""
        for part in parts:
            self.entries += len(part)
            yield part


def encode_changes(parts: Iterable[Changes]) -> Iterator[bytes]:
    """Yield the bytes of a change file: one frame for each part, or more for a large part.

    Raises
    ------
    StateValueError
        If a single entry is larger than a frame may be.
    """
    yield MAGIC
    count = EntryCount()
    for part in count.through(parts):
        for payload in _payloads(part):
            yield _FRAME_HEADER.pack(len(payload), zlib.crc32(payload))
            yield payload
    yield _FRAME_HEADER.pack(0, count.entries & 0xFFFFFFFF)


def decode_changes(source: BinaryIO, name: str) -> Iterator[Changes]:
    """Yield the parts of a change file; if it ends without an error, the file was whole.

    Parameters
    ----------
    source
        The file, positioned at its start.
    name
        The name of the file in errors.

    Raises
    ------
    CorruptFileError
        If the file is cut short, changed, or not a change file.
    """
    if source.read(len(MAGIC)) != MAGIC:
        raise corrupt_file(name, "it does not start as a change file")
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
        payload = _read(source, length, name)
        if zlib.crc32(payload) != check:
            raise corrupt_file(name, "a frame does not match its checksum")
        part = _decode(payload, name)
        entries += len(part)
        yield part


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
