"""Checks that all files of a checkpoint exist with their sizes.

In a local file system the driver checks them. In an object store each check is a request: the
driver sends a few at once, and the executors send many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.storage.base import AT_ONCE, FileReference, all_of
from pyspark_ckpt.storage.open import Storage, open_storage

ON_DRIVER = 16 * AT_ONCE
"""The driver itself checks up to this many files: a Spark job would take as long."""

_RESULT = "damage string"


def check_files(
    storage: Storage, references: Iterable[FileReference], spark: SparkSession | None = None
) -> None:
    """Check that files exist with the sizes that were written.

    Each path is checked once. The executors of `spark`, if it is given, may help.
    """
    files = list({reference.path: reference for reference in references}.values())
    if spark is None or not storage.is_remote or not storage.is_shared or len(files) <= ON_DRIVER:
        all_of(storage.verify_size, files, at_once=storage.is_remote)
        return
    damages = _by_executors(spark, storage, files)
    if damages:
        raise CorruptFileError(damages[0])


def _by_executors(
    spark: SparkSession, storage: Storage, files: Sequence[FileReference]
) -> list[str]:
    tasks = max(1, min(session_of(spark).tasks_at_once(), len(files) // AT_ONCE))
    parts = tuple(msgspec.msgpack.encode(files[first::tasks]) for first in range(tasks))
    numbers = spark.range(tasks, numPartitions=tasks)
    rows = numbers.mapInArrow(_CheckParts(storage.url, parts), _RESULT).collect()
    return sorted(row.damage for row in rows)


class _CheckParts:
    """The function for ``mapInArrow`` over the numbers of parts: yields the damages."""

    def __init__(self, url: str, parts: tuple[bytes, ...]) -> None:
        self._url = url
        self._parts = parts

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self._url)

        def damage(file: FileReference) -> str | None:
            try:
                storage.verify_size(file)
            except CorruptFileError as exc:
                return str(exc)
            return None

        for batch in batches:
            for number in batch.column(0).to_pylist():
                files = msgspec.msgpack.decode(self._parts[number], type=list[FileReference])
                damages = all_of(damage, files, at_once=True)
                found = [each for each in damages if each is not None]
                yield pa.RecordBatch.from_pydict({"damage": pa.array(found, pa.string())})
