"""``key_by``: partitions a DataFrame by key, and runs a processor over the keyed stream."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import DEFAULT_UID
from pyspark_ckpt.operator.plan.declared import no_instance
from pyspark_ckpt.operator.plan.grouping_columns import grouping_columns
from pyspark_ckpt.operator.plan.operator import (
    KeyedInput,
    MakeInputMode,
    OperatorArguments,
    OperatorPlan,
)
from pyspark_ckpt.operator.plan.parallelism import parallelism_of
from pyspark_ckpt.operator.rows.batch_mode import BatchInput, BatchProcessor
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.key_groups import check_max_parallelism, default_max_parallelism
from pyspark_ckpt.operator.rows.pandas_mode import PandasInput
from pyspark_ckpt.operator.rows.rows_mode import RowsInput
from pyspark_ckpt.sessions.connect import refuse_initial_state
from pyspark_ckpt.sessions.kind import is_connect
from pyspark_ckpt.spark.session import frame_of_groups, is_grouped


def key_by(df: DataFrame, *columns: str | Column, maxParallelism: int | None = None) -> KeyedStream:
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
    maxParallelism : int, optional
        Number of key groups, fixed for the life of the state. By default a power of two of at
        least 128, derived from the parallelism as in Flink.

    Returns
    -------
    KeyedStream
        Its methods run a processor over the stream.

    Raises
    ------
    PlanError
        If a key column is missing or ambiguous, or `maxParallelism` is not allowed.
    NotBuiltYetError
        If `df` has a column of an unsupported type.

    Examples
    --------
    >>> keyed = ckpt.key_by(events, "user", maxParallelism=256)
    """
    conf = df.sparkSession.conf
    parallelism = parallelism_of(df.sparkSession)
    time_zone = str(conf.get("spark.sql.session.timeZone"))
    chosen = default_max_parallelism(parallelism) if maxParallelism is None else maxParallelism
    grouping = grouping_columns(df, columns)
    keyed = KeyedInput(
        grouping.df,
        InputColumns(grouping.df.schema, grouping.names, time_zone, grouping.derived),
        parallelism,
        check_max_parallelism(chosen, parallelism),
    )
    return KeyedStream(keyed)


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
        rows of the epoch. It gets Rows in :meth:`transformWithState`, and pandas frames in the
        other methods. There it may change broadcast state. It may read broadcast state when it
        handles keyed rows.

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
    ) -> DataFrame:
        """Run a processor over the stream, rows in and rows out.

        As ``GroupedData.transformWithState`` of PySpark. ``handleInputRows`` is called on
        executors, once per key and epoch with all rows of that key.

        Parameters
        ----------
        statefulProcessor : StatefulProcessor
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
        )
        return self._operator(arguments, RowsInput, initialState)

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
    ) -> DataFrame:
        """Run a processor over the stream, pandas frames in and frames out.

        As ``GroupedData.transformWithStateInPandas`` of PySpark. ``handleInputRows`` is called on
        executors, once per key and epoch with an iterator of frames.

        Parameters
        ----------
        statefulProcessor : StatefulProcessor
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
        )
        return self._operator(arguments, PandasInput, initialState)

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
    ) -> DataFrame:
        """Run a processor over the stream, all keys of an epoch at once, as columns.

        ``handleInputBatch`` is called on executors, once per subtask and epoch, or a few times if
        the epoch is larger than the memory limit.

        Parameters
        ----------
        statefulProcessor : BatchProcessor
            An instance of a subclass of :class:`BatchProcessor`.
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
        if not isinstance(statefulProcessor, BatchProcessor):
            raise PlanError(
                f"operator {uid or DEFAULT_UID!r}: {no_instance(statefulProcessor, BatchProcessor)}"
            )
        arguments = OperatorArguments.checked(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            uid,
            migrations,
            eventTimeColumnName,
        )
        return self._operator(arguments, BatchInput, initialState)

    def _operator(
        self,
        arguments: OperatorArguments,
        make_mode: MakeInputMode,
        initial_state: GroupedData | None,
    ) -> DataFrame:
        initial = None if initial_state is None else self._initial(initial_state, arguments.uid)
        plan = OperatorPlan(
            self._keyed,
            self._broadcast,
            initial,
            arguments,
            make_mode,
            as_frames=make_mode is not RowsInput,
        )
        return plan.build()

    def _initial(self, initial_state: GroupedData, uid: str) -> KeyedInput:
        """Return the rows of the initial state, keyed as the stream is."""
        if is_connect(self._keyed.df) and self._keyed.df.isStreaming:
            raise refuse_initial_state(uid)
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
