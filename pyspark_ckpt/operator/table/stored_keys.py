"""The layout of the keys in a subtask's ordered byte store.

========================================  ======================================================
``key group (2) | state id (1) | key …``  keyed state; a key group is one range, below ``80 00``
``key group (2) | ff | key | time (8)``   timers of a key
``80 00 | time (8) | key group | key``    the same timers in the order of their time
``81 00 | state id (1) | …``              operator list and broadcast state of the subtask
``82 00 | chunk number (4)``              raw state of the subtask
``ff ff …``                               reserved by the backends
========================================  ======================================================

Keys are MessagePack, whose values say where they end. So no stored key is a prefix of another key's
entries by accident.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

MAX_STATES = 255
"""Most states of one operator; the timers have the next id."""

TIMERS_ID = bytes([MAX_STATES])
TIME_INDEX = b"\x80\x00"
OPERATOR_STATE = b"\x81\x00"
RAW_STATE = b"\x82\x00"

KEY_GROUP_BYTES = 2
KEY_START = KEY_GROUP_BYTES + 1
"""Where the key begins in a keyed entry: the state's id is before it."""

TIME_BYTES = 8
_KEY_GROUP = struct.Struct(">H")
_TIME = struct.Struct(">Q")
_TIME_OFFSET = 1 << 63

Numbers = np.ndarray[Any, Any]


def encode_key_group(key_group: int) -> bytes:
    """Return the two bytes that stored keys of a key group start with."""
    return _KEY_GROUP.pack(key_group)


def encode_time(time_ms: int) -> bytes:
    """Return a time in milliseconds, any 64-bit integer, as bytes in the order of time."""
    return _TIME.pack(time_ms + _TIME_OFFSET)


def encode_times(times_ms: Numbers) -> list[bytes]:
    """Return :func:`encode_time` of each time; they are 64-bit integers."""
    shifted = times_ms.astype(np.int64).view(np.uint64) ^ np.uint64(_TIME_OFFSET)
    data = shifted.astype(">u8").tobytes()
    return [data[start : start + TIME_BYTES] for start in range(0, len(data), TIME_BYTES)]


def decode_time(data: bytes) -> int:
    """Return the time that :func:`encode_time` encoded."""
    time: int = _TIME.unpack(data)[0] - _TIME_OFFSET
    return time


def is_keyed(stored_key: bytes) -> bool:
    """Return whether an entry is a key's state or timer."""
    return stored_key < TIME_INDEX


def state_id_of(stored_key: bytes) -> int:
    """Return the id of the state that a keyed entry belongs to."""
    return stored_key[KEY_GROUP_BYTES]
