"""Spark's Murmur3 x86_32: each byte behind the last four is mixed in as a number of its own."""

from __future__ import annotations

import struct

SEED = 42
"""The seed of Spark's ``hash``."""

_MASK = 0xFFFFFFFF


def hash_integer(value: int, seed: int) -> int:
    """Return the hash of a 32-bit integer, from 0 to 2**32 - 1."""
    return _finished(_mixed(seed, value), 4)


def hash_long(value: int, seed: int) -> int:
    """Return the hash of a 64-bit integer, from 0 to 2**32 - 1."""
    return _finished(_mixed(_mixed(seed, value), value >> 32), 8)


def hash_bytes(data: bytes, seed: int) -> int:
    """Return the hash of bytes, from 0 to 2**32 - 1."""
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<i", data[:whole]):
        seed = _mixed(seed, word)
    for byte in struct.unpack(f"{len(data) - whole}b", data[whole:]):
        seed = _mixed(seed, byte)
    return _finished(seed, len(data))


def _mixed(seed: int, word: int) -> int:
    mixed = _rotated((word & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    return (_rotated(seed ^ mixed, 13) * 5 + 0xE6546B64) & _MASK


def _finished(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def signed(value: int) -> int:
    """Return a hash as the signed number that Spark shows."""
    return value - (1 << 32) if value >> 31 else value
