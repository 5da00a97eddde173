"""Objects for a processor in this process that no column of Spark has; rows have their numbers."""

from __future__ import annotations

from typing import Any

_HANDED: list[Any] = []


def handed(value: Any) -> int:
    """Return the number of an object, for a row."""
    _HANDED.append(value)
    return len(_HANDED) - 1


def taken(number: int) -> Any:
    """Return the object of a number."""
    return _HANDED[number]
