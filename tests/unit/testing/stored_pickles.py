"""Finds pickles in a capture, also in compressed columns and in the values of states."""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from pyspark_ckpt.formats.change_file import decode_changes
from pyspark_ckpt.operator.capture.capture_file import CapturePart, SectionName, decode_parts

STREAMS = (SectionName.ROWS, SectionName.BROADCAST, SectionName.OUTPUT)
_BEGIN = re.compile(rb"\x80[\x02-\x05]")
_FEW = 4
"""So few operations are found in other bytes by chance."""


def pickles_in_capture(file: Path) -> list[bytes]:
    """Return what can be read as a pickle of protocol 2 or later."""
    found = []
    with file.open("rb") as source:
        for part in decode_parts(source, str(file)):
            for content in _contents(part):
                starts = (match.start() for match in _BEGIN.finditer(content))
                found += [content[start:] for start in starts if _is_pickle(content[start:])]
    return found


def _is_pickle(content: bytes) -> bool:
    try:
        return sum(1 for _ in pickletools.genops(content)) > _FEW
    except Exception:
        return False


def _contents(part: CapturePart) -> Iterator[bytes]:
    yield msgspec.json.encode(part.epoch)
    for name, section in part.sections.items():
        if not section:
            continue
        if name in STREAMS:
            table = pa.ipc.open_stream(section).read_all()
            yield str(table.schema).encode()
            for column in table.combine_chunks().columns:
                for chunk in column.chunks:
                    yield from (bytes(each) for each in chunk.buffers() if each is not None)
        else:
            for changes in decode_changes(io.BytesIO(section), name):
                yield from changes.keys
                yield from (value for value in changes.values if value is not None)
