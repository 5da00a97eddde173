"""The record of a ``checkpointLocation`` of where its checkpoints are.

Records are numbered, the highest number counts, and no record is ever replaced.
"""

from __future__ import annotations

import msgspec

from pyspark_ckpt.formats.layout import place_path
from pyspark_ckpt.formats.small_file import read_small_file
from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.storage.numbered_files import highest_number


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
    number = highest_number(location, place_path)
    if number == 0:
        return 0, None
    path = place_path(number)
    to_do = (
        "delete the file, and start the query with the spark.ckpt.execution.checkpointing.dir that "
        "it had"
    )
    holds = "where the checkpoints of the location are"
    return number, read_small_file(location, path, PlaceRecord, holds, to_do)


def write_place(location: CoordinatorStorage, number: int, record: PlaceRecord) -> None:
    """Write a location's record of a number; durable on return.

    It raises ``FileExistsError`` if a record of that number exists.
    """
    location.write(place_path(number), [msgspec.json.encode(record)])
