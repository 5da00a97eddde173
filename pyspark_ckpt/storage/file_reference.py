"""A file in a storage, by its path, size and digest."""

from __future__ import annotations

import msgspec


class FileReference(msgspec.Struct, frozen=True):
    """A file by its path relative to a checkpoints or savepoint directory."""

    path: str
    size_bytes: int
    sha256: str
