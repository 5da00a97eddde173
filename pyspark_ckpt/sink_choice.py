"""What a writer was told about its sink, and where Spark keeps the query because of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.file_sink_log import COMPACT_INTERVAL, DEFAULT_COMPACT_INTERVAL, FileSinkLog
from pyspark_ckpt.spark_paths import qualified_path
from pyspark_ckpt.storage.open import LocalStorage, open_local_storage
from pyspark_ckpt.table_sink import TableSink
from pyspark_ckpt.temporary_location import may_be_temporary

_FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text", "xml", "avro"})
FOREACH_BATCH = "foreachBatch"
"""Spark's name of the sink that calls a function."""

_LOCATION = "checkpointLocation"


@dataclass(slots=True)
class SinkChoice:
    """The sink of one writer, as far as it was chosen; PySpark's writer has no way to ask it.

    Parameters
    ----------
    options
        Of the sink, their names in lower case.
    format, query_name, partition_by
        As given; by default Spark's.
    """

    options: dict[str, Any] = field(default_factory=dict)
    format: str | None = None
    query_name: str | None = None
    partition_by: list[str] = field(default_factory=list)

    @property
    def has_no_location(self) -> bool:
        """Whether the writer was given no ``checkpointLocation``."""
        return not self.options.get(_LOCATION.lower())

    def location(self, spark: SparkSession, table: TableSink | None) -> LocalStorage | None:
        """Return the query's ``checkpointLocation``, from its option or Spark's own default.

        Returns
        -------
        LocalStorage or None
            ``None`` if a temporary one is to be made, as Spark does for this sink.

        Raises
        ------
        ConfigurationError
            If there is none, and the sink needs one that stays.
        """
        is_temporary = table is None and may_be_temporary(self.format)
        given = self.options.get(_LOCATION.lower())
        root = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if not given and root and (self.query_name or is_temporary):
            given = f"{root}/{self.query_name or uuid.uuid4()}"
        if given:
            return open_local_storage(qualified_path(spark, str(given)), _LOCATION)
        if is_temporary:
            return None
        raise ConfigurationError(
            "the query has no checkpointLocation, where its state is kept: set "
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
        if not path or str(chosen).lower() not in _FILE_FORMATS:
            return None
        interval = spark.conf.get(COMPACT_INTERVAL, None) or DEFAULT_COMPACT_INTERVAL
        return FileSinkLog(qualified_path(spark, str(path)), int(interval))

    def _format(self, spark: SparkSession) -> str:
        return self.format or spark.conf.get("spark.sql.sources.default", None) or "parquet"
