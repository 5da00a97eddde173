"""The names in a log that Spark compacts: those of its file sources and of its file sink.

An entry is named by its number. Every so often Spark writes a compaction instead, ``N.compact``,
which has all entries up to ``N``. Spark ignores other names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

COMPACT = ".compact"
_NAME = re.compile(r"[0-9]{1,18}(?:\.compact)?")


def entry_number(name: str) -> int | None:
    """Return the number of an entry or compaction, ``None`` for another file."""
    return int(name.removesuffix(COMPACT)) if _NAME.fullmatch(name) else None


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Return the numbers of entries and compactions by their names, in the order of the names."""
    numbers = ((name, entry_number(name)) for name in names)
    return {name: number for name, number in numbers if number is not None}


def newest_compaction(names: Iterable[str], up_to: int | None = None) -> int:
    """Return the number of the newest compaction, at most `up_to`; -1 if there is none."""
    compactions = [number for name, number in numbered(names).items() if name.endswith(COMPACT)]
    return max((each for each in compactions if up_to is None or each <= up_to), default=-1)


def guessed_interval(entries: int, least: int) -> int:
    """Return the interval that Spark guesses from one compaction of a number of entries."""
    if entries // 2 <= least:
        return entries
    divisors = range(least, entries // 2 + 1)
    return next((each for each in divisors if entries % each == 0), entries)
