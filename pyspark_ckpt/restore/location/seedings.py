"""Who may fill a ``checkpointLocation``: seedings are numbered, and the highest number decides.

A seeding begins with a file whose name is the next number, and its end takes the number after
that. Both are created exclusively. So a driver that takes over an unfinished seeding and the one
that ends it compete for one name: either the location is complete, and nobody clears it, or the
slower driver finds that it was taken over. A driver that was paused looks for the next number
before each step.

The marker says that the location held nothing else when the seeding began, so whoever takes over
may clear all of it. Version 0.1.0 had only the marker.
"""

from __future__ import annotations

from contextlib import suppress

from pyspark_ckpt.errors import CorruptFileError, FencedError, RestoreError
from pyspark_ckpt.formats.layout import (
    IDENTITY_NAME,
    SEEDING_MARKER,
    SEEDINGS,
    seeding_path,
    written_path,
)
from pyspark_ckpt.restore.seeding import QUERY_ID_NAME, write_query_id
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.numbered_files import highest_number
from pyspark_ckpt.storage.open import Storage, open_storage

_BEGUN = b"begun\n"
_ENDED = b"ended\n"
_FRESH = {QUERY_ID_NAME, IDENTITY_NAME, SEEDING_MARKER, SEEDINGS}
"""What a location has before its first epoch, and what its seedings keep there."""


def is_half_seeded(location: Storage) -> bool:
    """Return whether a location is being filled, or a driver was killed while it filled it.

    Raises
    ------
    CorruptFileError
        If the file of the newest seeding was changed.
    """
    newest = highest_number(location, seeding_path)
    return _is_unfinished(location, newest) if newest else location.exists(SEEDING_MARKER)


def begin_seeding(location: Storage) -> Seeding:
    """Take the right to fill a location that is fresh, or that another driver has half filled.

    Parameters
    ----------
    location
        The ``checkpointLocation``.

    Returns
    -------
    Seeding
        Durable; no other driver ends an earlier one.

    Raises
    ------
    RestoreError
        If the location is neither.
    FencedError
        If another driver has begun at the same time.
    """
    newest = highest_number(location, seeding_path)
    may_clear = is_half_seeded(location) and location.exists(SEEDING_MARKER)
    if not may_clear:
        _check_fresh(location)
    try:
        location.write(seeding_path(newest + 1), [_BEGUN])
    except FileExistsError as exc:
        raise _taken_over(location) from exc
    seeding = Seeding(location, newest + 1)
    if not may_clear:
        try:
            _check_fresh(location)  # another driver may have run an epoch before this one's file
        except RestoreError:
            seeding.end()
            raise
        with suppress(FileExistsError):
            location.write(SEEDING_MARKER, [b"this location is being filled\n"])
    return seeding


class Seeding:
    """The right to fill a location, until another driver takes the next number.

    Parameters
    ----------
    location
        The ``checkpointLocation``.
    number
        The number of the seeding.
    """

    def __init__(self, location: Storage, number: int) -> None:
        self._location = location
        self._number = number

    def check(self) -> None:
        """Check that no other driver has taken the location over.

        Raises
        ------
        FencedError
            If one has.
        """
        is_there = self._location.exists(seeding_path(self._number))
        if not is_there or self._location.exists(seeding_path(self._number + 1)):
            raise _taken_over(self._location)

    def clear(self, checkpoints_directory: str | None) -> None:
        """Remove what is in the location, and the checkpoints directory of its query.

        The token is removed after the query's id. With an id whose checkpoints have an owner, and
        no token, the location could not start: it would look like a copy of itself.

        Parameters
        ----------
        checkpoints_directory
            ``spark.ckpt.execution.checkpointing.dir``.

        Raises
        ------
        FencedError
            If another driver has taken the location over.
        """
        location = self._location
        query_id = SparkLog(location).query_id()
        if checkpoints_directory is not None and query_id is not None:
            self.check()
            open_storage(checkpoints_directory).delete_directory(query_id)
        kept = {SEEDING_MARKER, SEEDINGS, IDENTITY_NAME}
        for name in [name for name in location.list() if name not in kept]:
            self.check()
            if location.size_bytes(name) is None:
                location.remove_directory(name)
            else:
                location.delete([name])
        self.check()
        location.delete([IDENTITY_NAME])

    def name_query(self) -> str:
        """Give the cleared location's query a new id; durable on return.

        Raises
        ------
        FencedError
            If another driver has done so.
        """
        self.check()
        try:
            return write_query_id(self._location)
        except FileExistsError as exc:
            raise _taken_over(self._location) from exc

    def end(self) -> None:
        """Make the location complete, like that of any query; durable on return.

        Raises
        ------
        FencedError
            If another driver has taken it over; it is not complete.
        """
        self.check()
        try:
            self._location.write(seeding_path(self._number + 1), [_ENDED])
        except FileExistsError as exc:
            raise _taken_over(self._location) from exc
        self._location.delete([SEEDING_MARKER])


def _is_unfinished(location: Storage, number: int) -> bool:
    path = seeding_path(number)
    content = location.read(path)
    if content not in (_BEGUN, _ENDED):
        raise CorruptFileError(
            f"{location.url_of(path)} says neither that a restore into this location has begun nor "
            "that it has ended: restore into a fresh checkpointLocation"
        )
    return content == _BEGUN


def _check_fresh(location: Storage) -> None:
    # A start that was killed may have left a temporary file of one of them.
    if not {written_path(name) for name in location.list()} <= _FRESH:
        raise RestoreError(
            f"{location.url} is not empty and has no committed epoch: give the query a fresh "
            "checkpointLocation"
        )


def _taken_over(location: Storage) -> FencedError:
    return FencedError(
        f"{location.url}: another driver fills this location, too. Run a query once at a time: let "
        "that driver run it, or start the query again once it has ended"
    )
