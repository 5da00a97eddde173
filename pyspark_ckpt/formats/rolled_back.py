"""The epochs that rollbacks of a location made void: a file in the ``checkpointLocation``."""

from __future__ import annotations

import msgspec

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import ROLLED_BACK_NAME
from pyspark_ckpt.storage.local import LocalStorage

ALL_EPOCHS = -1
"""No epoch is before this one."""


class RolledBack(msgspec.Struct, frozen=True):
    """Epochs whose output does not count any more.

    Parameters
    ----------
    query_id : str
        The query that the location had. A rollback gives it another id.
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


def read_rolled_back(location: LocalStorage) -> tuple[RolledBack, ...]:
    """Return what rollbacks of a location made void, the oldest rollback first.

    Raises
    ------
    CorruptFileError
        If the file was changed.
    """
    if not location.exists(ROLLED_BACK_NAME):
        return ()
    try:
        content = location.read(ROLLED_BACK_NAME)
        return msgspec.json.decode(content, type=tuple[RolledBack, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise CorruptFileError(
            f"{location.url_of(ROLLED_BACK_NAME)}, which lists what rollbacks made void, was "
            f"changed ({exc}): delete it; current_epoch() does not list these epochs any more"
        ) from exc


def write_rolled_back(location: LocalStorage, void: tuple[RolledBack, ...]) -> None:
    """Replace the file; after a crash there may be no file."""
    location.delete([ROLLED_BACK_NAME])
    location.write(ROLLED_BACK_NAME, [msgspec.json.encode(void)])


def void_after_rollback(
    void: tuple[RolledBack, ...], query_id: str, epoch: int
) -> tuple[RolledBack, ...]:
    """Return what is void once a location is rolled back to an epoch of its query."""
    return (*void, RolledBack(query_id, epoch))


def void_after_return(
    void_there: tuple[RolledBack, ...],
    id_there: str,
    void_here: tuple[RolledBack, ...],
    id_here: str,
) -> tuple[RolledBack, ...]:
    """Return what is void once a location has again what was in it before a rollback.

    Parameters
    ----------
    void_there, id_there
        What was void in what comes back, and its query.
    void_here, id_here
        The same of what is in the location now: all that queries wrote that the one which comes
        back does not know is void.
    """
    known = {id_there, *(each.query_id for each in void_there)}
    unknown = dict.fromkeys((*(each.query_id for each in void_here), id_here))
    later = tuple(RolledBack(each, ALL_EPOCHS) for each in unknown if each not in known)
    return (*void_there, *later)
