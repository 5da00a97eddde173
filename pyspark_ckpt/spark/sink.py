"""The sink of a query: what its writer chose, its table, and the log of Spark's file sink.

The log, ``_spark_metadata``, lists the epochs that the file sink has written. A reader requires the
last compaction and every entry after it. The sink skips epochs that are in the log. So a query
whose first epoch is not 0 needs empty entries for the epochs before. Names and texts are Spark's
(FileStreamSinkLog, version 1).

Spark makes the table of ``toTable`` when the query starts, and only in an empty directory. But a
restored query needs entries in the sink's log by then. So the library makes the table first, in the
same way.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.errors import ConfigurationError, CorruptFileError
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.log import (
    COMPACT,
    guessed_interval,
    newest_compaction,
    numbered,
)
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.plan import FILE_FORMATS
from pyspark_ckpt.spark.temporary_location import may_be_temporary
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.values.nesting import sql_name, sql_type

COMPACT_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"
DEFAULTCOMPACT_INTERVAL = 10
LOG = "_spark_metadata"
"""The directory of the log in an output path."""

_EMPTY_ENTRY = b"v1"
_SINK_PATH = "a query that was restored needs the log of its file sink; the output path"


class FileSinkLog:
    """The log of one output path.

    Its storage is opened when the log is first used: Spark may write the output of queries to file
    systems that this library does not support.

    After `compact_interval` epochs an entry holds all entries before it.
    """

    def __init__(self, path: str, compact_interval: int) -> None:
        self.path = path
        self._setting = compact_interval

    @cached_property
    def output(self) -> Storage:
        """The output path."""
        return open_storage(self.path, _SINK_PATH)

    @cached_property
    def log(self) -> Storage:
        """The directory of the log; the errors are those of :attr:`output`."""
        return self.output.child(LOG)

    def oldest_epoch(self) -> int | None:
        """Return the oldest epoch that has an entry, ``None`` if there is none."""
        return min(self._epochs().values(), default=None)

    def newest_epoch(self) -> int | None:
        """Return the newest epoch that was written, ``None`` if there is none."""
        return max(self._epochs().values(), default=None)

    def is_fresh(self, epoch: int, begun: int | None = None) -> bool:
        """Return whether the log has at most the entries that :meth:`fill` writes to a new one.

        `epoch` is the epoch that the log is filled up to. `begun` is a later epoch that the query
        itself may have written.
        """
        last = epoch if begun is None else begun
        wanted = _names(epoch, self._setting)
        return all(
            epoch < written <= last or (name in wanted and self.log.read(name) == _EMPTY_ENTRY)
            for name, written in self._epochs().items()
        )

    def lacking(self, epoch: int) -> tuple[int, ...]:
        """Return the epochs up to this one, or to the newest, that are in no entry of the log.

        What the newest compaction holds is there.
        """
        epochs = self._epochs()
        there = set(epochs.values())
        last = max(epoch, max(there, default=-1))
        return tuple(n for n in range(newest_compaction(epochs) + 1, last + 1) if n not in there)

    def needed(self) -> list[str]:
        """Return the names of the entries that a reader of the path reads."""
        epochs = self._epochs()
        first = max(newest_compaction(epochs), 0)
        names = {number: name for name, number in sorted(epochs.items())}  # 9.compact over 9
        return [names[number] for number in sorted(names) if number >= first]

    def has_files(self) -> bool:
        """Return whether the path has files or directories of output, listed in the log or not."""
        return any(not name.startswith(("_", ".")) for name in self.log.parent().list())

    def fill(self, epoch: int) -> None:
        """Write what Spark needs to read and to continue the log after an epoch; durable.

        An epoch without an entry gets an empty one. Where Spark looks for a compaction, one is
        written that has all entries before it: after epochs that have no entry, and also if the
        interval was changed. No entry is changed or removed.
        """
        epochs = self._epochs()
        last = max(epoch, max(epochs.values(), default=-1))
        interval = _interval(epochs, self._setting)
        names = _names(last, interval)
        compaction = (last + 1) // interval * interval - 1
        before = newest_compaction(epochs, compaction - 1)
        if before not in (-1, compaction - interval):
            # Spark takes the difference of the last two for the interval.
            names.insert(1, f"{compaction - interval}{COMPACT}")
        for name in names:
            if name not in epochs and not self.log.exists(name):
                number = int(name.removesuffix(COMPACT))
                is_compaction = name.endswith(COMPACT)
                self.log.write(
                    name, self._entries_up_to(number, epochs) if is_compaction else [_EMPTY_ENTRY]
                )

    def _entries_up_to(self, epoch: int, epochs: dict[str, int]) -> Iterator[bytes]:
        """Yield the bytes of a compaction: the version, and the lines of all entries."""
        yield _EMPTY_ENTRY
        there = {name: number for name, number in epochs.items() if number <= epoch}
        first = newest_compaction(there)
        by_number = {
            number: name
            for name, number in there.items()
            if number > first or name.endswith(COMPACT)
        }
        for number in sorted(number for number in by_number if number >= first):
            content = self.log.read(by_number[number])
            if content != _EMPTY_ENTRY and not content.startswith(_EMPTY_ENTRY + b"\n"):
                raise CorruptFileError(
                    f"{self.log.url_of(by_number[number])} is not what Spark writes. Put it back, "
                    "or give the query a new path"
                )
            yield content.removeprefix(_EMPTY_ENTRY)

    def _epochs(self) -> dict[str, int]:
        """Return the epoch of each entry by its name. Spark ignores all other names, too."""
        return numbered(self.log.list())


def _names(epoch: int, interval: int) -> list[str]:
    """Return the names of the last compaction up to an epoch, and of the entries after it."""
    compaction = (epoch + 1) // interval * interval - 1
    after = [str(number) for number in range(compaction + 1, epoch + 1)]
    return after if compaction < 0 else [f"{compaction}{COMPACT}", *after]


def _interval(epochs: Mapping[str, int], setting: int) -> int:
    """Return the number of epochs between two compactions, as Spark finds it in the log."""
    found = sorted(number for name, number in epochs.items() if name.endswith(COMPACT))
    if not found:
        return setting
    epochs_until = found[-1] + 1
    if len(found) > 1:
        difference = found[-1] - found[-2]
        if epochs_until % difference == 0:
            return difference
        return math.gcd(epochs_until, found[-2] + 1)  # a fill was interrupted between the two
    return guessed_interval(epochs_until, setting)


_SESSION_CATALOG = "spark_catalog"
_DETAILS = "# Detailed Table Information"


class TableSink:
    """A table that a query writes to."""

    def __init__(
        self,
        df: DataFrame,
        name: str,
        provider: str,
        partition_by: Sequence[str] = (),
        path: str | None = None,
    ) -> None:
        self._df = df
        self._spark: SparkSession = df.sparkSession
        self._parts = session_of(self._spark).parts_of_table(name)
        self._new_provider = provider
        self._partition_by = partition_by
        self._new_path = path

    @property
    def format(self) -> str | None:
        """The table's format, ``None`` if the table is not in Spark's own catalog."""
        if not self._is_of_session:
            return None
        return self._details().get("Provider") if self._exists else self._new_provider

    @property
    def location(self) -> str | None:
        """The directory of the table's files, ``None`` if it is unknown."""
        if not self._is_of_session:
            return None
        if self._exists:
            return self._details().get("Location")
        return self._new_path or self._default_location()

    def make(self) -> None:
        """Make the table if it does not exist and belongs to Spark's own catalog."""
        if not self._is_of_session or self._exists:
            return
        columns = self._columns()
        statement = f"CREATE TABLE {self._name} ({columns}) USING {sql_name(self._new_provider)}"
        if self._partition_by:
            partitions = ", ".join(map(sql_name, self._partition_by))
            statement += f" PARTITIONED BY ({partitions})"
        if self._new_path is not None:
            text = self._new_path.replace("\\", "\\\\").replace("'", "\\'")
            statement += f" LOCATION '{text}'"
        self._spark.sql(statement)

    def _columns(self) -> str:
        if session_of(self._df).has_jvm:
            return str(self._df._jdf.schema().asNullable().toDDL())
        fields = self._df.schema.fields
        return ", ".join(f"{sql_name(field.name)} {sql_type(field.dataType)}" for field in fields)

    @property
    def _is_of_session(self) -> bool:
        if len(self._parts) > 2:
            return self._parts[0].lower() == _SESSION_CATALOG
        return self._spark.catalog.currentCatalog() == _SESSION_CATALOG

    @property
    def _exists(self) -> bool:
        return self._spark.catalog.tableExists(self._name)

    @property
    def _name(self) -> str:
        return ".".join(map(sql_name, self._parts))

    def _details(self) -> dict[str, str]:
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self._name}").collect()
        names = [row.col_name for row in rows]
        first = names.index(_DETAILS) if _DETAILS in names else len(names)
        return {row.col_name: row.data_type for row in rows[first:]}

    def _default_location(self) -> str:
        *database, table = self._parts[-2:]
        of_database = database[0] if database else self._spark.catalog.currentDatabase()
        return session_of(self._spark).default_table_path(of_database, table)


