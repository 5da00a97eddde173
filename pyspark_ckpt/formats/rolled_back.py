"""The epochs that rollbacks of a location removed: a file in the ``checkpointLocation``."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pyspark_ckpt.formats.layout import ROLLED_BACK_NAME
from pyspark_ckpt.formats.small_file import read_small_file
from pyspark_ckpt.storage.base import Storage

ALL_EPOCHS = -1
"""No epoch is before this one."""


class RolledBack(msgspec.Struct, frozen=True):
    """Epochs that a rollback removed, so that their output does not count.

    Parameters
    ----------
    query_id : str
        The id that the location's query had. A rollback gives it another id.
    after : int
        The last epoch that counts; -1 if no epoch counts.

    Examples
    --------
    >>> void = ckpt.RolledBack("5f0a", after=7)
    >>> f"DELETE FROM counts WHERE query_id = '{void.query_id}' AND epoch > {void.after}"
    "DELETE FROM counts WHERE query_id = '5f0a' AND epoch > 7"
    """

    query_id: str
    after: int


def read_rolled_back(location: Storage) -> tuple[RolledBack, ...]:
    """Return the epochs that rollbacks of a location removed, the oldest rollback first."""
    if not location.exists(ROLLED_BACK_NAME):
        return ()
    return read_small_file(
        location,
        ROLLED_BACK_NAME,
        tuple[RolledBack, ...],
        "the epochs that rollbacks removed",
        "delete the file; current_epoch() then no longer lists these epochs",
    )


def write_rolled_back(
    location: Storage,
    void: tuple[RolledBack, ...],
    check_still_ours: Callable[[], None],
) -> None:
    """Write the file; durable on return. It may be there already, with the same epochs.

    `void` has the oldest rollback first. `check_still_ours` is called before a file with other
    epochs is deleted, because that may be of a later rollback, and raises if the file may not be
    deleted. A crash after the deletion may leave no file.
    """
    content = msgspec.json.encode(void)
    try:
        location.write(ROLLED_BACK_NAME, [content])
    except FileExistsError:
        if location.read(ROLLED_BACK_NAME) != content:
            check_still_ours()
            location.delete([ROLLED_BACK_NAME])
            location.write(ROLLED_BACK_NAME, [content])


def void_after_rollback(
    void: tuple[RolledBack, ...], query_id: str, epoch: int
) -> tuple[RolledBack, ...]:
    """Return the removed epochs of a location that is rolled back to an epoch of its query."""
    return (*void, RolledBack(query_id, epoch))


def void_after_return(
    void_there: tuple[RolledBack, ...],
    id_there: str,
    void_here: tuple[RolledBack, ...],
    id_here: str,
) -> tuple[RolledBack, ...]:
    """Return the removed epochs of a location that gets its content before a rollback back.

    `void_there` and `id_there` are of the content that comes back, `void_here` and `id_here` of the
    present content. All epochs of queries that the returning content does not know are removed.
    """
    known = {id_there, *(each.query_id for each in void_there)}
    unknown = dict.fromkeys((*(each.query_id for each in void_here), id_here))
    later = tuple(RolledBack(each, ALL_EPOCHS) for each in unknown if each not in known)
    return (*void_there, *later)
