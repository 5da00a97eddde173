"""How far the ids of checkpoints have come, found by name and never by a listing.

Each checkpoint needs a new id. A listing of an object store may lack names that are new, and older
checkpoints may be deleted, so a listing can be empty although ids were used. Therefore a mark is
written for each few ids. A mark is a small file whose name is the next number. It holds the first
id that it stands for, and it is never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import id_mark_path
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.storage.numbered_files import highest_number

IDS_OF_MARK = 16
"""Ids that one mark stands for: a write for so many checkpoints, and so many reads at a start."""

_DIGITS = 18
"""Most digits of an id, as in the names of checkpoints' directories."""


class IdMarks:
    """The marks of one checkpoints directory."""

    def __init__(self, storage: CoordinatorStorage) -> None:
        self._storage = storage
        self._number = 0
        self._first = 1 - IDS_OF_MARK

    def read(self) -> range:
        """Find the newest mark and return its ids; all ids in use are among them or lower."""
        self._find(highest_number(self._storage, id_mark_path))
        return _ids_since(self._first)

    def older(self) -> Iterator[range]:
        """Yield the ids of the marks before the one that was found, newest first."""
        for number in range(self._number - 1, 0, -1):
            yield _ids_since(self._first_of(number))

    def cover(self, checkpoint_id: int) -> None:
        """Write a mark if no mark stands for an id yet; durable on return.

        Call it before the id is reserved.
        """
        while checkpoint_id >= self._first + IDS_OF_MARK:
            number = self._number + 1
            try:
                self._storage.write(id_mark_path(number), [str(checkpoint_id).encode()])
            except FileExistsError:  # of another driver
                self._find(number)
            else:
                self._number, self._first = number, checkpoint_id

    def _find(self, number: int) -> None:
        if number > 0:
            self._number, self._first = number, self._first_of(number)

    def _first_of(self, number: int) -> int:
        path = id_mark_path(number)
        text = self._storage.read_start(path, _DIGITS + 1)
        if not (text.isdigit() and len(text) <= _DIGITS):
            raise CorruptFileError(
                f"{self._storage.url_of(path)} holds no checkpoint id: write the id of the newest "
                "chk-N into it"
            )
        return int(text)


def _ids_since(first: int) -> range:
    return range(max(first, 1), first + IDS_OF_MARK)
