"""A keyed stream: partition a DataFrame by key, and run a processor or aggregates over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.combine.aggregates import Aggregate
from pyspark_ckpt.combine.combination import Aggregates, FunctionOverTables
from pyspark_ckpt.combine.plan import COMBINE_ROWS, CombinationPlan, rows_combined, where
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import OnError
from pyspark_ckpt.operator.modes.mode import ARROW, BATCHES, PANDAS, ROWS, Mode, modes_of_class
from pyspark_ckpt.operator.modes.processors import ArrowProcessor, BatchProcessor
from pyspark_ckpt.operator.plan.declared import no_instance, parse_schema
from pyspark_ckpt.operator.plan.operator import (
    KeyedInput,
    OperatorArguments,
    OperatorPlan,
    grouping_columns,
)
from pyspark_ckpt.operator.plan.parallelism import parallelism_of
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keys import check_max_parallelism, default_max_parallelism
from pyspark_ckpt.operator.table.keys import KEY_POSITION
from pyspark_ckpt.spark.late_watermark import late_watermark_ms
from pyspark_ckpt.spark.program import check_frame
from pyspark_ckpt.spark.session import frame_of_groups, is_grouped
from pyspark_ckpt.values.nesting import same_type


def key_by(
    df: DataFrame, *columns: str | Column, max_parallelism: int | None = None
) -> KeyedStream:
    """Partition a DataFrame by key.

    Call it on the driver, where ``df.groupBy(*columns)`` would be. A null is a key like any other,
    as in Spark's ``groupBy``.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame. Over a batch DataFrame the processor runs once, and its state is
        discarded.
    *columns : str or Column
        One or more names or expressions, as for ``groupBy``. Keys have the names that ``groupBy``
        gives them. The processor's rows have the columns of `df`, without the expressions.
    max_parallelism : int, optional
        Number of key groups, fixed for the life of the state. By default a power of two of at
        least 128, derived from the parallelism as in Flink.

    Returns
    -------
    KeyedStream
        Its methods run a processor over the stream.

    Raises
    ------
    PlanError
        If `df` is not a DataFrame, a key column is missing or ambiguous, or `max_parallelism` is
        not allowed.
    NotBuiltYetError
        If `df` has a column of an unsupported type.

    Examples
    --------
    >>> keyed = ckpt.key_by(events, "user", max_parallelism=256)
    """
    check_frame(df, "key_by", "df", PlanError)
    conf = df.sparkSession.conf
    parallelism = parallelism_of(df.sparkSession)
    time_zone = str(conf.get("spark.sql.session.timeZone"))
    chosen = default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
    grouping = grouping_columns(df, columns)
    keyed = KeyedInput(
        grouping.df,
        InputColumns(grouping.df.schema, grouping.names, time_zone, grouping.derived),
        parallelism,
        check_max_parallelism(chosen, parallelism),
    )
    return KeyedStream(keyed)


def _check_aggregates(aggregates: object, where: str) -> None:
    if not isinstance(aggregates, Mapping):
        raise PlanError(
            f"{where}: the aggregates are {type(aggregates).__name__}: give a dict from names to "
            "aggregates"
        )


def _mode(processor: object, named: Mode, where: str) -> Mode:
    """Return the mode of a processor that was given to the method of a mode."""
    asked = modes_of_class(processor)
    if named in asked:
        return named
    if not named.has_key_calls:
        raise PlanError(f"{where}: {no_instance(processor, named.processor)}")
    if named is ROWS and len(asked) == 1:  # the method of all modes
        return asked[0]
    kinds = " and ".join(mode.processor.__name__ for mode in asked)
    methods = " or ".join(mode.adds for mode in asked)
    raise PlanError(
        f"{where}: {type(processor).__name__} is a {kinds}: give it to {methods}, or subclass only "
        "StatefulProcessor"
    )


class KeyedStream:
    """A stream partitioned by key; made by :func:`key_by`.

    Parameters
    ----------
    keyed : KeyedInput
        The keyed DataFrame.
    broadcast : DataFrame, optional
        The stream whose rows reach every subtask.

    Examples
    --------
    >>> counts = ckpt.key_by(events, "user").transformWithState(
    ...     Count(), "user string, n long", "Update", "None", uid="count"
    ... )
    >>> counts.columns
    ['user', 'n']
    """

    def __init__(self, keyed: KeyedInput, broadcast: DataFrame | None = None) -> None:
        self._keyed = keyed
        self._broadcast = broadcast

    def connectBroadcast(self, df: DataFrame) -> KeyedStream:
        """Connect a stream whose rows reach every subtask.

        The processor gets the rows in ``handleBroadcastRows(rows, timerValues)``, before the keyed
        rows of the epoch, as it gets those: Rows, pandas frames, or Arrow tables. There it may
        change broadcast state. It may read broadcast state when it handles keyed rows.

        Parameters
        ----------
        df : DataFrame
            A streaming DataFrame. Every subtask holds its rows of an epoch in memory.

        Returns
        -------
        KeyedStream
            A new keyed stream that is connected to `df`.

        Raises
        ------
        PlanError
            If only one of the two is streaming, or a broadcast stream is connected already.

        Examples
        --------
        >>> class Limits(Count):
        ...     def handleBroadcastRows(self, rows, timerValues):
        ...         self.names = [row.name for row in rows]
        >>> names = events.selectExpr("user AS name")
        >>> limited = ckpt.key_by(events, "user").connectBroadcast(names).transformWithState(
        ...     Limits(), "user string, n long", "Update", "None", uid="limits"
        ... )
        """
        if self._broadcast is not None:
            raise PlanError("a broadcast stream is connected already: union the two first")
        check_frame(df, "connectBroadcast", "df", PlanError)
        if df.isStreaming != self._keyed.df.isStreaming:
            raise PlanError(
                "connectBroadcast got a batch DataFrame for a stream, or a stream for a batch "
                "DataFrame: give two streams, or two batch DataFrames"
            )
        return KeyedStream(self._keyed, df)

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: T.StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str | None = None,
        migrations: Mapping[str, Migration] | None = None,
        onError: str = OnError.FAIL.value,
    ) -> DataFrame:
        """Run a processor over the stream; its class says how it gets the rows.

        As ``GroupedData.transformWithState`` of PySpark: ``handleInputRows`` is called on
        executors, once per key and epoch with all rows of that key, and yields Rows. A
        :class:`BatchProcessor` gets all keys of a subtask in one call, as pandas frames, and an
        :class:`ArrowProcessor` as Arrow tables.

        Parameters
        ----------
        statefulProcessor : StatefulProcessor, BatchProcessor or ArrowProcessor
            An instance of a subclass of ``pyspark.sql.streaming.StatefulProcessor``.
        outputStructType : StructType or str
            The schema of the rows that the processor yields.
        outputMode : str
            ``Append`` or ``Update``. It may differ from the query's output mode.
        timeMode : str
            ``None``, ``ProcessingTime`` or ``EventTime``: the clock of the timers.
        initialState : GroupedData, optional
            ``groupBy`` of a batch DataFrame by the same key. Its rows are passed to
            ``handleInitialState`` before the query's first epoch, if it starts without a checkpoint
            or savepoint.
        eventTimeColumnName : str
            The output column that is event time for a stateful operator that follows.
        uid : str, optional
            The operator's stable name. Every restart and restore finds the operator's state by it.
            The only operator of a query may go without; its uid is then ``operator``.
        migrations : Mapping of str to Migration, optional
            How stored states become the states that the processor asks for, by the new state's
            name. Required only if the library cannot convert values to the new schema by itself.
        onError : str
            ``fail``, or ``quarantine``: a key for which the processor raises is quarantined. Its
            rows are kept until ``query.release``, and all other keys continue. A call for many keys
            cannot quarantine one of them.

        Returns
        -------
        DataFrame
            The rows that the processor yields; a stream if the input is a stream.

        Raises
        ------
        PlanError
            If an argument is not allowed. The message names the argument.
        ProcessorError
            If ``init`` or ``close`` raises an error; they are called once on the driver.
        NotBuiltYetError
            If an argument asks for a feature that is not supported. The message names the feature.

        Examples
        --------
        >>> counts = ckpt.key_by(events, "user").transformWithState(
        ...     Count(), "user string, n long", "Update", "None", uid="count"
        ... )
        """
        arguments = OperatorArguments.checked(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            uid,
            migrations,
            eventTimeColumnName,
            onError,
        )
        return self._operator(arguments, ROWS, initialState)

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: T.StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str | None = None,
        migrations: Mapping[str, Migration] | None = None,
        onError: str = OnError.FAIL.value,
    ) -> DataFrame:
        """Run a processor over the stream, pandas frames in and frames out.

        As ``GroupedData.transformWithStateInPandas`` of PySpark. ``handleInputRows`` is called on
        executors, once per key and epoch with an iterator of frames. The class is the same as for
        Rows, so only this method says that the processor gets frames.

        Parameters
        ----------
        statefulProcessor : StatefulProcessor
            An instance of a subclass of ``pyspark.sql.streaming.StatefulProcessor``.
        outputStructType : StructType or str
            The schema of the rows that the processor yields.
        outputMode : str
            As for :meth:`transformWithState`.
        timeMode : str
            As for :meth:`transformWithState`.
        initialState : GroupedData, optional
            As for :meth:`transformWithState`.
        eventTimeColumnName : str
            As for :meth:`transformWithState`.
        uid : str, optional
            As for :meth:`transformWithState`.
        migrations : Mapping of str to Migration, optional
            As for :meth:`transformWithState`.
        onError : str
            As for :meth:`transformWithState`.

        Returns
        -------
        DataFrame
            The rows of the frames that the processor yields.

        Raises
        ------
        PlanError
            If an argument is not allowed. The message names the argument.
        ProcessorError
            If ``init`` or ``close`` raises an error; they are called once on the driver.
        NotBuiltYetError
            If an argument asks for a feature that is not supported. The message names the feature.

        Examples
        --------
        >>> import pandas as pd
        >>> class Sizes(Count):
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         yield pd.DataFrame({"user": [key[0]], "n": [sum(map(len, rows))]})
        >>> sizes = ckpt.key_by(events, "user").transformWithStateInPandas(
        ...     Sizes(), "user string, n long", "Update", "None", uid="sizes"
        ... )
        """
        arguments = OperatorArguments.checked(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            uid,
            migrations,
            eventTimeColumnName,
            onError,
        )
        return self._operator(arguments, PANDAS, initialState)

    def transformWithStateInBatches(
        self,
        statefulProcessor: BatchProcessor,
        outputStructType: T.StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str | None = None,
        migrations: Mapping[str, Migration] | None = None,
        onError: str = OnError.FAIL.value,
    ) -> DataFrame:
        """Run a processor over the stream, all keys of an epoch at once, as columns.

        As :meth:`transformWithState` with a :class:`BatchProcessor`. ``handleInputBatch`` is called
        on executors, once per subtask and epoch, or a few times if the epoch is larger than the
        memory limit.

        Parameters
        ----------
        statefulProcessor : BatchProcessor
            An instance of a subclass of :class:`BatchProcessor`.
        outputStructType : StructType or str
            The schema of the rows that the processor yields.
        outputMode : str
            As for :meth:`transformWithState`.
        timeMode : str
            As for :meth:`transformWithState`.
        initialState : GroupedData, optional
            As for :meth:`transformWithState`.
        eventTimeColumnName : str
            As for :meth:`transformWithState`.
        uid : str, optional
            As for :meth:`transformWithState`.
        migrations : Mapping of str to Migration, optional
            As for :meth:`transformWithState`.
        onError : str
            ``fail``; a call for many keys cannot quarantine one of them.

        Returns
        -------
        DataFrame
            The rows of the frames that the processor yields.

        Raises
        ------
        PlanError
            If an argument is not allowed. The message names the argument.
        ProcessorError
            If ``init`` or ``close`` raises an error; they are called once on the driver.
        NotBuiltYetError
            If an argument asks for a feature that is not supported. The message names the feature.

        Examples
        --------
        >>> class Sizes(ckpt.BatchProcessor):
        ...     def init(self, handle): ...
        ...
        ...     def handleInputBatch(self, keys, rows, timerValues):
        ...         yield keys.assign(n=rows.groupby(level=0).size())
        ...
        ...     def close(self): ...
        >>> sizes = ckpt.key_by(events, "user").transformWithStateInBatches(
        ...     Sizes(), "user string, n long", "Update", "None", uid="sizes"
        ... )
        """
        arguments = OperatorArguments.checked(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            uid,
            migrations,
            eventTimeColumnName,
            onError,
        )
        return self._operator(arguments, BATCHES, initialState)

    def transformWithStateInArrow(
        self,
        statefulProcessor: ArrowProcessor,
        outputStructType: T.StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str | None = None,
        migrations: Mapping[str, Migration] | None = None,
        onError: str = OnError.FAIL.value,
    ) -> DataFrame:
        """Run a processor over the stream, all keys of an epoch at once, as Arrow tables.

        As :meth:`transformWithState` with an :class:`ArrowProcessor`. ``handleInputArrow`` is
        called on executors, once per subtask and epoch, or a few times if the epoch is larger than
        the memory limit.

        Parameters
        ----------
        statefulProcessor : ArrowProcessor
            An instance of a subclass of :class:`ArrowProcessor`.
        outputStructType : StructType or str
            The schema of the rows that the processor yields.
        outputMode : str
            As for :meth:`transformWithState`.
        timeMode : str
            As for :meth:`transformWithState`.
        initialState : GroupedData, optional
            As for :meth:`transformWithState`.
        eventTimeColumnName : str
            As for :meth:`transformWithState`.
        uid : str, optional
            As for :meth:`transformWithState`.
        migrations : Mapping of str to Migration, optional
            As for :meth:`transformWithState`.
        onError : str
            ``fail``; a call for many keys cannot quarantine one of them.

        Returns
        -------
        DataFrame
            The rows of the tables that the processor yields.

        Raises
        ------
        PlanError
            If an argument is not allowed. The message names the argument.
        ProcessorError
            If ``init`` or ``close`` raises an error; they are called once on the driver.
        NotBuiltYetError
            If an argument asks for a feature that is not supported. The message names the feature.

        Examples
        --------
        >>> class Sizes(ckpt.ArrowProcessor):
        ...     def init(self, handle): ...
        ...
        ...     def handleInputArrow(self, keys, rows, timerValues):
        ...         yield rows.group_by("user").aggregate([([], "count_all")]).rename_columns(
        ...             ["user", "n"]
        ...         )
        ...
        ...     def close(self): ...
        >>> sizes = ckpt.key_by(events, "user").transformWithStateInArrow(
        ...     Sizes(), "user string, n long", "Update", "None", uid="sizes"
        ... )
        """
        arguments = OperatorArguments.checked(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            uid,
            migrations,
            eventTimeColumnName,
            onError,
        )
        return self._operator(arguments, ARROW, initialState)

    def _operator(
        self,
        arguments: OperatorArguments,
        named: Mode,
        initial_state: GroupedData | None,
    ) -> DataFrame:
        mode = _mode(arguments.processor, named, f"operator {arguments.uid!r}")
        if mode is ARROW:
            self._check_key_position(arguments.uid)
        initial = None if initial_state is None else self._initial(initial_state, arguments.uid)
        keyed = self._keyed.for_operator(arguments, mode)
        return OperatorPlan(
            keyed, self._broadcast, initial, arguments, mode, late_watermark_ms
        ).build()

    def _check_key_position(self, uid: str) -> None:
        columns = self._keyed.columns
        if KEY_POSITION in {*columns.schema.names, *columns.key_names}:
            raise PlanError(
                f"operator {uid!r}: the stream has a column {KEY_POSITION!r}, which is the name of "
                "a column that handleInputArrow gets: rename it"
            )

    def _initial(self, initial_state: GroupedData, uid: str) -> KeyedInput:
        """Return the rows of the initial state, keyed as the stream is."""
        if not is_grouped(initial_state):
            raise PlanError(
                f"operator {uid!r}: initialState is {type(initial_state).__name__}: give "
                "df.groupBy(...) of a batch DataFrame"
            )
        df = frame_of_groups(initial_state)
        names = initial_state.count().columns[:-1]
        if not set(names) <= set(df.columns):
            raise PlanError(
                f"operator {uid!r}: initialState is grouped by {names}, which are not all columns "
                f"of its DataFrame {df.columns}: make them columns with withColumn first"
            )
        if df.isStreaming:
            raise PlanError(f"operator {uid!r}: initialState is a stream: give a batch DataFrame")
        own = self._keyed
        columns = InputColumns(df.schema, names, own.columns.time_zone)
        types = [[field.dataType for field in each.key_schema] for each in (columns, own.columns)]
        if types[0] != types[1]:
            raise PlanError(
                f"operator {uid!r}: initialState is grouped by {columns.key_schema.simpleString()},"
                f" the stream by {own.columns.key_schema.simpleString()}: cast the columns"
            )
        return KeyedInput(df, columns, own.parallelism, own.max_parallelism)

    def combineRows(
        self, aggregates: Mapping[str, Aggregate], *, anyOrder: bool = False
    ) -> KeyedStream:
        """Combine the rows of each map task before a processor gets them.

        Fewer rows go through the shuffle and to the processor, and a key with very many rows costs
        no more than others. Nothing is kept: that is the processor's part. Its rows are the key
        columns and the partial results, and a key may have several in an epoch: one for each map
        task that has rows of it, and more if combining does not pay. So the processor must add up
        counts and sums, take the least of the least values, and so on.

        Parameters
        ----------
        aggregates : Mapping of str to Aggregate
            What is computed, by the name of the column that the processor reads.
        anyOrder : bool
            Allow aggregates whose result may depend on the order in which rows are combined: sums
            of fractions, ``First``, ``Last`` and ``CollectList``.

        Returns
        -------
        KeyedStream
            The combined rows, keyed as before. They have no event time, so late rows are combined
            too, and ``timeMode="EventTime"`` is refused.

        Raises
        ------
        PlanError
            If an aggregate is not allowed, a column has a type that cannot be combined before the
            shuffle, or a result may depend on the order of rows. The message names the column.

        Examples
        --------
        >>> class Total(Count):
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         yield Row(user=key[0], n=sum(row.n for row in rows))
        >>> combined = ckpt.key_by(events, "user").combineRows({"n": ckpt.agg.Count()})
        >>> totals = combined.transformWithState(
        ...     Total(), "user string, n long", "Update", "None", uid="totals"
        ... )
        """
        _check_aggregates(aggregates, COMBINE_ROWS)
        combined = Aggregates(aggregates, self._keyed.columns.schema, COMBINE_ROWS)
        stream = copy(self)
        stream._keyed = rows_combined(  # noqa: SLF001  # of this class
            self._keyed, combined, in_any_order=anyOrder
        )
        return stream

    def combine(
        self,
        aggregates: Mapping[str, Aggregate],
        outputMode: str = "Update",
        *,
        uid: str | None = None,
        beforeShuffle: bool | None = None,
        ttlDurationMs: int | None = None,
    ) -> DataFrame:
        """Keep aggregates of each key: count, sum, least, greatest, first, last, list.

        Each map task combines its rows before the shuffle, so that at most one row per key and
        task goes through it. A key with many rows costs no more than others.

        Parameters
        ----------
        aggregates : Mapping of str to Aggregate
            What is computed, by the name of the result's column.
        outputMode : str
            ``Update`` or ``Append``.
        uid : str, optional
            The operator's stable name, as for :meth:`transformWithState`.
        beforeShuffle : bool, optional
            By default rows are combined before the shuffle if that cannot change a result: not
            with sums of fractions, with ``First``, ``Last`` or ``CollectList``, whose result may
            depend on the order of rows, and not with columns of nested types. ``True`` does it
            also where the order counts. ``False`` never does it.
        ttlDurationMs : int, optional
            Forget a key so many milliseconds of processing time after its last row.

        Returns
        -------
        DataFrame
            The key columns and the results, one row for each key that has rows in the epoch.

        Raises
        ------
        PlanError
            If an argument is not allowed. The message names the argument.

        Examples
        --------
        >>> counts = ckpt.key_by(events, "user").combine({"n": ckpt.agg.Count()}, uid="count")
        >>> counts.columns
        ['user', 'n']
        """
        _check_aggregates(aggregates, where(uid))
        self._check_no_broadcast(where(uid))
        combination = Aggregates(aggregates, self._keyed.columns.schema, where(uid))
        return CombinationPlan(
            self._keyed, combination, uid, outputMode, beforeShuffle, ttlDurationMs
        ).build()

    def combineInArrow(
        self,
        function: Callable[[pa.Table, list[str]], pa.Table],
        stateStructType: T.StructType | str,
        outputMode: str = "Update",
        *,
        uid: str | None = None,
        beforeShuffle: bool | None = None,
        ttlDurationMs: int | None = None,
    ) -> DataFrame:
        """Keep for each key what a function makes of its rows, as Arrow tables.

        The function is called in map tasks before the shuffle, and on executors after it with
        the rows of the state. So its result must not depend on how rows are divided, or on their
        order.

        Parameters
        ----------
        function : callable
            Gets a table of partial rows and the names of its key columns. Returns a table with the
            same columns and one row per key, such as ``table.group_by(keys).aggregate(...)`` with
            the names that the columns had.
        stateStructType : StructType or str
            The columns of partial rows. The stream must have them: each row is a partial row.
        outputMode : str
            ``Update`` or ``Append``.
        uid : str, optional
            The operator's stable name, as for :meth:`transformWithState`.
        beforeShuffle : bool, optional
            Whether the function is called before the shuffle; by default unless a column has a
            nested or collated type.
        ttlDurationMs : int, optional
            Forget a key so many milliseconds of processing time after its last row.

        Returns
        -------
        DataFrame
            The key columns and those of `stateStructType`, one row for each key that has rows in
            the epoch.

        Raises
        ------
        PlanError
            If an argument is not allowed. The message names the argument.

        Examples
        --------
        >>> def longest(table, keys):
        ...     found = table.group_by(keys).aggregate([("size", "max")])
        ...     return found.rename_columns([*keys, "size"])
        >>> from pyspark.sql import functions as F
        >>> sized = events.withColumn("size", F.length("user"))
        >>> longest_names = ckpt.key_by(sized, "user").combineInArrow(
        ...     longest, "size int", uid="longest"
        ... )
        """
        self._check_no_broadcast(where(uid))
        schema = stateStructType
        if not isinstance(schema, T.StructType):
            schema = parse_schema(schema)
        rows = self._keyed.columns.schema
        wrong = [
            field.simpleString()
            for field in schema.fields
            if field.name not in rows.names
            or not same_type(rows[field.name].dataType, field.dataType, nullability=False)
        ]
        if wrong or not schema.fields:
            raise PlanError(
                f"{where(uid)}: combineInArrow got the columns {schema.simpleString()}; the stream "
                f"is {rows.simpleString()}: give it the same columns with select first"
            )
        if not callable(function):
            raise PlanError(f"{where(uid)}: {type(function).__name__} is not a function")
        combination = FunctionOverTables(function, schema, where(uid))
        return CombinationPlan(
            self._keyed, combination, uid, outputMode, beforeShuffle, ttlDurationMs
        ).build()

    def _check_no_broadcast(self, where: str) -> None:
        if self._broadcast is not None:
            raise PlanError(
                f"{where}: combine and combineInArrow have no processor that gets the rows of "
                "connectBroadcast: leave one of the two out"
            )
