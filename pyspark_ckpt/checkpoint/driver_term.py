"""Which driver may write a query's checkpoints: the one with the highest term.

A term is a file of a number that only grows, created exclusively, so no two drivers have one. It
is found by its name, never by a listing, and stays for ever: there is one for each start. A driver
whose successor's file is there is fenced, however long it was stopped; no clock is asked.
"""

from __future__ import annotations

import secrets

from pyspark_ckpt.errors import FencedError
from pyspark_ckpt.formats.layout import term_path
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.storage.numbered_files import highest_number


class DriverTerm:
    """The term of one driver.

    `author` is a name that nothing else has.

    Parameters
    ----------
    storage
        The query's checkpoints directory.

    Raises
    ------
    OSError
        If it cannot be claimed.
    """

    def __init__(self, storage: CoordinatorStorage) -> None:
        self.author = secrets.token_hex(16)
        self._storage = storage
        self._term = self._claim(highest_number(storage, term_path) + 1)

    def check(self) -> None:
        """Check that no driver has come after this one.

        Raises
        ------
        FencedError
            If one has.
        """
        if self._storage.exists(term_path(self._term + 1)):
            raise FencedError(
                f"{self._storage.url}: another driver has taken over these checkpoints "
                f"({term_path(self._term + 1)}, this one is {self._term}); run a query once at a "
                "time, and stop this one"
            )

    def _claim(self, term: int) -> int:
        while not self._has_written(term):
            term += 1
        return term

    def _has_written(self, term: int) -> bool:
        try:
            self._storage.write(term_path(term), [self.author.encode()])
        except FileExistsError:
            return False
        return True
