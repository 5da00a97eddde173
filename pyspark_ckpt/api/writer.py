"""``write_stream``: the writer of a query, which collects its options and starts it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.api.sink_writer import SinkWriter
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError, NotBuiltYetError
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.query.start import QueryStart, StartOfSpark, restore_request
from pyspark_ckpt.restore.location import StartLocation
from pyspark_ckpt.restore.plan import RestoreMigrations, RestorePlan, plan_of_request
from pyspark_ckpt.sessions import connect
from pyspark_ckpt.sessions.connect_plan import give_output_mode
from pyspark_ckpt.sessions.kind import is_connect
from pyspark_ckpt.settings import ClaimMode, Settings, read_settings
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.plan import operators_of, source_ids
from pyspark_ckpt.spark.sink import FOREACH_BATCH, SinkChoice, TableSink
from pyspark_ckpt.spark.temporary_location import delete_temporary, make_temporary
from pyspark_ckpt.spark.worker_python import check_workers
from pyspark_ckpt.storage.open import Storage, open_storage

_MEMORY = "memory"


def write_stream(df: DataFrame) -> CheckpointedStreamWriter:
    """Return the writer of a query with checkpoints; replaces ``df.writeStream``.

    Call it on the driver.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame with at least one operator of this library.

    Returns
    -------
    CheckpointedStreamWriter
        Has the methods of PySpark's ``DataStreamWriter``.

    Examples
    --------
    >>> writer = ckpt.write_stream(counts).outputMode("update").format("console")
    """
    return CheckpointedStreamWriter(df)


class CheckpointedStreamWriter(SinkWriter):
    """PySpark's ``DataStreamWriter`` with checkpoints and :meth:`restoreFrom`.

    Its options may also be ``spark.ckpt.`` keys. An option overrides the same key of Spark's conf.

    Parameters
    ----------
    df : DataFrame
        The query.

    Examples
    --------
    >>> writer = (
    ...     ckpt.write_stream(counts)
    ...     .outputMode("update")
    ...     .format("console")
    ...     .option("checkpointLocation", f"{directory}/console")
    ...     .option("spark.ckpt.execution.checkpointing.interval", "1min")
    ... )
    """

    def __init__(self, df: DataFrame) -> None:
        super().__init__(df)
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

        If the ``checkpointLocation`` has committed epochs, the query continues from them and `path`
        is not used. A fresh location is seeded with copies of everything that the query needs, so
        you may delete `path` as soon as ``start`` returns. Operators that `path` does not have
        start empty.

        Parameters
        ----------
        path : str
            A ``savepoint-...`` or ``chk-...`` directory. It overrides
            ``spark.ckpt.execution.state-recovery.path``.
        claimMode : str, optional
            ``NO_CLAIM``: the query only reads `path`. ``CLAIM``: the query deletes `path` after its
            own first checkpoint, except files of a ``chk-...`` that other checkpoints may share. By
            default ``spark.ckpt.execution.state-recovery.claim-mode``, which is ``NO_CLAIM``.
        allowNonRestoredState : bool, optional
            Whether to leave out the state of operators that the query no longer has, instead of
            refusing to start. By default
            ``spark.ckpt.execution.state-recovery.ignore-unclaimed-state``, which is false.
        migrations : Mapping of str to Mapping of str to Migration, optional
            Migrations by the uid of an operator and the name of its state. They bring stored states
            to new schemas or names during the restore. The query does not need them afterwards. The
            migrations of an operator run in its first epochs instead.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Raises
        ------
        ConfigurationError
            If `claimMode` is not allowed.

        Examples
        --------
        >>> fork = (
        ...     ckpt.write_stream(counts)
        ...     .restoreFrom(savepoint.path)
        ...     .outputMode("update")
        ...     .foreachBatch(keep)
        ...     .option("checkpointLocation", f"{directory}/fork")
        ...     .start()
        ... )
        >>> fork.lastRestore.path == savepoint.path
        True
        >>> fork.stop()
        """
        given = {
            "restore_path": str(path),
            "claim_mode": None if claimMode is None else _claim_mode(claimMode),
            "allow_non_restored_state": allowNonRestoredState,
        }
        self._migrations = migrations or {}
        self._restore_from = {name: value for name, value in given.items() if value is not None}
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

        When it returns, the query runs. If the query is restored, its location has been seeded
        durably.

        Parameters
        ----------
        path : str, optional
            The output path of a file sink.
        format : str, optional
            As for :meth:`format`.
        outputMode : str, optional
            As for ``DataStreamWriter.outputMode``.
        partitionBy : str or list of str, optional
            As for :meth:`partitionBy`.
        queryName : str, optional
            As for :meth:`queryName`.
        **options : object
            As for :meth:`options`.

        Returns
        -------
        CheckpointedQuery
            The running query.

        Raises
        ------
        ConfigurationError
            If a setting is unknown or not allowed, or there is no ``checkpointLocation`` and Spark
            would not make a temporary one for the sink. Also if a library is not installed: of a
            storage, or this library for Spark's Python workers.
        NotBuiltYetError
            If the query has operators in an order, or a path of a scheme, that is not supported.
        PlanError
            If the query has no operator of this library, two of its operators have the same uid, or
            its parallelism is not the parallelism of its location. Also if a migration or the
            watermark policy does not fit the query.
        IncompatibleStateError
            If a stored state or operator does not fit the query; nothing was started.
        RestoreError, CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If the query cannot be restored; nothing was started or deleted.
        ProcessorError
            If the processor raises an error while the initial state is made.

        Examples
        --------
        >>> query = (
        ...     ckpt.write_stream(counts)
        ...     .outputMode("update")
        ...     .start(format="noop", checkpointLocation=f"{directory}/noop")
        ... )
        >>> query.stop()
        """
        self.options(**options)
        if format is not None:
            self.format(format)
        if queryName is not None:
            self.queryName(queryName)
        if outputMode is not None:
            self.outputMode(outputMode)
        if path is not None:
            self._sink.options["path"] = path
        return self._start(
            lambda: self._writer.start(path=path, outputMode=outputMode, partitionBy=partitionBy),
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

        With :meth:`restoreFrom` the table has to be new, or no query may have written to it.

        Parameters
        ----------
        tableName : str
            The table's name, with or without a catalog and a database.
        format : str, optional
            The format of a new table.
        outputMode : str, optional
            As for ``DataStreamWriter.outputMode``.
        partitionBy : str or list of str, optional
            As for :meth:`partitionBy`.
        queryName : str, optional
            As for :meth:`queryName`.
        **options : object
            As for :meth:`options`.

        Returns
        -------
        CheckpointedQuery
            The running query.

        Raises
        ------
        ConfigurationError
            If a setting is unknown or not allowed, or there is no ``checkpointLocation`` and Spark
            would not make a temporary one for the sink. Also if a library is not installed: of a
            storage, or this library for Spark's Python workers.
        NotBuiltYetError
            If the query has operators in an order, or a path of a scheme, that is not supported.
        PlanError
            If the query has no operator of this library, two of its operators have the same uid, or
            its parallelism is not the parallelism of its location. Also if a migration or the
            watermark policy does not fit the query.
        IncompatibleStateError
            If a stored state or operator does not fit the query; nothing was started.
        RestoreError, CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If the query cannot be restored; nothing was started or deleted.
        ProcessorError
            If the processor raises an error while the initial state is made.

        Examples
        --------
        >>> added = ckpt.key_by(events, "user").transformWithState(
        ...     Count(), "user string, n long", "Append", "None", uid="count"
        ... )
        >>> query = ckpt.write_stream(added).toTable(
        ...     "counts_by_user", checkpointLocation=f"{directory}/table"
        ... )
        >>> query.processAllAvailable()
        >>> query.stop()
        >>> spark.table("counts_by_user").count()
        2
        """
        self.options(**options)
        if format is not None:
            self.format(format)
        if queryName is not None:
            self.queryName(queryName)
        if outputMode is not None:
            self.outputMode(outputMode)
        return self._start(
            lambda: self._writer.toTable(tableName, outputMode=outputMode, partitionBy=partitionBy),
            self._sink.table(self._stream, tableName, partitionBy),
        )

    def _start(
        self, start: Callable[[], StreamingQuery], table: TableSink | None
    ) -> CheckpointedQuery:
        spark = self._stream.sparkSession
        settings = self._settings(spark)
        operators = operators_of(self._stream)
        source_ids(self._stream)  # refuses what cannot be checkpointed before anything starts
        check_workers(spark)
        self._check_sink_over_connect()
        given = self._sink.location(spark, table)
        storage = make_temporary(spark) if given is None else given
        if self._sink.has_no_location:
            self._use_location_once(storage.url)
        start = partial(self._start_spark, start)
        session = self._session_of_query()
        announces_epochs = table is None and self._sink.format == FOREACH_BATCH
        spark_query = StartOfSpark(
            start,
            partial(self._start_once, start, deepcopy(self._sink), storage),
            ends_by_itself=bool(self._when.get("availableNow") or self._when.get("once")),
            announces_epochs=announces_epochs,
            session=session,
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
            if session is not None:
                connect.end_session(session)  # nobody else knows it
            raise

    def _start_spark(self, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        if is_connect(self._stream):
            give_output_mode(self._stream, self._output_mode)
        return start()

    def _check_sink_over_connect(self) -> None:
        """Refuse sinks that do not work from a session of the query's own."""
        spark = self._stream.sparkSession
        if not is_connect(spark):
            return
        if self._sink.format == FOREACH_BATCH and not connect.can_clone(spark):
            raise NotBuiltYetError(
                f"foreachBatch over Spark Connect needs PySpark 4.1 or later, this is "
                f"{spark.version}: use another sink, or a classic session"
            )
        if str(self._sink.format).lower() == _MEMORY:
            raise NotBuiltYetError(
                "the memory sink is not supported over Spark Connect: its table would be in the "
                "query's own session, where this program does not see it: write to a table"
            )

    def _session_of_query(self) -> SparkSession | None:
        """Return a session of the query's own over Spark Connect, ``None`` on a classic session.

        A query copies the conf of the session that it starts in, and a client reaches no other
        session of it. The user's session must not have the query's conf, not even for a moment.
        """
        spark = self._stream.sparkSession
        if not is_connect(spark):
            return None
        session = connect.new_session(spark)
        connect.give_session(self._writer, session)
        return session

    def _start_once(
        self,
        start: Callable[[], StreamingQuery],
        sink: SinkChoice,
        storage: Storage,
    ) -> StreamingQuery:
        """Start Spark's query for one more epoch, with the sink that the query was started with."""
        if self._sink != sink:
            raise CheckpointAbortedError(
                f"the writer of the query at {storage.url} was changed after the start, so the "
                "query's last epoch cannot be run into the same sink: start the query again"
            )
        when = self._when
        self.trigger(once=True)
        try:
            return start()
        finally:
            self.trigger(**when)

    def planRestore(self) -> RestorePlan:
        """Return what :meth:`restoreFrom` would do with every operator and state; starts nothing.

        Returns
        -------
        RestorePlan
            Prints as a table. ``start`` makes the same plan, and raises an error if the plan has
            one.

        Raises
        ------
        ConfigurationError
            If no path was given, or a setting is unknown or not allowed.
        PlanError, NotBuiltYetError
            If the query has no operator of this library, two of its operators have the same uid, or
            it has operators in an order that is not supported.
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If the path holds no checkpoint or savepoint, or it is damaged.

        Examples
        --------
        >>> plan = ckpt.write_stream(counts).restoreFrom(savepoint.path).planRestore()
        >>> plan.check()
        """
        settings = self._settings(self._stream.sparkSession)
        if settings.restore_path is None:
            raise ConfigurationError(
                "planRestore has no path: call restoreFrom(path), or set "
                "spark.ckpt.execution.state-recovery.path"
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


def _claim_mode(name: str) -> ClaimMode:
    try:
        return ClaimMode(name)
    except ValueError:
        raise ConfigurationError(
            f"claimMode is {name!r}: give one of {', '.join(ClaimMode)}"
        ) from None


def _qualified(spark: SparkSession, path: str | None) -> str | None:
    if path is None:
        return None
    storage = open_storage(qualified_path(spark, path))
    if not storage.is_shared:
        raise ConfigurationError(
            f"{storage.url} is in the memory of one process, and the tasks of a query run in other "
            "processes: use a local or mounted path, or s3://bucket/prefix"
        )
    storage.list()  # refuses an unreadable directory before anything starts
    return storage.url