FOREACH_BATCH = "foreachBatch"
"""Spark's name of the sink that calls a function."""

_LOCATION = "checkpointLocation"


@dataclass(slots=True)
class SinkChoice:
    """The sink of one writer, as far as it was chosen; PySpark's writer does not return it."""

    options: dict[str, Any] = field(default_factory=dict)
    format: str | None = None
    query_name: str | None = None
    partition_by: list[str] = field(default_factory=list)

    @property
    def has_no_location(self) -> bool:
        """Whether the writer was given no ``checkpointLocation``."""
        return not self.options.get(_LOCATION.lower())

    def location(self, spark: SparkSession, table: TableSink | None) -> Storage | None:
        """Return the query's ``checkpointLocation``, from its option or Spark's own default.

        The result is ``None`` if the query gets a temporary location, as with Spark for this sink.
        """
        is_temporary = table is None and may_be_temporary(self.format)
        given = self.options.get(_LOCATION.lower())
        root = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if not given and root and (self.query_name or is_temporary):
            given = f"{root}/{self.query_name or uuid.uuid4()}"
        if given:
            return _check_shared(open_storage(qualified_path(spark, str(given)), _LOCATION))
        if is_temporary:
            return None
        raise ConfigurationError(
            "the query has no checkpointLocation, which keeps its state: set "
            ".option('checkpointLocation', path), or spark.sql.streaming.checkpointLocation and "
            "a queryName"
        )

    def table(
        self, stream: DataFrame, name: str, partition_by: str | list[str] | None
    ) -> TableSink:
        """Return the sink of a query that writes into a table."""
        columns = [partition_by] if isinstance(partition_by, str) else partition_by
        path = self.options.get("path")
        return TableSink(
            stream,
            name,
            self._format(stream.sparkSession),
            self.partition_by if columns is None else columns,
            None if path is None else str(path),
        )

    def file_sink_log(self, spark: SparkSession, table: TableSink | None) -> FileSinkLog | None:
        """Return the log of Spark's file sink, ``None`` for another sink."""
        chosen = self._format(spark) if table is None else table.format
        path = self.options.get("path") if table is None else table.location
        if not path or str(chosen).lower() not in FILE_FORMATS:
            return None
        interval = spark.conf.get(COMPACT_INTERVAL, None) or DEFAULTCOMPACT_INTERVAL
        return FileSinkLog(qualified_path(spark, str(path)), int(interval))

    def _format(self, spark: SparkSession) -> str:
        return self.format or spark.conf.get("spark.sql.sources.default", None) or "parquet"


def _check_shared(location: Storage) -> Storage:
    if location.is_shared:
        return location
    raise ConfigurationError(
        f"{_LOCATION} {location.url}: Spark has no such file system; use a local or mounted path, "
        "hdfs://, or the URL of an object store"
    )
