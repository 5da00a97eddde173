"""A keyed stream, and the ways to run a processor over it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.api.combining import CombiningStream
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import DEFAULT_UID, OnError
from pyspark_ckpt.operator.modes.arrow import ArrowInput, ArrowProcessor
from pyspark_ckpt.operator.modes.batches import BatchInput, BatchProcessor
from pyspark_ckpt.operator.modes.pandas import PandasInput
from pyspark_ckpt.operator.modes.rows import RowsInput
from pyspark_ckpt.operator.plan.declared import no_instance
from pyspark_ckpt.operator.plan.operator import (
    KeyedInput,
    MakeInputMode,
    OperatorArguments,
    OperatorPlan,
)
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.table.key_positions import KEY_POSITION
from pyspark_ckpt.spark.program import check_frame
from pyspark_ckpt.spark.session import frame_of_groups, is_grouped


class KeyedStream(CombiningStream):
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
        super().__init__(keyed)
        self._broadcast = broadcast

    def connectBroadcast(self, df: DataFrame) -> KeyedStream:
        """Connect a stream whose rows reach every subtask.

        The processor gets the rows in ``handleBroadcastRows(rows, timerValues)``, before the keyed
        rows of the epoch. It gets Rows in :meth:`transformWithState`, Arrow tables in
        :meth:`transformWithStateInArrow`, and pandas frames in the other methods. There it may
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
        onError : str
            ``fail``, or ``quarantine``: a key for which the processor raises is parked. Its rows
            are kept until ``query.release``, and all other keys continue.

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
        onError: str = OnError.FAIL.value,
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
        onError : str
            ``fail``, or ``quarantine``: a key for which the processor raises is parked. Its rows
            are kept until ``query.release``, and all other keys continue.

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
        onError: str = OnError.FAIL.value,
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
        onError : str
            ``fail``; a call for many keys cannot park one of them.

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
            onError,
        )
        return self._operator(arguments, BatchInput, initialState)

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

        ``handleInputArrow`` is called on executors, once per subtask and epoch, or a few times if
        the epoch is larger than the memory limit.

        Parameters
        ----------
        statefulProcessor : ArrowProcessor
            An instance of a subclass of :class:`ArrowProcessor`.
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
            ``fail``; a call for many keys cannot park one of them.

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
        if not isinstance(statefulProcessor, ArrowProcessor):
            raise PlanError(
                f"operator {uid or DEFAULT_UID!r}: {no_instance(statefulProcessor, ArrowProcessor)}"
            )
        self._check_key_position(uid or DEFAULT_UID)
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
        return self._operator(arguments, ArrowInput, initialState)

    def _check_key_position(self, uid: str) -> None:
        columns = self._keyed.columns
        if KEY_POSITION in {*columns.schema.names, *columns.key_names}:
            raise PlanError(
                f"operator {uid!r}: the stream has a column {KEY_POSITION!r}, which is the name of "
                "a column that handleInputArrow gets: rename it"
            )

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
        )
        return plan.build()

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
