"""Who may fill a ``checkpointLocation``: seedings are numbered, and the highest number decides.

A seeding begins with a file whose name is the next number, and its end takes the number after
that. Both are created exclusively. So a driver that takes over an unfinished seeding and the one
that ends it compete for one name: either the location is complete, and nobody clears it, or the
slower driver finds that it was taken over. A driver that was paused looks for the next number
before each step. Numbers are never removed.

``<number>-fresh`` says that the location was fresh when the seeding began. A driver that takes the
seeding over may then clear all of it. A seeding without it has changed nothing.
"""

from __future__ import annotations

import errno

from pyspark_ckpt.errors import CorruptFileError, FencedError, RestoreError
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    IDENTITY_NAME,
    OUTPUT_PATHS,
    OWNERS,
    PLACES,
    SEEDINGS,
    found_fresh_path,
    is_savepoint_name,
    seeding_path,
    written_path,
)
from pyspark_ckpt.restore.seeding import QUERY_ID_NAME, write_query_id
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.state_files import STATE
from pyspark_ckpt.storage.claims import Claims
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.open import Storage, open_storage

_BEGUN = b"begun\n"
_ENDED = b"ended\n"
_NOTE = b"this location is being filled before its query starts\n"
_OF_THE_QUERY = {QUERY_ID_NAME, "offsets", "commits", "sources", STATE, CHECKPOINTS_DIRECTORY}
_FRESH = {QUERY_ID_NAME, IDENTITY_NAME, OUTPUT_PATHS, PLACES, SEEDINGS}
"""What a location has before its first epoch, and what its seedings keep there."""


def is_half_seeded(location: Storage) -> bool:
    """Return whether a location is being filled, or a driver was killed while it filled it."""
    return _is_half_seeded(location, Claims(location, seeding_path).newest())


def settle_seedings(location: Storage) -> None:
    """Make durable what a killed driver may have left, before this one relies on it.

    The end of a seeding becomes durable. A seeding that has begun and changed nothing is ended.
    """
    seedings = Claims(location, seeding_path)
    newest = seedings.newest()
    if newest == 0 or _is_half_seeded(location, newest):
        return
    if _is_begun(location, newest):
        seedings.take(newest + 1, _ENDED)  # unless its driver has ended it
    location.make_durable(SEEDINGS)


def begin_seeding(location: Storage) -> Seeding:
    """Take the right to fill a location that is fresh, or that another driver has half filled.

    The seeding is durable on return, and no other driver can end an earlier one. ``RestoreError``
    means that the location is neither fresh nor half filled. ``FencedError`` means that another
    driver began at the same time, or has filled the location.
    """
    newest = Claims(location, seeding_path).newest()
    if _is_half_seeded(location, newest):
        return _take_over(location, newest)
    _check_fresh(location)
    seeding = _take_number(location, newest + 1)
    try:
        _check_fresh(location)  # another driver may have run an epoch before this one's file
    except (FencedError, RestoreError):
        seeding.end()
        raise
    _note_fresh(location, newest + 1)
    return seeding


