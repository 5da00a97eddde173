"""Numbered files that are made exclusively: of several drivers, one gets each number.

The first number is 1, no number is left out, and no file is ever replaced. So the newest one is
found by its name, and never by a listing, which may lack names that are new.

What a number means is its client's: the term of a driver, a step of a seeding or a swap, or a
record of which the newest counts.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ckpt.storage.base import CoordinatorStorage


class Claims:
    """The claims of one kind in a storage; `path_of` returns the path of a number's file."""

    def __init__(self, storage: CoordinatorStorage, path_of: Callable[[int], str]) -> None:
        self._storage = storage
        self._path_of = path_of

    def newest(self) -> int:
        """Return the highest number that has a file, 0 without any."""
        missing = 1
        while self.has(missing):
            missing *= 2
        there = missing // 2
        while missing - there > 1:
            middle = (there + missing) // 2
            if self.has(middle):
                there = middle
            else:
                missing = middle
        return there

    def has(self, number: int) -> bool:
        """Return whether somebody has a number."""
        return self._storage.exists(self._path_of(number))

    def take(self, number: int, content: bytes) -> bool:
        """Take a number, durably; return whether it was free.

        The numbers before it are taken.
        """
        try:
            self._storage.write(self._path_of(number), [content])
        except FileExistsError:
            return False
        return True

    def take_next(self, content: bytes) -> int:
        """Take the first number that is free, durably, and return it."""
        number = self.newest() + 1
        while not self.take(number, content):
            number += 1
        return number
