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

from pyspark_ckpt.checkpoint.claimed_source import ClaimedSource
from pyspark_ckpt.checkpoint.coordinator import CheckpointCoordinator
from pyspark_ckpt.checkpoint.drain import LastEpochs
from pyspark_ckpt.checkpoint.origin import Restore, read_origin
from pyspark_ckpt.checkpoint.restore_plan import RestoreMigrations, RestorePlan
from pyspark_ckpt.checkpoint.restore_request import RestoreRequest, plan_of_request
from pyspark_ckpt.checkpoint.snapshot import QueryFiles
from pyspark_ckpt.checkpoint.spark_log import SparkLog
from pyspark_ckpt.checkpoint.stateful_operators import StatefulOperators
from pyspark_ckpt.configuration import (
    CLAIM,
    CLAIM_MODES,
    RUNTIME_KEY,
    Settings,
    is_ckpt_option,
    read_settings,
)
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError
from pyspark_ckpt.file_sink_log import COMPACT_INTERVAL, DEFAULT_COMPACT_INTERVAL, FileSinkLog
from pyspark_ckpt.on_disk.storage import LocalStorage, open_local_storage, open_storage
from pyspark_ckpt.operator.descriptor import Runtime, encode_runtime
from pyspark_ckpt.query import CheckpointedQuery
from pyspark_ckpt.query_plan import operators_of, source_ids
from pyspark_ckpt.session_conf import conf_of_start, session_conf
from pyspark_ckpt.spark_paths import qualified_path
from pyspark_ckpt.start_location import StartLocation
from pyspark_ckpt.table_sink import TableSink

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
        self._partition_by: list[str] = []
        self._when: dict[str, Any] = {"processingTime": "0 seconds"}
        self._restore_from: dict[str, Any] = {}
        self._migrations: RestoreMigrations = {}

    def restoreFrom(
        self,
        path: str,
        claimMode: str | None = None,
        allowNonRestoredState: bool | None = None,  # noqa: FBT001  # Flink's, by its name
        migrations: RestoreMigrations | None = None,
    ) -> CheckpointedStreamWriter:
        """Start from a savepoint or a retained checkpoint.

        A ``checkpointLocation`` that has committed epochs goes on from there, and `path` is not
        used; a fresh one is seeded with copies of all that the query needs, so that `path` may
        go as soon as ``start`` returns.

        Operators that `path` does not know start empty.

        Parameters
        ----------
        path
            A ``savepoint-...`` or ``chk-...`` directory; wins over
            ``spark.ckpt.execution.state-recovery.path``.
        claimMode
            ``NO_CLAIM``: `path` is only read. ``CLAIM``: the query deletes it once it has a
            checkpoint of its own; of a ``chk-...`` it deletes no file that others may share. By
            default ``spark.ckpt.execution.state-recovery.claim-mode``, which is ``NO_CLAIM``.
        allowNonRestoredState
            Whether to leave behind the state of operators that the query no longer has, instead
            of refusing to start. By default
            ``spark.ckpt.execution.state-recovery.ignore-unclaimed-state``, which is false.
        migrations
            By the uid of an operator and the name of its state: what brings stored states to new
            schemas or names while they are restored. The query needs none of it later, unlike the
            migrations of an operator, which are done in its first epochs.

        Raises
        ------
        ConfigurationError
            If `claimMode` is neither of them.
        """
        if claimMode is not None and claimMode not in CLAIM_MODES:
            raise ConfigurationError(
                f"claimMode is {claimMode!r}: allowed is {', '.join(CLAIM_MODES)}"
            )
        given = {
            "restore_path": str(path),
            "claim_mode": claimMode,
            "allow_non_restored_state": allowNonRestoredState,
        }
        self._migrations = migrations or {}
        self._restore_from = {name: value for name, value in given.items() if value is not None}
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

    def partitionBy(self, *cols: Any) -> CheckpointedStreamWriter:
        """Choose the columns that output is partitioned by; as ``DataStreamWriter.partitionBy``."""
        super().partitionBy(*cols)
        is_list = len(cols) == 1 and isinstance(cols[0], (list, tuple))
        self._partition_by = list(cols[0] if is_list else cols)
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
            None,
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
        """Start the query into a table; parameters as ``DataStreamWriter.toTable``.

        With :meth:`restoreFrom` the table is a new one, or one that no query has written to.
        """
        self.options(**options)
        if format is not None:
            self.format(format)
        if queryName is not None:
            self.queryName(queryName)
        return self._start(
            lambda: super(CheckpointedStreamWriter, self).toTable(
                tableName, outputMode=outputMode, partitionBy=partitionBy
            ),
            self._table_sink(tableName, partitionBy),
        )

    def _start(self, start: Any, table: TableSink | None) -> CheckpointedQuery:
        spark = self._stream.sparkSession
        settings = self._settings(spark)
        operators = operators_of(self._stream)
        location = StartLocation(self._location(), settings.checkpoints_directory, operators)
        location.check_not_half_rolled_back()
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
            if settings.restore_path is not None:
                request = self._restore_request(settings, settings.restore_path)
                location.restore(spark, request, self._file_sink_log(table), table)
            else:
                location.start_from_initial_state(
                    spark,
                    runtime,
                    len(source_ids(self._stream)),
                    self._file_sink_log(table),
                    table,
                )
            location.prepare_sink(self._file_sink_log(table))
            query = self._start_with_runtime(start, runtime, operators)
        return self._with_coordinator(query, settings, location, operators, last_epochs)

    def _run_one_epoch(self, start: Any, runtime: Runtime, operators: StatefulOperators) -> None:
        """Run the epoch that is due at the location, into the same sink, and no other."""
        when = self._when
        self.trigger(once=True)
        try:
            with _start_lock:
                query = self._start_with_runtime(start, runtime, operators)
        finally:
            self.trigger(**when)
        query.awaitTermination()

    def planRestore(self) -> RestorePlan:
        """Tell what :meth:`restoreFrom` would do with every operator and state; starts nothing.

        Returns
        -------
        RestorePlan
            Prints as a table. ``start`` makes the same plan and raises what is refused in it.

        Raises
        ------
        ConfigurationError
            If it is not told from where.
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If there is no good checkpoint or savepoint there.
        """
        settings = self._settings(self._stream.sparkSession)
        if settings.restore_path is None:
            raise ConfigurationError(
                "planRestore needs restoreFrom(path), or spark.ckpt.execution.state-recovery.path"
            )
        request = self._restore_request(settings, settings.restore_path)
        return plan_of_request(request, operators_of(self._stream))

    def _restore_request(self, settings: Settings, path: str) -> RestoreRequest:
        return RestoreRequest(
            path=qualified_path(self._stream.sparkSession, path),
            claim_mode=settings.claim_mode,
            allow_non_restored_state=settings.allow_non_restored_state,
            falls_back=settings.restore_fallback,
            migrations=self._migrations,
            backend_type=settings.backend_type,
            source_ids=source_ids(self._stream),
        )

    def _settings(self, spark: SparkSession) -> Settings:
        settings = read_settings(spark.conf.getAll, self._ckpt_options)
        return replace(
            settings,
            checkpoints_directory=_qualified(spark, settings.checkpoints_directory),
            savepoints_directory=_qualified(spark, settings.savepoints_directory),
            **self._restore_from,
        )

    def _start_with_runtime(
        self,
        start: Any,
        runtime: Runtime,
        operators: StatefulOperators,
    ) -> StreamingQuery:
        """Start Spark's query with the settings in the session's conf, which it copies."""
        ends_by_itself = self._when.get("availableNow") or self._when.get("once")
        conf = conf_of_start(
            operators.descriptors,
            ends_by_itself=bool(ends_by_itself),
            one_watermark=operators.have_one_watermark,
        )
        conf[RUNTIME_KEY] = encode_runtime(runtime)
        with session_conf(self._stream.sparkSession, conf):
            query: StreamingQuery = start()
        return query

    def _with_coordinator(
        self,
        query: StreamingQuery,
        settings: Settings,
        location: StartLocation,
        operators: StatefulOperators,
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
        origin = read_origin(files.storage)
        if origin is not None and origin.claim_mode == CLAIM:
            coordinator.listeners.add(ClaimedSource(origin))
        coordinator.start()
        restore = None if origin is None else Restore.of(origin)
        return CheckpointedQuery(spark, query, coordinator, restore)

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

    def _table_sink(self, name: str, partition_by: str | list[str] | None) -> TableSink:
        spark = self._stream.sparkSession
        columns = [partition_by] if isinstance(partition_by, str) else partition_by
        path = self._sink_options.get("path")
        return TableSink(
            self._stream,
            name,
            self._format or spark.conf.get("spark.sql.sources.default", None) or "parquet",
            self._partition_by if columns is None else columns,
            None if path is None else str(path),
        )

    def _file_sink_log(self, table: TableSink | None) -> FileSinkLog | None:
        """Return the log of Spark's file sink, ``None`` for another sink."""
        spark = self._stream.sparkSession
        chosen = self._format or spark.conf.get("spark.sql.sources.default", "parquet")
        path = self._sink_options.get("path")
        if table is not None:
            chosen, path = table.format, table.location
        if not path or str(chosen).lower() not in _FILE_FORMATS:
            return None
        interval = spark.conf.get(COMPACT_INTERVAL, None) or DEFAULT_COMPACT_INTERVAL
        return FileSinkLog(qualified_path(spark, str(path)), int(interval))


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
