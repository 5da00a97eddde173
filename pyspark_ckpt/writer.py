"""``write_stream``: binds settings, restores if asked, starts the query and its coordinator."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ckpt.checkpoint.coordinator import CheckpointCoordinator
from pyspark_ckpt.checkpoint.drain import LastEpochs
from pyspark_ckpt.checkpoint.snapshot import QueryFiles
from pyspark_ckpt.checkpoint.spark_log import SparkLog
from pyspark_ckpt.configuration import RUNTIME_KEY, Settings, is_ckpt_option, read_settings
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError
from pyspark_ckpt.on_disk.storage import LocalStorage, open_local_storage, open_storage
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, Runtime, encode_runtime
from pyspark_ckpt.query import CheckpointedQuery
from pyspark_ckpt.query_plan import operators_of, source_ids
from pyspark_ckpt.session_conf import conf_of_start, session_conf
from pyspark_ckpt.spark_paths import qualified_path
from pyspark_ckpt.start_location import StartLocation

logger = logging.getLogger(__name__)

_start_lock = threading.Lock()
"""The settings travel through the session's conf, which one start at a time may use."""


def write_stream(df: DataFrame) -> CheckpointedStreamWriter:
    """Return the writer of a query with checkpoints; takes the place of ``df.writeStream``."""
    return CheckpointedStreamWriter(df)


