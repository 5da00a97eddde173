"""The small files of a location: where its checkpoints are, its output path, its rollbacks.

Records are numbered, the highest number counts, and no record is ever replaced.

In the log's directory of an output path, each file names a query that writes there from then on.
Spark ignores the files, because their names are not numbers.

In a location, each file of ``_output_paths/`` says where a query's later epochs go. A rollback,
which gives the query another id, carries them over.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pyspark_ckpt.formats.layout import ROLLED_BACK_NAME, output_path_path, place_path
from pyspark_ckpt.storage.base import JSON_ERRORS, CoordinatorStorage, Storage, corrupt_file
from pyspark_ckpt.storage.claims import Claims
from pyspark_ckpt.storage.fenced import FencedStorage

_MAX_BYTES = 1 << 20
"""A larger file was not written by this library, and is refused as changed."""

_Content = TypeVar("_Content")

ALL_EPOCHS = -1
"""No epoch is before this one."""


def read_small_file(
    storage: CoordinatorStorage, path: str, kind: type[_Content], holds: str, to_do: str
) -> _Content:
    """Return the content of a small JSON file.

    It raises ``FileNotFoundError`` if the file does not exist, and ``CorruptFileError``, with
    `holds` and `to_do` in its text, if the file was changed.
    """
    try:
        return msgspec.json.decode(storage.read_start(path, _MAX_BYTES), type=kind)
    except JSON_ERRORS as exc:
        raise corrupt_file(
            storage.url_of(path), f"it was changed, and should hold {holds} ({exc})", to_do
        ) from exc


class PlaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which ``spark.ckpt.execution.checkpointing.dir`` a location's query has.

    `directory` is its URL. If it lies inside of the location, `inside` is its path there instead,
    which stays true when the location is moved; it is empty for the location itself. Without both,
    the query has no such setting.
    """

    directory: str | None = None
    inside: str | None = None


def read_place(location: CoordinatorStorage) -> tuple[int, PlaceRecord | None]:
    """Return the number of a location's newest record and the record, or 0 and ``None``."""
    number = Claims(location, place_path).newest()
    if number == 0:
        return 0, None
    path = place_path(number)
    to_do = (
        "delete the file, and start the query with the spark.ckpt.execution.checkpointing.dir that "
        "it had"
    )
    holds = "where the checkpoints of the location are"
    return number, read_small_file(location, path, PlaceRecord, holds, to_do)


def write_place(location: CoordinatorStorage, number: int, record: PlaceRecord) -> bool:
    """Write a location's record of a number, durably; return whether the number was free."""
    return Claims(location, place_path).take(number, msgspec.json.encode(record))


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """A query that writes to an output path.

    `location` is its ``checkpointLocation``. `path` is the output path as it was given. `after` is
    the newest epoch that was in the path's log before, -1 if there was none.
    """

    query_id: str
    location: str
    path: str
    after: int


class UsedPath(msgspec.Struct, frozen=True, kw_only=True):
    """Where a query writes its epochs after one; `path` is ``None`` if it is not a file sink."""

    query_id: str
    after: int
    path: str | None


def writer_path(number: int) -> str:
    """Return the name of the file about the writer of that number."""
    return f"_query-{number}.json"


def read_writers(log: Storage) -> tuple[Writer, ...]:
    """Return the queries that have claimed an output path, the newest last."""
    holds, to_do = "the query that writes here", "give the query a new path or table"
    return tuple(
        read_small_file(log, writer_path(number), Writer, holds, to_do)
        for number in range(1, Claims(log, writer_path).newest() + 1)
    )


def add_writer(log: Storage, number: int, writer: Writer) -> None:
    """Claim an output path for a query; durable on return. The number may be taken already."""
    Claims(log, writer_path).take(number, msgspec.json.encode(writer))


def read_used_paths(location: Storage) -> tuple[UsedPath, ...]:
    """Return where the queries of a location have written, the newest last."""
    holds, to_do = "where the query writes", "give the query a new path or table, and delete it"
    return tuple(
        read_small_file(location, output_path_path(number), UsedPath, holds, to_do)
        for number in range(1, Claims(location, output_path_path).newest() + 1)
    )


def add_used_path(location: Storage, number: int, used: UsedPath) -> None:
    """Note where a query writes from now on; durable on return.

    If the number is taken, there is another start, which this one or that one will fence.
    """
    Claims(location, output_path_path).take(number, msgspec.json.encode(used))


def carry_used_paths(location: Storage, staged: Storage) -> None:
    """Note where the queries of a location have written in what comes in there; durable."""
    for number, used in enumerate(read_used_paths(location), start=1):
        add_used_path(staged, number, used)


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
    >>> void = ckpt.results.RolledBack("5f0a", after=7)
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


def write_rolled_back(location: FencedStorage, void: tuple[RolledBack, ...]) -> None:
    """Write the file; durable on return. It may be there already, with the same epochs.

    `void` has the oldest rollback first. A file with other epochs may be of a later rollback, so
    the location is fenced. A crash after the deletion may leave no file.
    """
    content = msgspec.json.encode(void)
    try:
        location.write(ROLLED_BACK_NAME, [content])
    except FileExistsError:
        if location.read(ROLLED_BACK_NAME) != content:
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
