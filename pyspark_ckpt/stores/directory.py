"""The store of completed checkpoints that needs only their directories.

An id belongs to the driver that created ``chk-N/_author`` exclusively. A checkpoint is complete
while both ``_author`` and ``_metadata`` exist. An id whose ``_author`` was removed is never used
again, because ids only grow. A driver that was paused before it wrote ``_metadata`` may write it
later, but that does not complete the checkpoint.

The driver with the highest term may write. A term is a file named by a number that only grows. It
is created exclusively, so no two drivers have the same term. It is found by its name, never by a
listing, and is never deleted: each start makes one. A driver is fenced as soon as the next term's
file exists. No clock is involved.

A rollback puts another directory in the place of the query's, and so does somebody who deletes a
location and makes it anew. There a driver does not find its own term, or finds another driver's
name in it, and is fenced too. A rollback carries the terms over, so that no number is left out:
a driver that was paused while it started finds its number taken.

Each checkpoint needs a new id. A listing of an object store may lack names that are new, and older
checkpoints may be deleted, so a listing can be empty although ids were used. Therefore a mark is
written for each few ids. A mark is a small file whose name is the next number. It holds the first
id that it stands for, and it is never deleted.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress

from pyspark_ckpt.errors import CorruptFileError, FencedError
from pyspark_ckpt.formats.layout import AUTHOR_NAME, checkpoint_name, id_mark_path, term_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.base import CoordinatorStorage, Storage, all_of
from pyspark_ckpt.storage.claims import Claims
from pyspark_ckpt.stores.base import CompletedCheckpointStore, metadata_path

_CARRIED = b"carried over by a rollback\n"
"""In the file of a term that was another directory's; no driver has that name."""

IDS_OF_MARK = 16
"""Ids that one mark stands for: a write for so many checkpoints, and so many reads at a start."""

_DIGITS = 18
"""Most digits of an id, as in the names of checkpoints' directories."""


class DriverTerm:
    """The term of one driver.

    `author` is a name that no other driver has.

    The constructor claims the term, and raises ``OSError`` if the term cannot be claimed.
    """

    def __init__(self, storage: CoordinatorStorage) -> None:
        self.author = secrets.token_hex(16)
        self._storage = storage
        self._terms = Claims(storage, term_path)
        self._term = self._terms.take_next(self.author.encode())

    def check(self) -> None:
        """Check that no driver has claimed a later term, and that the directory is the same.

        ``FencedError`` is raised if one has, or if the directory was replaced.
        """
        path = term_path(self._term)
        try:
            is_ours = self._storage.read(path) == self.author.encode()
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            raise FencedError(
                f"{self._storage.url}: these are not the checkpoints that this driver began with "
                f"({path} is missing or another driver's). The query was rolled back, or its "
                "checkpoints were deleted. Run a query once at a time: stop this one"
            )
        if self._terms.has(self._term + 1):
            raise FencedError(
                f"{self._storage.url}: another driver has taken over these checkpoints "
                f"({term_path(self._term + 1)}; this driver has term {self._term}). Run a query "
                "once at a time: stop this one"
            )


def carry_terms(source: Storage, target: Storage) -> None:
    """Write the terms of a checkpoints directory into the one that will take its place.

    Terms that `target` has already stay there.
    """
    terms = range(1, Claims(source, term_path).newest() + 1)
    carried = Claims(target, term_path)
    all_of(lambda term: carried.take(term, _CARRIED), terms, at_once=source.is_remote)