class CheckpointedStreamWriter(DataStreamWriter):
    """PySpark's ``DataStreamWriter`` and :meth:`restoreFrom`.

    ``spark.ckpt.`` keys are taken as options too; an option wins over the conf.
    """

    def __init__(self, df: DataFrame) -> None:
        super().__init__(df)
        self._stream = df
        self._ckpt_options: dict[str, str] = {}
        self._sink_options: dict[str, Any] = {}
        self._format: str | None = None
        self._restore_path: str | None = None
        self._when: dict[str, Any] = {"processingTime": "0 seconds"}

    def restoreFrom(self, path: str) -> CheckpointedStreamWriter:
        """Start from a savepoint or a retained checkpoint.

        A ``checkpointLocation`` that has committed epochs goes on from there, and `path` is not
        used; a fresh one is seeded with copies of all that the query needs. `path` itself is only
        read.

        Parameters
        ----------
        path
            A ``savepoint-...`` or ``chk-...`` directory.
        """
        self._restore_path = str(path)
        return self

    def format(self, source: str) -> CheckpointedStreamWriter:
        """Choose the sink; as ``DataStreamWriter.format``."""
        super().format(source)
        self._format = source
        return self

    def queryName(self, queryName: str) -> CheckpointedStreamWriter:
        """Name the query; as ``DataStreamWriter.queryName``."""
        super().queryName(queryName)
        self._sink_options["queryName"] = queryName
        return self

    def trigger(self, **when: Any) -> CheckpointedStreamWriter:
        """Choose when epochs start; as ``DataStreamWriter.trigger``."""
        super().trigger(**when)
        self._when = when
        return self

    def option(self, key: str, value: Any) -> CheckpointedStreamWriter:
        """Set one option of the sink or one ``spark.ckpt.`` key."""
        return self.options(**{key: value})

    def options(self, **options: Any) -> CheckpointedStreamWriter:
        """Set several options of the sink or ``spark.ckpt.`` keys."""
        for key, value in options.items():
            if is_ckpt_option(key):
                self._ckpt_options[key] = str(value)
            else:
                super().option(key, value)
                self._sink_options[key.lower()] = value
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> CheckpointedQuery:
        """Start the query; parameters as ``DataStreamWriter.start``.

        Raises
        ------
        ConfigurationError
            If a setting is unknown or not allowed, or there is no ``checkpointLocation``.
        PlanError
            If the query has no operator of this library, or two with one uid, or its parallelism
            is not that of its location.
        RestoreError, CheckpointNotFoundError, CorruptFileError
            If it cannot start from where it was told to; nothing was started or deleted.
        """
        self.options(**options)
        if format is not None:
            self.format(format)
        if queryName is not None:
            self.queryName(queryName)
        if path is not None:
            self._sink_options["path"] = path
        return self._start(
            lambda: super(CheckpointedStreamWriter, self).start(
                path=path, outputMode=outputMode, partitionBy=partitionBy
            ),
            to_table=False,
        )

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> CheckpointedQuery:
        """Start the query into a table; parameters as ``DataStreamWriter.toTable``."""
        self.options(**options)
        if format is not None:
            self.format(format)
        if queryName is not None:
            self.queryName(queryName)
        return self._start(
            lambda: super(CheckpointedStreamWriter, self).toTable(
                tableName, outputMode=outputMode, partitionBy=partitionBy
            ),
            to_table=True,
        )

    def _start(self, start: Any, *, to_table: bool) -> CheckpointedQuery:
        spark = self._stream.sparkSession
        settings = self._settings(spark)
        operators = tuple(operators_of(self._stream))
        location = StartLocation(self._location(), settings.checkpoints_directory, operators)
        location.check_parallelism(spark)
        location.check_states(spark)
        runtime = Runtime(
            checkpoints_directory=location.checkpoints_root,
            query_subdirectory=settings.checkpoints_directory is not None,
            backend_type=settings.backend_type,
            inline_threshold_bytes=settings.inline_threshold_bytes,
            memory_limit_bytes=settings.memory_limit_bytes,
            materialization=settings.materialization,
        )

        options = dict(self._sink_options)

        def run_epoch(drained_from_ms: int | None) -> None:
            if self._sink_options != options:
                raise CheckpointAbortedError(
                    f"the writer of the query at {location.storage.url} was given other options "
                    "since, and its last epoch cannot be run with them: start the query again"
                )
            self._run_one_epoch(
                start, msgspec.structs.replace(runtime, drained_from_ms=drained_from_ms), operators
            )

        last_epochs = LastEpochs(SparkLog(location.storage), run_epoch)
        last_epochs.finish_interrupted()
        with _start_lock:
            if self._restore_path is not None:
                source = qualified_path(spark, self._restore_path)
                location.restore(spark, source, self._file_sink_path(), to_table=to_table)
            else:
                location.start_from_initial_state(
                    spark, runtime, len(source_ids(self._stream)), self._file_sink_path()
                )
            query = self._start_with_runtime(start, runtime, operators)
        return self._with_coordinator(query, settings, location, operators, last_epochs)

    def _run_one_epoch(
        self, start: Any, runtime: Runtime, operators: tuple[OperatorDescriptor, ...]
    ) -> None:
        """Run the epoch that is due at the location, into the same sink, and no other."""
        when = self._when
        self.trigger(once=True)
        try:
            with _start_lock:
                query = self._start_with_runtime(start, runtime, operators)
        finally:
            self.trigger(**when)
        query.awaitTermination()

    def _settings(self, spark: SparkSession) -> Settings:
        settings = read_settings(spark.conf.getAll, self._ckpt_options)
        return replace(
            settings,
            checkpoints_directory=_qualified(spark, settings.checkpoints_directory),
            savepoints_directory=_qualified(spark, settings.savepoints_directory),
        )

    def _start_with_runtime(
        self,
        start: Any,
        runtime: Runtime,
        operators: tuple[OperatorDescriptor, ...],
    ) -> StreamingQuery:
        """Start Spark's query with the settings in the session's conf, which it copies."""
        ends_by_itself = self._when.get("availableNow") or self._when.get("once")
        conf = conf_of_start(operators, ends_by_itself=bool(ends_by_itself))
        conf[RUNTIME_KEY] = encode_runtime(runtime)
        with session_conf(self._stream.sparkSession, conf):
            query: StreamingQuery = start()
        return query

    def _with_coordinator(
        self,
        query: StreamingQuery,
        settings: Settings,
        location: StartLocation,
        operators: tuple[OperatorDescriptor, ...],
        last_epochs: LastEpochs,
    ) -> CheckpointedQuery:
        spark = self._stream.sparkSession
        files = QueryFiles(
            checkpoint_location=str(location.storage.root),
            spark_log=SparkLog(location.storage),
            storage=location.checkpoints(query.id),
            query_id=query.id,
            query_name=query.name,
            backend_type=settings.backend_type,
            operators=operators,
            source_ids=source_ids(self._stream),
        )
        try:
            coordinator = CheckpointCoordinator(spark, query, files, settings, last_epochs)
        except BaseException:
            query.stop()  # nobody would have a handle on it
            raise
        coordinator.start()
        return CheckpointedQuery(spark, query, coordinator)

    def _location(self) -> LocalStorage:
        """Return the query's checkpointLocation, from its option or Spark's own default."""
        spark = self._stream.sparkSession
        given = self._sink_options.get("checkpointlocation")
        if given:
            return open_local_storage(qualified_path(spark, str(given)), "checkpointLocation")
        root = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        name = self._sink_options.get("queryName")
        if root and name:
            return open_local_storage(qualified_path(spark, f"{root}/{name}"), "checkpointLocation")
        raise ConfigurationError(
            "the query has no checkpointLocation, where its state is kept: set "
            ".option('checkpointLocation', path), or spark.sql.streaming.checkpointLocation and "
            "a queryName"
        )

    def _file_sink_path(self) -> str | None:
        """Return the path of Spark's file sink, ``None`` for another sink."""
        spark = self._stream.sparkSession
        chosen = self._format or spark.conf.get("spark.sql.sources.default", "parquet")
        path = self._sink_options.get("path")
        if not path or str(chosen).lower() not in _FILE_FORMATS:
            return None
        return qualified_path(spark, str(path))


def _qualified(spark: SparkSession, path: str | None) -> str | None:
    if path is None:
        return None
    storage = open_storage(qualified_path(spark, path))
    if not storage.is_shared:
        raise ConfigurationError(
            f"{storage.url} is the memory of one process, which the tasks of a query do not see: "
            "use a local or mounted path, or s3://bucket/prefix"
        )
    storage.list()  # what cannot be read at all is refused before anything has begun
    return storage.url


_FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text", "xml", "avro"})