class Seeding:
    """The right to fill a location, until another driver takes the next number."""

    def __init__(self, location: Storage, number: int) -> None:
        self._location = location
        self._number = number
        self._seedings = Claims(location, seeding_path)

    def check(self) -> None:
        """Check that no other driver has taken the location over.

        ``FencedError`` is raised if another driver has.
        """
        if self._seedings.has(self._number + 1):
            raise _taken_over(self._location)

    def clear(self, checkpoints_directory: str | None) -> None:
        """Remove what is in the location, and its query's checkpoints directory.

        The location's token stays, and so do the records of where its checkpoints are, because
        their numbers grow, the notes on its output paths, and savepoints, because they belong to
        the user.

        ``FencedError`` is raised if another driver has taken the location over, and ``OSError`` if
        something in it is still there.
        """
        location = FencedStorage(self._location, self)
        query_id = SparkLog(location).query_id()
        if checkpoints_directory is not None and query_id is not None:
            self.check()
            open_storage(checkpoints_directory).delete_directory(query_id)
        kept = {SEEDINGS, IDENTITY_NAME, OUTPUT_PATHS, PLACES}
        for name in [name for name in location.list() if name not in kept]:
            if has_savepoints(location, name):
                continue
            is_directory = location.size_bytes(name) is None
            for path in location.files_below(name) if is_directory else (name,):
                location.delete([path])
            if is_directory:
                _remove_directories(location, name)
                if location.exists(name):
                    self.check()
                    raise OSError(
                        errno.ENOTEMPTY,
                        "it cannot be cleared: if no driver writes there, start the query again",
                        location.url_of(name),
                    )

    def name_query(self) -> str:
        """Give the cleared location's query a new id; durable on return.

        ``FencedError`` is raised if another driver has given it a new id.
        """
        try:
            return write_query_id(FencedStorage(self._location, self))
        except FileExistsError as exc:
            raise _taken_over(self._location) from exc

    def end(self) -> None:
        """Make the location complete, like that of any query; durable on return.

        ``FencedError`` is raised if another driver has taken the location over; the location is not
        complete then.
        """
        self.check()
        if not self._seedings.take(self._number + 1, _ENDED):
            raise _taken_over(self._location)


def _remove_directories(location: Storage, directory: str) -> None:
    """Remove a directory and those in it, but no file: another driver may have written it."""
    for name in location.list(directory):
        path = f"{directory}/{name}"
        if location.size_bytes(path) is None:
            _remove_directories(location, path)
    location.remove_if_empty(directory)


def has_savepoints(location: Storage, name: str) -> bool:
    """Return whether a name of a location is a savepoint, or a directory of the user's with one."""
    if name in _OF_THE_QUERY:
        return False
    paths = (name, *location.files_below(name))
    return any(is_savepoint_name(part) for path in paths for part in path.split("/"))


def _take_over(location: Storage, newest: int) -> Seeding:
    seeding = _take_number(location, newest + 1)
    _note_fresh(location, newest + 1)
    return seeding


def _take_number(location: Storage, number: int) -> Seeding:
    if not Claims(location, seeding_path).take(number, _BEGUN):
        raise _taken_over(location)
    return Seeding(location, number)


def _note_fresh(location: Storage, number: int) -> None:
    location.write(found_fresh_path(number), [_NOTE])


def _is_half_seeded(location: Storage, newest: int) -> bool:
    """Return whether the newest seeding, or one that it took over, began to fill a location."""
    number = newest
    while number > 0 and _is_begun(location, number):
        if location.exists(found_fresh_path(number)):
            return True
        number -= 1
    return False


def _is_begun(location: Storage, number: int) -> bool:
    path = seeding_path(number)
    content = location.read(path)
    if content not in (_BEGUN, _ENDED):
        raise CorruptFileError(
            f"{location.url_of(path)} says neither that a restore into this location has begun nor "
            "that it has ended: restore the newest chk-N or savepoint of the query into a fresh "
            "checkpointLocation"
        )
    return content == _BEGUN


def _check_fresh(location: Storage) -> None:
    # A start that was killed may have left a temporary file of one of them.
    names = {written_path(name) for name in location.list()}
    # A start that Spark refused has only claimed the directory.
    if location.list(CHECKPOINTS_DIRECTORY) == [OWNERS]:
        names.discard(CHECKPOINTS_DIRECTORY)
    if names <= _FRESH:
        return
    if SparkLog(location).committed_epoch() is not None:
        raise FencedError(
            f"{location.url}: another driver has filled this location while this one was starting: "
            "let that driver run the query, or start it again once it has ended"
        )
    raise RestoreError(
        f"{location.url} is not empty and has no committed epoch: give the query a fresh "
        "checkpointLocation"
    )


def _taken_over(location: Storage) -> FencedError:
    return FencedError(
        f"{location.url}: another driver restores a query into this location, or has done so. Run "
        "a query once at a time: let that driver run it, or start the query again once it has ended"
    )
