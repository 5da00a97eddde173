"""``_metadata`` files as an attacker would write them: complete, with a correct checksum."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import msgspec

from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import MAGIC, METADATA_FORMAT_VERSION


def packed(body: bytes, version: int = METADATA_FORMAT_VERSION, length: int | None = None) -> bytes:
    """A file with a right checksum around any body."""
    size = len(body) if length is None else length
    return struct.pack(">8sIQ32s", MAGIC, version, size, hashlib.sha256(body).digest()) + body


def tampered(directory: Path, metadata: CheckpointMetadata) -> None:
    """Replace the content of a savepoint's ``_metadata``."""
    (directory / "_metadata").write_bytes(packed(msgspec.json.encode(metadata)))