class CompletedCheckpoints(CompletedCheckpointStore):
    """``chk-N`` directories below a checkpoints directory.

    The newest directory stays even if its checkpoint was aborted, because the next start gets the
    highest id from it. If all checkpoints are discarded, a new and empty one takes its place.
    """

    def __init__(self, storage: CoordinatorStorage) -> None:
        super().__init__(storage)
        self._term: DriverTerm | None = None
        self._marks = IdMarks(storage)
        self._known_ids: set[int] = set()
        self._reserved: set[int] = set()
        self._own: set[int] = set()
        self._record: int | None = None

    def claim(self) -> None:
        self._term = DriverTerm(self._storage)
        self._probe()
        # A driver that was killed within `add` leaves a name that a power loss can take. From now
        # on the checkpoint counts as one of those that are retained, and older ones are deleted.
        for number in self._known_ids:
            self._storage.make_durable(checkpoint_name(number))

    def check(self) -> None:
        if self._term is not None:
            self._term.check()

    def reserve(self, checkpoint_id: int) -> None:
        term = self._claimed()
        term.check()
        self._marks.cover(checkpoint_id)
        self._storage.write(_author_path(checkpoint_id), [term.author.encode()])
        self._known_ids.add(checkpoint_id)
        self._reserved.add(checkpoint_id)
        self._own.add(checkpoint_id)
        # A driver that claims later finds the id in use; this finds a driver that claimed before.
        term.check()

    def check_reserved(self, checkpoint_id: int) -> None:
        self._claimed().check()
        self._check_author(checkpoint_id)

    def add(self, checkpoint_id: int, metadata: CheckpointMetadata) -> None:
        if checkpoint_id not in self._reserved:
            self.reserve(checkpoint_id)
        self._write_metadata(checkpoint_id, metadata)
        self._reserved.discard(checkpoint_id)
        # If another driver removed the id before this write, the checkpoint is not complete.
        self._check_author(checkpoint_id)

    def is_complete(self, checkpoint_id: int) -> bool:
        return self._storage.exists(metadata_path(checkpoint_id)) and self._storage.exists(
            _author_path(checkpoint_id)
        )

    def unfinished_by_others(self) -> list[int]:
        return [n for n in self.used_ids() if n not in self._own and not self.is_complete(n)]

    def used_ids(self) -> list[int]:
        # A listing may lack names that an earlier listing had.
        self._known_ids |= self._listed_ids()
        return sorted(self._known_ids)

    def remove(self, checkpoint_id: int) -> None:
        self._storage.delete([_author_path(checkpoint_id)])
        self._storage.delete([metadata_path(checkpoint_id)])
        self._storage.delete_directory(checkpoint_name(checkpoint_id))
        self._known_ids.discard(checkpoint_id)
        self._own.discard(checkpoint_id)

    def remove_all(self) -> None:
        used = self.used_ids()
        self.check()  # no newer driver has one of these ids
        self._storage.delete([metadata_path(number) for number in used])
        for number in used[:-1]:
            self.remove(number)
        if used and used[-1] != self._record:
            # Another driver, a step that hangs or a late request may still write its `_metadata`.
            # So it loses its `_author`, and an id that nobody completes records the highest one.
            with suppress(FileExistsError):  # of a newer driver: it records the highest id too
                self.reserve(used[-1] + 1)
                self._record = used[-1] + 1
            self.remove(used[-1])

    def adopt(self, ids: Iterable[int], last_id: int) -> None:
        author = self._claimed().author.encode()
        self._marks.cover(last_id)
        self._known_ids.update({*ids, last_id} - {0})
        for number in ids:
            with suppress(FileExistsError):  # of the driver that completed it
                self._storage.write(_author_path(number), [author])

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _check_author(self, checkpoint_id: int) -> None:
        path = _author_path(checkpoint_id)
        try:
            is_ours = self._storage.read(path) == self._claimed().author.encode()
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            raise FencedError(
                f"{self._storage.url_of(path)} is missing or another driver's, so another driver "
                "has taken over these checkpoints. Run a query once at a time: stop this one"
            )

    def _claimed(self) -> DriverTerm:
        if self._term is None:
            self.claim()
        assert self._term is not None
        return self._term

    def _probe(self) -> None:
        """Find ids by name that a listing may lack.

        They are higher than the highest id in the listing. Ids of older marks may be retained too,
        so the search goes back to that id, or to a mark of which no id is in use any more.
        """
        highest = max(self.used_ids(), default=0)
        marked = self._marks.read()
        found = self._in_use(marked, highest)
        if marked and marked[0] > highest and not found:
            found = [marked[0]]  # its author may be about to write it
        self._known_ids.update(found)
        older, oldest = self._marks.older(), marked
        while found and oldest and oldest[0] - 1 > highest:
            oldest = next(older, range(0))
            found = self._in_use(oldest, highest)
            self._known_ids.update(found)

    def _in_use(self, ids: Iterable[int], highest: int) -> list[int]:
        return [n for n in ids if n > highest and self._storage.exists(_author_path(n))]


def _author_path(checkpoint_id: int) -> str:
    return f"{checkpoint_name(checkpoint_id)}/{AUTHOR_NAME}"


class IdMarks:
    """The marks of one checkpoints directory."""

    def __init__(self, storage: CoordinatorStorage) -> None:
        self._storage = storage
        self._marks = Claims(storage, id_mark_path)
        self._number = 0
        self._first = 1 - IDS_OF_MARK

    def read(self) -> range:
        """Find the newest mark and return its ids; all ids in use are among them or lower."""
        self._find(self._marks.newest())
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
            if self._marks.take(number, str(checkpoint_id).encode()):
                self._number, self._first = number, checkpoint_id
            else:  # of another driver
                self._find(number)

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
