"""Readers of the values of settings: words, numbers, durations, sizes.

Each reader takes a text. If the text is not allowed, it raises ``ValueError``, or ``KeyError`` for
an unknown word or unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

_Mode = TypeVar("_Mode", bound=Enum)

_TIME_UNITS_MS = {
    "ms": 1, "s": 1000, "sec": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_SIZE_UNITS = {
    "": 1, "b": 1, "kb": 1024, "k": 1024, "mb": 1024**2, "m": 1024**2, "gb": 1024**3, "g": 1024**3,
}  # fmt: skip
MIN_MEMORY_BYTES = 1024**2
MAX_INLINE_BYTES = 1024**2


def one_of(*allowed: str) -> Callable[[str], str]:
    """Return a reader of one of some words, which returns the word in small letters."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(text)
        return text.lower()

    return parse


def member(modes: type[_Mode]) -> Callable[[str], _Mode]:
    """Return a reader of one of some modes, whose values are in small letters."""
    return lambda text: modes(text.lower())


def member_in_capitals(modes: type[_Mode]) -> Callable[[str], _Mode]:
    """Return a reader of one of some modes, whose values are in capitals."""
    # Flink's documentation writes modes in capitals; its programs accept small letters too.
    return lambda text: modes(text.upper())


def several(modes: type[_Mode]) -> Callable[[str], tuple[_Mode, ...]]:
    """Return a reader of ``none``, or of modes with commas between, each read once."""

    def parse(text: str) -> tuple[_Mode, ...]:
        if text.lower() == "none":
            return ()
        return tuple(dict.fromkeys(modes(each.strip().lower()) for each in text.split(",")))

    return parse


def truth(text: str) -> bool:
    """Read ``true`` or ``false``."""
    return {"true": True, "false": False}[text.lower()]


def pause_ms(text: str) -> int:
    """Read a duration, or 0 without a unit; in milliseconds."""
    return 0 if text == "0" else _milliseconds(text)


def _milliseconds(text: str) -> int:
    number, unit = _number_and_unit(text)
    return number * _TIME_UNITS_MS[unit]


def duration_ms(text: str) -> int:
    """Read a duration above zero, in milliseconds."""
    milliseconds = _milliseconds(text)
    if milliseconds <= 0:
        raise ValueError(text)
    return milliseconds


def inline_bytes(text: str) -> int:
    """Read a size of at most :data:`MAX_INLINE_BYTES`."""
    size = size_bytes(text)
    if size > MAX_INLINE_BYTES:
        raise ValueError(text)
    return size


def memory_bytes(text: str) -> int:
    """Read a size of at least :data:`MIN_MEMORY_BYTES`."""
    size = size_bytes(text)
    if size < MIN_MEMORY_BYTES:
        raise ValueError(text)
    return size


def size_bytes(text: str) -> int:
    """Read a size."""
    number, unit = _number_and_unit(text)
    return number * _SIZE_UNITS[unit]


def _number_and_unit(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"(\d{1,12})\s*([a-zA-Z]*)", text)
    if match is None:
        raise ValueError(text)
    return int(match[1]), match[2].lower()


def at_least_one(text: str) -> int:
    """Read a whole number above zero."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def port(text: str) -> int:
    """Read the number of a port; 0 is any free port."""
    number = int(text)
    if not 0 <= number <= 65_535:
        raise ValueError(text)
    return number


def host(text: str) -> str:
    """Read the name or address of an interface, without a port."""
    if re.fullmatch(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:]+", text) is None:
        raise ValueError(text)
    return text


def url(text: str) -> str:
    """Read an address of HTTP; a user and a password in it are not allowed."""
    if re.fullmatch(r"https?://[A-Za-z0-9_.\[\]:-]+(/[^\s@]*)?", text) is None:
        raise ValueError(text)
    return text


def not_negative(text: str) -> int:
    """Read a whole number."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def node(text: str) -> str:
    """Read the path of a node; parts ``.`` and ``..`` are not allowed."""
    if re.fullmatch(r"(/[A-Za-z0-9_.-]+)+", text) is None or {".", ".."} & set(text.split("/")):
        raise ValueError(text)
    return text


def quorum(text: str) -> str:
    """Read the addresses of ZooKeeper servers, ``host:port`` with commas between."""
    if re.fullmatch(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*", text) is None:
        raise ValueError(text)
    return text


def namespace(text: str) -> str:
    """Read the name of a namespace of Kubernetes."""
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text) is None:
        raise ValueError(text)
    return text


def config_map(text: str) -> str:
    """Read the name of a ConfigMap of Kubernetes."""
    if re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", text) is None:
        raise ValueError(text)
    return text


def directory(text: str) -> str:
    """Read a path that is not empty; the storage checks later whether it can be used."""
    if not text:
        raise ValueError(text)
    return text
