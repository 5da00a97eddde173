"""``write_stream``: the writer of a query, which collects its options and starts it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ckpt.api.epoch_function import EpochFunction
from pyspark_ckpt.errors import ConfigurationError, NotBuiltYetError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.plan.parallelism import building_with
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.query.restarts import Launch, Place, Restarts, follow, parallelism_at
from pyspark_ckpt.query.start import QueryStart, StartOfSpark, restore_request
from pyspark_ckpt.restarting.rules import RescaleRules
from pyspark_ckpt.restarting.turn import turn_of
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.restore.location.swap import finish_restart
from pyspark_ckpt.restore.plan import RestoreMigrations, RestorePlan, plan_of_request
from pyspark_ckpt.sessions import connect
from pyspark_ckpt.sessions.connect_plan import give_output_mode
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import ClaimMode, Settings, is_ckpt_option, read_settings
from pyspark_ckpt.spark.paths import shared_directory
from pyspark_ckpt.spark.plan import check_after_aggregations, operators_of, source_ids
from pyspark_ckpt.spark.program import Program, stream_of
from pyspark_ckpt.spark.sink import FOREACH_BATCH, SinkChoice, TableSink
from pyspark_ckpt.spark.temporary_location import delete_temporary, make_temporary
from pyspark_ckpt.spark.worker_python import check_workers
from pyspark_ckpt.storage.open import Storage

_MEMORY = "memory"
logger = library_logger(__name__)


def write_stream(df: Program) -> CheckpointedStreamWriter:
    """Return the writer of a query with checkpoints; replaces ``df.writeStream``.

    Call it on the driver.

    Parameters
    ----------
    df : DataFrame or callable
        A streaming DataFrame with at least one operator of this library, or a function without
        arguments that returns one. A query that is given as a function can be rescaled in place.
        The function is called here, and for each new number of subtasks.

    Returns
    -------
    CheckpointedStreamWriter
        Has the methods of PySpark's ``DataStreamWriter``.

    Raises
    ------
    ConfigurationError
        If `df` is neither a streaming DataFrame nor a function that returns one.

    Examples
    --------
    >>> writer = ckpt.write_stream(counts).outputMode("update").format("console")
    """
    return CheckpointedStreamWriter(df)


class CheckpointedStreamWriter(DataStreamWriter):
    """PySpark's ``DataStreamWriter`` with checkpoints and :meth:`restoreFrom`.

    Its options may also be ``spark.ckpt.`` keys. An option overrides the same key of Spark's conf.

    Parameters
    ----------
    df : DataFrame or callable
        The query, or a function that builds it.

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

    def __init__(self, df: Program) -> None:
        # Without `super().__init__`: it is for classic sessions, and this class passes calls on.
        self._stream = stream_of(df, "write_stream")
        self._writer = session_of(self._stream).stream_writer(self._stream)
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._ckpt_options: dict[str, str] = {}
        self._conf: dict[str, str] | None = None
        self._sink = SinkChoice()
        self._output_mode = "append"
        self._when: dict[str, Any] = {"processingTime": "0 seconds"}
        self._build = None if isinstance(df, DataFrame) else df
        self._restore_from: dict[str, Any] = {}
        self._migrations: RestoreMigrations = {}

    def restoreFrom(
        self,
        path: str,
        claimMode: str | None = None,
        allowNonRestoredState: bool | None = None,  # noqa: FBT001  # Flink's, by its name
        migrations: RestoreMigrations | None = None,
        allowMissingInput: bool | None = None,  # noqa: FBT001  # as the other one
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
        allowMissingInput : bool, optional
            Whether to leave out the rows of input files that later epochs of the original have
            read and that are gone, instead of refusing to start. By default
            ``spark.ckpt.execution.state-recovery.allow-missing-input``, which is false.

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
            "claim_mode": None if claimMode is None else ClaimMode.of_argument(claimMode),
            "allow_non_restored_state": allowNonRestoredState,
            "allow_missing_input": allowMissingInput,
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
            If the query cannot be restored, or files in its location are missing or damaged;
            nothing was started or deleted.
        FencedError
            If another driver has taken the location over in the meantime.
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
            Launch(
                lambda writer: writer._writer.start(
                    path=path, outputMode=outputMode, partitionBy=partitionBy
                ),
                lambda _: None,
            )
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
            If the query cannot be restored, or files in its location are missing or damaged;
            nothing was started or deleted.
        FencedError
            If another driver has taken the location over in the meantime.
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
            Launch(
                lambda writer: writer._writer.toTable(
                    tableName, outputMode=outputMode, partitionBy=partitionBy
                ),
                lambda writer: writer._sink.table(writer._stream, tableName, partitionBy),
            )
        )

    def _start(self, launch: Launch) -> CheckpointedQuery:
        bound = self._bound_parallelism(launch)
        writer = self if bound is None else self._with_program(None, bound, "write_stream")
        rules = RescaleRules.of(self._read_settings(), can_be_built=self._build is not None)
        start = writer._query_start(launch, None, bound)
        try:
            with building_with(bound):
                query = start.run()
        except BaseException:
            if start.location_is_temporary:
                delete_temporary(start.location.storage)
            if start.session is not None:
                connect.end_session(start.session)  # nobody else knows it
            raise
        if rules is not None:
            follow(query, rules)
        return query

    def _bound_parallelism(self, launch: Launch) -> int | None:
        """Return the number of subtasks that the location has, if the query has to be built again.

        A query that was rescaled in place keeps its number when its driver is started again.
        """
        if self._build is None:
            return None
        storage = self._sink.location(self._stream.sparkSession, launch.table_of(self))
        if storage is not None:
            with turn_of(storage.url):  # a restart under way in this process is not interrupted
                finish_restart(storage)
        bound = None if storage is None else parallelism_at(storage)
        ours = operators_of(self._stream).descriptors[0].parallelism
        if storage is None or bound in (None, ours):
            return None
        logger.warning(
            "%s continues with the %s subtasks that it has, the session says %s: call rescale(%s) "
            "on the running query to change that",
            storage.url,
            bound,
            ours,
            ours,
        )
        return bound

    def _place(self, table: TableSink | None) -> Place:
        """Return the location, which is made if it is temporary."""
        spark = self._stream.sparkSession
        given = self._sink.location(spark, table)
        return Place(make_temporary(spark) if given is None else given, is_temporary=given is None)

    def _query_start(
        self, launch: Launch, place: Place | None, parallelism: int | None = None
    ) -> QueryStart:
        """Return the start of this writer's query at a location.

        If `place` is ``None``, the writer's location is used. `parallelism` is given only if the
        query was built with another one than the session's.
        """
        spark = self._stream.sparkSession
        settings = self._settings(spark)
        if parallelism is not None:
            settings = settings.with_values("location", parallelism=parallelism)
        operators = operators_of(self._stream)
        if operators.follows_aggregation:
            check_after_aggregations(self._stream, self._output_mode)
        source_ids(self._stream)  # refuses what cannot be checkpointed before anything starts
        check_workers(spark)
        self._check_sink_over_connect()
        table = launch.table_of(self)
        sink_log = self._sink.file_sink_log(spark, table)
        again = self._copy()
        again._conf = self._conf_of_query()  # the session's may be for other queries by then
        again._migrations = {}  # what the restore was allowed is not for later restarts in place
        for name in ("allow_non_restored_state", "allow_missing_input"):
            again._restore_from.pop(name, None)
        # Last: nobody deletes a temporary location if one of the lines above raises.
        place = place or self._place(table)
        storage = place.storage
        # The user's session must not have the query's conf, not even for a moment.
        session = session_of(spark).session_for_query()
        for writer in (self, again):
            writer._begin_in(session, storage)
        spark_query = StartOfSpark(
            partial(self._start_spark, launch.start),
            partial(again._start_once, launch.start),  # the user may have changed this writer
            ends_by_itself=bool(self._when.get("availableNow") or self._when.get("once")),
            announces_epochs=table is None and self._sink.format == FOREACH_BATCH,
            session=session,
            location_is_temporary=place.is_temporary,
            name=self._sink.query_name,
        )
        return QueryStart(
            self._stream,
            settings,
            self._migrations,
            StartLocation.of(storage, settings, operators),
            sink_log,
            table,
            spark_query,
            Restarts(again, launch, place),
        )

    def _next_start(
        self, launch: Launch, place: Place, program: Program | None, parallelism: int | None
    ) -> QueryStart:
        """Return the start of the next run, in place, of this query or of another program."""
        ours = operators_of(self._stream).descriptors[0].parallelism
        if program is None and self._build is None and parallelism not in (None, ours):
            raise ConfigurationError(
                f"rescale({parallelism}): the query was given as a DataFrame, which was built for "
                f"{ours} subtasks. Give write_stream a function that builds it, or call "
                "restartWith(df) with a DataFrame built for another number"
            )
        writer = self._with_program(program, parallelism, "restart in place")
        subtasks = operators_of(writer._stream).descriptors[0].parallelism
        return writer._query_start(launch, place, subtasks)

    def _with_program(
        self, program: Program | None, parallelism: int | None, call: str
    ) -> CheckpointedStreamWriter:
        """Return a writer with the same settings for another program or parallelism.

        If `program` is ``None``, the query keeps its program. If `parallelism` is ``None``, a
        function builds the program with the session's parallelism.
        """
        program = self._program if program is None else program
        with building_with(parallelism):
            stream = stream_of(program, call)
        writer = self._configured_alike(stream)
        writer._build = None if isinstance(program, DataFrame) else program
        built_for = operators_of(writer._stream).descriptors[0].parallelism
        if writer._build is not None and parallelism not in (None, built_for):
            raise ConfigurationError(
                f"the function that builds the query returned a DataFrame that was built for "
                f"{built_for} subtasks, and {parallelism} are wanted: call key_by inside of the "
                "function, each time that it is called"
            )
        return writer

    @property
    def _program(self) -> Program:
        """The query as it was given; the same object through a rescale in place."""
        return self._stream if self._build is None else self._build

    def _copy(self) -> CheckpointedStreamWriter:
        """Return this writer as it is now, because the user may change it after the start."""
        writer = self._configured_alike(self._stream)
        writer._build = self._build
        return writer

    def _configured_alike(self, stream: DataFrame) -> CheckpointedStreamWriter:
        writer = CheckpointedStreamWriter(stream)
        writer._repeat_calls_of(self)
        writer._restore_from, writer._migrations = dict(self._restore_from), self._migrations
        return writer

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
        settings = self._read_settings()
        settings = replace(
            settings,
            checkpoints_directory=shared_directory(spark, settings.checkpoints_directory),
            savepoints_directory=shared_directory(spark, settings.savepoints_directory),
        )
        return settings.with_values("restoreFrom", **self._restore_from)

    def outputMode(self, outputMode: str) -> CheckpointedStreamWriter:
        """Choose which rows an epoch writes; as ``DataStreamWriter.outputMode``.

        Parameters
        ----------
        outputMode : str
            ``append``, ``update`` or ``complete``.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> writer = ckpt.write_stream(counts).outputMode("update")
        """
        self._writer.outputMode(outputMode)
        self._calls.append(("outputMode", (outputMode,), {}))
        self._output_mode = outputMode
        return self

    def clusterBy(self, *cols: Any) -> CheckpointedStreamWriter:
        """Choose the columns that a table is clustered by; as ``DataStreamWriter.clusterBy``.

        Parameters
        ----------
        *cols : str or list of str
            Names of columns.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> writer = ckpt.write_stream(counts).clusterBy("user")
        """
        self._writer.clusterBy(*cols)
        self._calls.append(("clusterBy", cols, {}))
        return self

    def format(self, source: str) -> CheckpointedStreamWriter:
        """Choose the sink; as ``DataStreamWriter.format``.

        Parameters
        ----------
        source : str
            The sink's name, such as ``parquet``.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> writer = ckpt.write_stream(counts).format("parquet")
        """
        self._writer.format(source)
        self._calls.append(("format", (source,), {}))
        self._sink.format = source
        return self

    def foreach(self, f: Any) -> CheckpointedStreamWriter:
        """Process each row with a function or an object; as ``DataStreamWriter.foreach``.

        Parameters
        ----------
        f : callable or object
            A function of a row, or an object with ``process``; called on executors.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> writer = ckpt.write_stream(counts).foreach(print)
        """
        self._writer.foreach(f)
        self._calls.append(("foreach", (f,), {}))
        self._sink.format = "foreach"
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> CheckpointedStreamWriter:
        """Process each epoch's output with a function; as ``DataStreamWriter.foreachBatch``.

        One action has to go over all rows, as a write, ``collect`` and ``count`` do, because it
        computes the state; ``take``, ``first``, ``isEmpty``, ``limit`` and ``show`` do not. All
        actions on the DataFrame have to end before the function returns, also those of other
        threads.

        Parameters
        ----------
        func : callable
            Called on the driver with a DataFrame and the epoch. In the function,
            :func:`current_epoch` returns the epoch's full identity.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> writer = ckpt.write_stream(counts).foreachBatch(keep)
        """
        self._writer.foreachBatch(EpochFunction(func))
        self._calls.append(("foreachBatch", (func,), {}))
        self._sink.format = FOREACH_BATCH
        return self

    def queryName(self, queryName: str) -> CheckpointedStreamWriter:
        """Name the query; as ``DataStreamWriter.queryName``.

        Parameters
        ----------
        queryName : str
            A name that no other running query of the session has.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> writer = ckpt.write_stream(counts).queryName("counts")
        """
        self._writer.queryName(queryName)
        self._calls.append(("queryName", (queryName,), {}))
        self._sink.query_name = queryName
        return self

    def partitionBy(self, *cols: Any) -> CheckpointedStreamWriter:
        """Choose the columns that output is partitioned by; as ``DataStreamWriter.partitionBy``.

        Parameters
        ----------
        *cols : str or list of str
            Names of columns.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> writer = ckpt.write_stream(counts).format("parquet").partitionBy("user")
        """
        self._writer.partitionBy(*cols)
        self._calls.append(("partitionBy", cols, {}))
        is_list = len(cols) == 1 and isinstance(cols[0], (list, tuple))
        self._sink.partition_by = list(cols[0] if is_list else cols)
        return self

    def trigger(self, **when: Any) -> CheckpointedStreamWriter:
        """Choose when epochs start; as ``DataStreamWriter.trigger``.

        Parameters
        ----------
        **when : object
            One of ``processingTime``, ``availableNow`` and ``once``.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> writer = ckpt.write_stream(counts).trigger(processingTime="10 seconds")
        """
        self._writer.trigger(**when)
        self._calls.append(("trigger", (), when))
        self._when = when
        return self

    def option(self, key: str, value: Any) -> CheckpointedStreamWriter:
        """Set one option of the sink or one ``spark.ckpt.`` key.

        Parameters
        ----------
        key : str
            The option's name.
        value : object
            The option's value.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> writer = ckpt.write_stream(counts).option("spark.ckpt.state.backend.type", "heap")
        """
        return self.options(**{key: value})

    def options(self, **options: Any) -> CheckpointedStreamWriter:
        """Set several options of the sink or ``spark.ckpt.`` keys.

        Parameters
        ----------
        **options : object
            Values by name.

        Returns
        -------
        CheckpointedStreamWriter
            This writer.

        Examples
        --------
        >>> options = {"spark.ckpt.state.backend.type": "heap", "path": f"{directory}/counts"}
        >>> writer = ckpt.write_stream(counts).options(**options)
        """
        self._calls.append(("options", (), options))
        for key, value in options.items():
            if is_ckpt_option(key):
                self._ckpt_options[key] = str(value)
            else:
                self._writer.option(key, value)
                self._sink.options[key.lower()] = value
        return self

    def _repeat_calls_of(self, other: CheckpointedStreamWriter) -> None:
        """Choose the sink, the trigger and the options as on another writer."""
        for name, arguments, options in list(other._calls):
            getattr(self, name)(*arguments, **options)
        self._sink, self._conf = deepcopy(other._sink), other._conf

    def _conf_of_query(self) -> dict[str, str]:
        """Return the conf of the query's first start in this process, else the session's."""
        return session_of(self._stream).settings() if self._conf is None else self._conf

    def _read_settings(self) -> Settings:
        return read_settings(self._conf_of_query(), self._ckpt_options)

    def _begin_in(self, session: SparkSession | None, location: Storage) -> None:
        """Choose session and location of this start; the next start has others.

        `session` is ``None`` if the query starts in the user's session. If the writer was given no
        location, Spark does not know `location`.
        """
        if session is not None:
            connect.give_session(self._writer, session)
        if self._sink.has_no_location:
            self._writer.option("checkpointLocation", location.hadoop_url)

    def _start_spark(self, start: Callable[[Any], StreamingQuery]) -> StreamingQuery:
        if not session_of(self._stream).has_jvm:
            give_output_mode(self._stream, self._output_mode)
        return start(self)

    def _check_sink_over_connect(self) -> None:
        """Refuse sinks that do not work from a separate session of the query."""
        spark = self._stream.sparkSession
        if session_of(spark).has_jvm:
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

    def _start_once(self, start: Callable[[Any], StreamingQuery]) -> StreamingQuery:
        """Start Spark's query for one more epoch; for a writer that nobody else starts."""
        self._writer.trigger(once=True)
        return self._start_spark(start)


def plan_restore(
    path: str, query: DataFrame | CheckpointedStreamWriter, **arguments: Any
) -> RestorePlan:
    """Return what a restore would do with every operator and state; starts nothing."""
    if not isinstance(query, CheckpointedStreamWriter):
        return CheckpointedStreamWriter(query).restoreFrom(path, **arguments).planRestore()
    writer = copy(query)
    given, migrations = writer._restore_from, writer._migrations
    writer.restoreFrom(path, **arguments)
    writer._restore_from = given | writer._restore_from
    if arguments.get("migrations") is None:
        writer._migrations = migrations
    return writer.planRestore()
