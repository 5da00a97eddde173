"""Reads a canonical savepoint without the library: one file, with nothing but pyarrow.

``python tools/read_savepoint.py SAVEPOINT`` prints a line of JSON for each entry of state. It shows
that a savepoint can be read when the library is gone. It shares no code with the library; the
format is in docs/operate/formats.md.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

MAGIC = b"SPRKCKPT"
HEADER = struct.Struct(">8sIQ32s")
NEWEST_FORMAT = 1
KINDS_WITH_KEY = ("value", "list", "map", "timer")
TIME_OFFSET = 1 << 63
SIZES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def read_metadata(savepoint: Path) -> dict[str, Any]:
    """Return the content of ``_metadata``, checked by its digest."""
    data = (savepoint / "_metadata").read_bytes()
    magic, version, length, digest = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if magic != MAGIC or version > NEWEST_FORMAT:
        raise ValueError(f"{savepoint}: no _metadata of a format up to {NEWEST_FORMAT}")
    if len(body) != length or hashlib.sha256(body).digest() != digest:
        raise ValueError(f"{savepoint}: its _metadata is damaged")
    metadata: dict[str, Any] = json.loads(body)
    return metadata


def unpack(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Return the MessagePack value at a position, and where it ends."""
    first = data[at]
    at += 1
    if first <= 0x7F:
        return first, at
    if first >= 0xE0:
        return first - 0x100, at
    if first in CONSTANTS:
        return CONSTANTS[first], at
    if first in NUMBERS:
        form = struct.Struct(NUMBERS[first])
        return form.unpack_from(data, at)[0], at + form.size
    if 0xA0 <= first <= 0xBF:
        return data[at : at + (first & 0x1F)].decode(), at + (first & 0x1F)
    if first in SIZES:
        form = struct.Struct(SIZES[first])
        length = form.unpack_from(data, at)[0]
        raw = data[at + form.size : at + form.size + length]
        return (raw.decode() if first >= 0xD9 else raw), at + form.size + length
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        count, at = _count(data, first, at, 0x80)
        pairs = {}
        for _ in range(count):
            key, at = unpack(data, at)
            pairs[tuple(key) if isinstance(key, list) else key], at = unpack(data, at)
        return pairs, at
    if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
        count, at = _count(data, first, at, 0x90)
        items = []
        for _ in range(count):
            item, at = unpack(data, at)
            items.append(item)
        return items, at
    raise ValueError(f"no value begins with {first:#x}")


def _count(data: bytes, first: int, at: int, short: int) -> tuple[int, int]:
    if first < short + 0x10:
        return first & 0x0F, at
    form = struct.Struct(">H" if first in (0xDC, 0xDE) else ">I")
    return form.unpack_from(data, at)[0], at + form.size


def read_entries(savepoint: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of keys and their timers: operator, state, kind, key, and what is stored.

    A list has one entry for each item, with its number. `written_ms` is when an entry of a state
    with a time to live was written; an entry may have expired. Values are in the form in which they
    are stored: times are numbers, decimals are texts.
    """
    for operator in read_metadata(savepoint)["operators"]:
        for handle in operator["handles"]:
            if handle["base"] is None:
                continue
            if handle["base"]["format"] != "canonical" or handle["segments"]:
                raise ValueError(f"{savepoint} is no canonical savepoint")
            for each in handle["base"]["files"]:
                yield from _entries_of(savepoint, each["file"], operator["uid"])


def _entries_of(savepoint: Path, file: dict[str, Any], uid: str) -> Iterator[dict[str, Any]]:
    path = savepoint / file["path"]
    if hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]:
        raise ValueError(f"{path} is damaged")
    parquet = pq.ParquetFile(path)
    described = json.loads(parquet.schema_arrow.metadata[b"pyspark_ckpt.subtask"])
    states = {state["name"]: state for state in described["states"]}
    for batch in parquet.iter_batches():
        for row in batch.to_pylist():
            if row["kind"] in KINDS_WITH_KEY:
                for entry in _decoded(row, states.get(row["state"])):
                    yield {"operator": uid, "state": row["state"], "kind": row["kind"], **entry}


def _decoded(row: dict[str, Any], state: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield what one row of the file stores; the head of a list stores no item."""
    stored_key, value = row["stored_key"], row["stored_value"]
    key, end = unpack(stored_key, 3)  # after two bytes for the key group, one for the state
    rest = stored_key[end:]
    if state is None:
        yield {"key": key, "time_ms": struct.unpack(">Q", rest)[0] - TIME_OFFSET}
        return
    entry: dict[str, Any] = {"key": key}
    at = 0
    if state["is_stamped"]:
        entry["written_ms"], at = unpack(value)
    if state["kind"] == "list":
        if rest:
            items, _ = unpack(value, at)
            for number, item in enumerate(items, struct.unpack(">I", rest)[0]):
                yield {**entry, "index": number, "value": _value(item, 0)}
        return
    if state["kind"] == "map":
        entry["map_key"] = unpack(rest)[0]
    yield {**entry, "value": _value(value, at)}


def _value(data: bytes, at: int) -> Any:
    if data[at] == 0xCC:  # the number of a later schema of the state comes first
        at += 2
    return unpack(data, at)[0]


def _shown(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    for found in read_entries(Path(sys.argv[1])):
        sys.stdout.write(json.dumps(found, default=_shown) + "\n")
