"""Where MessagePack values end, because msgspec does not say it."""

from __future__ import annotations

import struct

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)
"""What msgspec raises for bytes that are not a value of the type; the second for bad texts."""

_FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Number of bytes after the first byte, by the first byte."""

_SIZED = {
    0xC4: (">B", 0), 0xC5: (">H", 0), 0xC6: (">I", 0),
    0xC7: (">B", 1), 0xC8: (">H", 1), 0xC9: (">I", 1),
    0xD9: (">B", 0), 0xDA: (">H", 0), 0xDB: (">I", 0),
}  # fmt: skip
"""Format of the length that follows, and bytes that the length does not count."""

_COUNTED = {0xDC: (">H", 1), 0xDD: (">I", 1), 0xDE: (">H", 2), 0xDF: (">I", 2)}
"""Format of the number of items that follows, and values per item."""


def end_of_value(data: bytes, start: int) -> int:
    """Return where the MessagePack value that begins at `start` ends."""
    position, open_values = start, 1
    while open_values:
        open_values -= 1
        try:
            position, items = _past_head(data, position)
        except (LookupError, struct.error) as exc:
            raise ValueError(f"no whole MessagePack value at {start}") from exc
        open_values += items
    if position > len(data):
        raise ValueError(f"no whole MessagePack value at {start}")
    return position


def _past_head(data: bytes, position: int) -> tuple[int, int]:
    """Return the position after a value's head and own bytes, and the number of values in it."""
    first = data[position]
    position += 1
    if first <= 0x7F or first >= 0xE0:
        return position, 0
    if first <= 0x8F:
        return position, 2 * (first & 0x0F)
    if first <= 0x9F:
        return position, first & 0x0F
    if first <= 0xBF:
        return position + (first & 0x1F), 0
    if first in _FIXED:
        return position + _FIXED[first], 0
    if first in _SIZED:
        form, more = _SIZED[first]
        length = struct.unpack_from(form, data, position)[0]
        return position + struct.calcsize(form) + more + length, 0
    form, values = _COUNTED[first]
    count = struct.unpack_from(form, data, position)[0]
    return position + struct.calcsize(form), values * count
