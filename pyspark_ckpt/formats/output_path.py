"""Who writes to an output path, and where a location has written: numbered small files.

In the log's directory of an output path, each file names a query that writes there from then on.
Spark ignores the files, because their names are no numbers. The first one has the name that
versions before this one give to the claim of a restored query, so that they and this one refuse
each other's paths. It then has the query's id only.

In a location, each file of ``_output_paths/`` says where a query's later epochs go. A rollback,
which gives the query another id, carries them over.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from pyspark_ckpt.formats.layout import output_path_path
from pyspark_ckpt.formats.small_file import read_small_file
from pyspark_ckpt.storage.base import Storage
from pyspark_ckpt.storage.numbered_files import highest_number

FIRST_WRITER_NAME = "_restored_query.json"


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """A query that writes to an output path.

    `location` is its ``checkpointLocation``. `path` is the output path as it was given. `after` is
    the newest epoch that was in the path's log before, -1 if there was none. These are ``None`` if
    an earlier version wrote it.
    """

    query_id: str
    location: str | None = None
    path: str | None = None
    after: int | None = None


class UsedPath(msgspec.Struct, frozen=True, kw_only=True):
    """Where a query writes its epochs after one; `path` is ``None`` if it is no file sink."""

    query_id: str
    after: int
    path: str | None


def writer_path(number: int) -> str:
    """Return the name of the file about the writer of that number."""
    return FIRST_WRITER_NAME if number == 1 else f"_query-{number}.json"


def read_writers(log: Storage) -> tuple[Writer, ...]:
    """Return the queries that have claimed an output path, the newest last."""
    holds, to_do = "the query that writes here", "give the query a new path or table"
    return tuple(
        read_small_file(log, writer_path(number), Writer, holds, to_do)
        for number in range(1, highest_number(log, writer_path) + 1)
    )


def add_writer(log: Storage, number: int, writer: Writer) -> None:
    """Claim an output path for a query; durable on return. The number may be taken already."""
    with suppress(FileExistsError):
        log.write(writer_path(number), [msgspec.json.encode(writer)])


def read_used_paths(location: Storage) -> tuple[UsedPath, ...]:
    """Return where the queries of a location have written, the newest last."""
    holds, to_do = "where the query writes", "give the query a new path or table, and delete it"
    return tuple(
        read_small_file(location, output_path_path(number), UsedPath, holds, to_do)
        for number in range(1, highest_number(location, output_path_path) + 1)
    )


def add_used_path(location: Storage, number: int, used: UsedPath) -> None:
    """Note where a query writes from now on; durable on return."""
    with suppress(FileExistsError):  # another start there, which this one or that one will fence
        location.write(output_path_path(number), [msgspec.json.encode(used)])


def carry_used_paths(location: Storage, staged: Storage) -> None:
    """Note where the queries of a location have written in what comes in there; durable."""
    for number, used in enumerate(read_used_paths(location), start=1):
        add_used_path(staged, number, used)
