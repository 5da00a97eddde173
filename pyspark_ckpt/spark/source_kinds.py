"""The kind of source that an offset belongs to, as far as Spark's log shows it.

Spark writes an offset without the name of its source, but offsets of its own sources differ in
form. A source that gets another source's offset would start at a wrong position, or read other
data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark_ckpt.spark.log import NO_OFFSET

_FILE = "FileSource["
"""Spark's name of a file source begins with this text; its path follows."""


def _is_file(offset: Any) -> bool:
    return isinstance(offset, dict) and set(offset) == {"logOffset"}


def _is_number(offset: Any) -> bool:
    return type(offset) is int


def _is_rate_micro_batch(offset: Any) -> bool:
    return isinstance(offset, dict) and set(offset) == {"offset", "timestamp"}


def _is_kafka(offset: Any) -> bool:
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(partitions, dict) and all(map(_is_number, partitions.values()))
            for partitions in offset.values()
        )
    )


_KINDS: dict[str, Callable[[Any], bool]] = {
    _FILE: _is_file,
    "rate-micro-batch": _is_rate_micro_batch,
    "kafka": _is_kafka,
    "rate": _is_number,
}


def kind_of_offset(offset: str) -> str | None:
    """Return which of Spark's sources writes such an offset, ``None`` if the form does not show it.

    A number can be the offset of several sources.
    """
    if offset == NO_OFFSET:
        return None
    decoded = json.loads(offset)
    if _is_file(decoded):
        return "a file source"
    return next((name for name, is_of in _KINDS.items() if is_of(decoded)), None)


def fits(offset: str, name: str) -> bool:
    """Return whether an offset can belong to the source that Spark calls `name`.

    For sources of other libraries it returns true, unless the offset is a file source's.
    """
    if offset == NO_OFFSET:
        return True
    decoded = json.loads(offset)
    kind = _FILE if name.startswith(_FILE) else name
    known = _KINDS.get(kind)
    return not _is_file(decoded) if known is None else known(decoded)
