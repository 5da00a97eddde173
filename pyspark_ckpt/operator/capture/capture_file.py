"""The capture file: what a processor saw in epochs of subtasks, and what it made of it.

::

    part ... part                                   one for each epoch of a subtask; may be joined
    part:     magic "CKPTCAP1" | header length u32 | header crc32 u32 | header: JSON | sections
    section:  the bytes that the header tells, with their SHA-256

============  =================================================================
``keys``      the keys that the epoch worked on, as a change file without values
``rows``      the keyed rows as they were sent, as an Arrow IPC stream
``broadcast`` the broadcast rows as they were sent, as an Arrow IPC stream
``before``    state before the epoch, as a change file
``after``     what the epoch wrote, as a change file
``output``    the output as it was sent, as an Arrow IPC stream
============  =================================================================

State is that of the keys that the epoch worked on, and all state that belongs to no key. Integers
are big-endian. Nothing is pickled, and no name in a file is imported.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import msgspec

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.storage.base import corrupt_file

CAPTURE_FORMAT_VERSION = 1
MAGIC = b"CKPTCAP1"
MAX_HEADER_BYTES = 64 << 20
MAX_SECTION_BYTES = 1 << 40
_TO_DO = "capture the epochs again"
_HEAD = struct.Struct(">II")
_CHUNK_BYTES = 1 << 20


class SectionName(str, Enum):
    """The sections of a part."""

    KEYS = "keys"
    ROWS = "rows"
    BROADCAST = "broadcast"
    BEFORE = "before"
    AFTER = "after"
    OUTPUT = "output"

    __str__ = str.__str__


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of a part."""

    name: SectionName
    size_bytes: int
    sha256: str


class CapturedColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a stream: its schema as Spark's JSON, and its key columns.

    `derived_keys` are the key columns that the user's DataFrame does not have.
    """

    schema: str
    keys: tuple[str, ...]
    time_zone: str
    derived_keys: dict[str, str] = {}


class CapturedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """How the operator was built.

    `schemas` are the DDL texts that ``init`` uses, with what they mean. `frame_rows` and
    `frame_bytes` are the limits of a pandas frame. `processor` and `code_sha256` identify the code.
    """

    processor: str
    code_sha256: str
    mode: str
    columns: CapturedColumns
    broadcast: CapturedColumns | None = None
    output_schema: str
    coerces_integers: bool = False
    schemas: dict[str, str] = {}
    frame_rows: int | None = None
    frame_bytes: int | None = None
    quarantines: bool = False


class CapturedClock(msgspec.Struct, frozen=True, kw_only=True):
    """The times of an epoch, as :class:`pyspark_ckpt.operator.time.EpochClock` has them."""

    mode: TimeMode
    processing_time_ms: int
    watermark_ms: int | None
    drained_at_ms: int | None = None
    late_ms: int | None = None


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The quarantined keys that an epoch released: stored keys as hexadecimal digits, or all."""

    keys: tuple[str, ...] = ()
    all: bool = False


class CapturedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of one subtask: the header of a part.

    `handle` names the subtask and its states before the epoch, without any file. `batches` has the
    number of record batches in each part of the rows. `timeline` counts the rollbacks of the
    location. `error` says what the processor raised; such a part has no output. With `quarantined`
    the error quarantined its key, and the epoch went on. `left_out` says why a part has no
    sections.
    """

    format_version: int = CAPTURE_FORMAT_VERSION
    epoch: int
    timeline: int
    run: str
    run_started_ms: int
    written_at_ms: int
    handle: Handle
    states_after: tuple[StateDescriptor, ...] = ()
    clock: CapturedClock
    program: CapturedProgram
    batches: tuple[int, ...] = ()
    completed_checkpoint_id: int | None = None
    released: Released = Released()
    error: str | None = None
    quarantined: bool = False
    left_out: str | None = None
    sections: tuple[Section, ...] = ()

    @property
    def uid(self) -> str:
        """The uid of the operator."""
        return self.handle.uid

    @property
    def subtask(self) -> int:
        """The number of the subtask."""
        return self.handle.subtask

    @property
    def what(self) -> str:
        """The epoch and its subtask, for errors."""
        return f"operator {self.uid!r}, subtask {self.subtask}, epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class CapturePart:
    """One epoch of one subtask, with its sections in memory."""

    epoch: CapturedEpoch
    sections: Mapping[SectionName, bytes]


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Version(msgspec.Struct):
    format_version: int


_version_decoder = msgspec.json.Decoder(_Version)
_decoder = msgspec.json.Decoder(CapturedEpoch)


def encode_part(epoch: CapturedEpoch, sections: Mapping[SectionName, bytes]) -> Iterator[bytes]:
    """Yield the bytes of a part."""
    listed = tuple(
        Section(name, len(data), hashlib.sha256(data).hexdigest())
        for name, data in sections.items()
    )
    header = msgspec.json.encode(msgspec.structs.replace(epoch, sections=listed))
    yield MAGIC + _HEAD.pack(len(header), zlib.crc32(header)) + header
    yield from sections.values()


def decode_parts(source: _Source, name: str) -> Iterator[CapturePart]:
    """Yield the parts of a capture file, each checked.

    `source` must be positioned at its start.
    """
    found = False
    while magic := source.read(len(MAGIC)):
        if magic != MAGIC:
            raise corrupt_file(name, "it is not a capture, or it was changed", _TO_DO)
        epoch = _header(source, name)
        yield CapturePart(epoch, dict(_sections(source, epoch, name)))
        found = True
    if not found:
        raise corrupt_file(name, "it is empty", _TO_DO)


def decode_epoch(source: _Source, name: str) -> CapturedEpoch:
    """Return the header of the first part of a capture file."""
    if source.read(len(MAGIC)) != MAGIC:
        raise corrupt_file(name, "it is not a capture, or it was changed", _TO_DO)
    return _header(source, name)


def _header(source: _Source, name: str) -> CapturedEpoch:
    length, check = _HEAD.unpack(_read(source, _HEAD.size, name))
    if length > MAX_HEADER_BYTES:
        raise corrupt_file(name, f"it declares a header of {length} bytes", _TO_DO)
    data = _read(source, length, name)
    if zlib.crc32(data) != check:
        raise corrupt_file(name, "a header does not match its checksum", _TO_DO)
    try:
        version = _version_decoder.decode(data).format_version
        if version > CAPTURE_FORMAT_VERSION:
            raise CorruptFileError(
                f"{name}: its format {version} is newer than this library's "
                f"{CAPTURE_FORMAT_VERSION}: upgrade pyspark_ckpt"
            )
        epoch = _decoder.decode(data)
        list(map(bytes.fromhex, epoch.released.keys))
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise corrupt_file(
            name, f"a header is not what the library writes ({exc})", _TO_DO
        ) from exc
    names = [section.name for section in epoch.sections]
    if len(set(names)) < len(names):
        raise corrupt_file(name, "a part has a section twice", _TO_DO)
    return epoch


def _sections(
    source: _Source, epoch: CapturedEpoch, name: str
) -> Iterator[tuple[SectionName, bytes]]:
    for section in epoch.sections:
        if not 0 <= section.size_bytes <= MAX_SECTION_BYTES:
            raise corrupt_file(name, f"a section declares {section.size_bytes} bytes", _TO_DO)
        data = _read(source, section.size_bytes, name)
        if hashlib.sha256(data).hexdigest() != section.sha256:
            raise corrupt_file(
                name, f"{epoch.what}: {section.name} does not match its digest", _TO_DO
            )
        yield section.name, data


def _read(source: _Source, size: int, name: str) -> bytes:
    """Read exactly so many bytes; a declared size takes no memory before the bytes are there."""
    chunks, left = [], size
    while left:
        chunk = source.read(min(left, _CHUNK_BYTES))
        if not chunk:
            raise corrupt_file(name, "it is cut short", _TO_DO)
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)
