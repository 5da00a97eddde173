"""The parts of a large file that is uploaded in several requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

PART_BYTES = 8 << 20
"""Size of the first parts of an upload; S3 requires at least 5 MiB."""

_PARTS_BEFORE_DOUBLING = 1000
"""After so many parts, parts grow, because S3 accepts at most 10,000 parts, and 5 TiB in all."""


def in_parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a file's content in parts that a server accepts; none if the file is empty."""
    part = bytearray()
    number = 0
    for chunk in chunks:
        part += chunk
        size_bytes = PART_BYTES << (number // _PARTS_BEFORE_DOUBLING)
        while len(part) >= size_bytes:
            yield bytes(part[:size_bytes])
            del part[:size_bytes]
            number += 1
    if part:
        yield bytes(part)
