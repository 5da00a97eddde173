"""Files whose names are numbers without gaps, found by name and never by a listing."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ckpt.storage.base import CoordinatorStorage


def highest_number(storage: CoordinatorStorage, path_of: Callable[[int], str]) -> int:
    """Return the highest number that has a file, 0 if there is none.

    `path_of` returns the path of a number's file. The first number is 1.
    """
    missing = 1
    while storage.exists(path_of(missing)):
        missing *= 2
    there = missing // 2
    while missing - there > 1:
        middle = (there + missing) // 2
        if storage.exists(path_of(middle)):
            there = middle
        else:
            missing = middle
    return there
