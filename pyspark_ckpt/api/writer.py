"""``write_stream``: the writer of a query, which takes what it is told and starts the query."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ckpt.api.epoch_function import EpochFunction
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.query.start import QueryStart, StartOfSpark, restore_request
from pyspark_ckpt.restore.location import StartLocation
from pyspark_ckpt.restore.plan import RestoreMigrations, RestorePlan, plan_of_request
from pyspark_ckpt.settings import CLAIM_MODES, Settings, is_ckpt_option, read_settings
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.plan import operators_of
from pyspark_ckpt.spark.sink import FOREACH_BATCH, SinkChoice, TableSink
from pyspark_ckpt.spark.temporary_location import delete_temporary, make_temporary
from pyspark_ckpt.spark.worker_python import check_workers
from pyspark_ckpt.storage.open import LocalStorage, open_storage


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
        self._sink = SinkChoice()
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
        self._sink.format = source
        return self

    def foreach(self, f: Any) -> CheckpointedStreamWriter:
        """Process each row with a function or an object; as ``DataStreamWriter.foreach``."""
        super().foreach(f)
        self._sink.format = "foreach"
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> CheckpointedStreamWriter:
        """Process each epoch's output with a function; as ``DataStreamWriter.foreachBatch``.

        All actions on the DataFrame, also from other threads, have to end before the function
        returns.
        """
        super().foreachBatch(EpochFunction(func))
        self._sink.format = FOREACH_BATCH
        return self

    def queryName(self, queryName: str) -> CheckpointedStreamWriter:
        """Name the query; as ``DataStreamWriter.queryName``."""
        super().queryName(queryName)
        self._sink.query_name = queryName
        return self

    def partitionBy(self, *cols: Any) -> CheckpointedStreamWriter:
        """Choose the columns that output is partitioned by; as ``DataStreamWriter.partitionBy``."""
        super().partitionBy(*cols)
        is_list = len(cols) == 1 and isinstance(cols[0], (list, tuple))
        self._sink.partition_by = list(cols[0] if is_list else cols)
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
                self._sink.options[key.lower()] = value
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
            If a setting is unknown or not allowed, or there is no ``checkpointLocation``
            and Spark would not make a temporary one for the sink.
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
            self._sink.options["path"] = path
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
            self._sink.table(self._stream, tableName, partitionBy),
        )

    def _start(
        self, start: Callable[[], StreamingQuery], table: TableSink | None
    ) -> CheckpointedQuery:
        spark = self._stream.sparkSession
        settings = self._settings(spark)
        operators = operators_of(self._stream)
        check_workers(spark)
        given = self._sink.location(spark, table)
        storage = make_temporary(spark) if given is None else given
        if self._sink.has_no_location:
            super().option("checkpointLocation", storage.url)  # for this start alone
        spark_query = StartOfSpark(
            start,
            partial(self._start_once, start, deepcopy(self._sink), storage),
            ends_by_itself=bool(self._when.get("availableNow") or self._when.get("once")),
            announces_epochs=table is None and self._sink.format == FOREACH_BATCH,
            location_is_temporary=given is None,
        )
        try:
            return QueryStart(
                self._stream,
                settings,
                self._migrations,
                StartLocation(storage, settings.checkpoints_directory, operators),
                self._sink.file_sink_log(spark, table),
                table,
                spark_query,
            ).run()
        except BaseException:
            if given is None:
                delete_temporary(storage)
            raise

    def _start_once(
        self,
        start: Callable[[], StreamingQuery],
        sink: SinkChoice,
        storage: LocalStorage,
    ) -> StreamingQuery:
        """Start Spark's query for one epoch more, into the sink of the query that was started."""
        if self._sink != sink:
            raise CheckpointAbortedError(
                f"the writer of the query at {storage.url} was given other options since, and its "
                "last epoch cannot be run with them: start the query again"
            )
        when = self._when
        self.trigger(once=True)
        try:
            return start()
        finally:
            self.trigger(**when)

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
        request = restore_request(self._stream, settings, settings.restore_path, self._migrations)
        return plan_of_request(request, operators_of(self._stream))

    def _settings(self, spark: SparkSession) -> Settings:
        settings = read_settings(spark.conf.getAll, self._ckpt_options)
        return replace(
            settings,
            checkpoints_directory=_qualified(spark, settings.checkpoints_directory),
            savepoints_directory=_qualified(spark, settings.savepoints_directory),
            **self._restore_from,
        )


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
