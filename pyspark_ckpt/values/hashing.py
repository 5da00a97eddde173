"""Spark's ``hash`` without Spark: Murmur3 over plain values.

The hash of one column is the seed of the next, and a null leaves the seed as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Context, Decimal

SEED = 42
"""The seed of Spark's ``hash``."""

_MASK = 0xFFFFFFFF

_LONG_DIGITS = 18
"""Spark hashes decimals of at most so many digits as a long."""

_ALL_DIGITS = Context(prec=2 * 38)
"""Of any decimal of Spark, unscaled; the context of the thread may have fewer."""


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


def hash_float(value: float, seed: int) -> int:
    """Return the hash of a float or double: the plan hashes both as doubles."""
    return hash_long(struct.unpack(">q", struct.pack(">d", value))[0], seed)


def hash_text(value: str, seed: int) -> int:
    """Return the hash of a text."""
    return hash_bytes(value.encode(), seed)


def decimal_hash(precision: int, scale: int) -> Callable[[Decimal, int], int]:
    """Return the function that hashes decimals of so many digits."""

    def hash_decimal(value: Decimal, seed: int) -> int:
        unscaled = int(value.scaleb(scale, context=_ALL_DIGITS))
        if precision <= _LONG_DIGITS:
            return hash_long(unscaled, seed)
        # As Java's BigInteger.toByteArray: the fewest bytes that hold the sign.
        magnitude = unscaled if unscaled >= 0 else ~unscaled
        width = magnitude.bit_length() // 8 + 1
        return hash_bytes(unscaled.to_bytes(width, "big", signed=True), seed)

    return hash_decimal
