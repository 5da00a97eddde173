"""A file in chunks, with its size and digest."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable
from typing import BinaryIO

from pyspark_ckpt.storage.file_reference import FileReference

CHUNK_BYTES = 1 << 20


def chunks_of(file: BinaryIO) -> Generator[bytes, None, None]:
    """Yield the rest of a file, a chunk at a time."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def sha256_of(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of a file."""
    digest = hashlib.sha256()
    for chunk in chunks_of(file):
        digest.update(chunk)
    return digest.hexdigest()


class DigestedChunks:
    """Counts and digests the chunks of a file that is being written.

    `size_bytes` and `sha256` are of the chunks that were read so far.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def through(self, chunks: Iterable[bytes]) -> Generator[bytes, None, None]:
        """Yield the chunks as they are."""
        for chunk in chunks:
            self._digest.update(chunk)
            self.size_bytes += len(chunk)
            yield chunk

    @property
    def sha256(self) -> str:
        """The SHA-256 in hexadecimal digits."""
        return self._digest.hexdigest()

    def reference(self, path: str) -> FileReference:
        """Return the reference of the file, after all chunks were read."""
        return FileReference(path=path, size_bytes=self.size_bytes, sha256=self.sha256)
