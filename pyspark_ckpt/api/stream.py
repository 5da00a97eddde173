"""``key_by``: from a streaming DataFrame to a keyed stream, and through a processor back."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import NotBuiltYetError, PlanError
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
from pyspark_ckpt.spark.session import frame_of_groups, is_classic


def key_by(df: DataFrame, *columns: str | Column, maxParallelism: int | None = None) -> KeyedStream:
    """Partition a DataFrame by key.

    Called on the driver, where ``df.groupBy(*columns)`` would be. A null is a key like any other,
    as in Spark's ``groupBy``.

    Parameters
    ----------
    df
        A streaming DataFrame; over a batch DataFrame the processor runs once, and its state is
        thrown away.
    columns
        Names or expressions, one or more, as ``groupBy`` takes them; keys have the names that it
        gives them. The processor's rows have the columns of `df`, without the expressions.
    maxParallelism
        Number of key groups, fixed for the life of the state; by default a power of two from 128
        up, derived from the parallelism as Flink does.

    Raises
    ------
    PlanError
        If a key column is missing or ambiguous, or `maxParallelism` cannot be.
    NotBuiltYetError
        If `df` has a column of a type that is not built yet.
    """
    if not is_classic(df):
        raise NotBuiltYetError("key_by over Spark Connect is not built yet; use a classic session")
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
    """A stream partitioned by key; made by :func:`key_by`."""

    def __init__(self, keyed: KeyedInput, broadcast: DataFrame | None = None) -> None:
        self._keyed = keyed
        self._broadcast = broadcast

    def connectBroadcast(self, df: DataFrame) -> KeyedStream:
        """Join a stream in whose rows reach every subtask.

        The processor gets them in ``handleBroadcastRows(rows, timerValues)``, before the keyed rows
        of the epoch: Rows in :meth:`transformWithState`, frames in the other methods. There it may
        change broadcast state, which keyed rows then read.

        Parameters
        ----------
        df
            A streaming DataFrame; every subtask holds its rows of an epoch in memory.

        Raises
        ------
        PlanError
            If `df` is not streaming, or a broadcast stream is connected already.
        """
        if self._broadcast is not None:
            raise PlanError("a broadcast stream is connected already: union the two first")
        if df.isStreaming != self._keyed.df.isStreaming:
            raise PlanError("connectBroadcast needs a stream beside a stream")
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

        As ``GroupedData.transformWithState`` of PySpark; ``handleInputRows`` is called once per
        key and epoch with all rows of that key.

        Parameters
        ----------
        statefulProcessor
            A ``pyspark.sql.streaming.StatefulProcessor``.
        outputStructType
            Schema of the rows that the processor yields.
        outputMode
            ``Append`` or ``Update``. The query may have the other of the two.
        timeMode
            ``None``, ``ProcessingTime`` or ``EventTime``: the clock of its timers.
        initialState
            ``groupBy`` of a batch DataFrame by the same key: its rows go to ``handleInitialState``
            before the query's first epoch, when it starts without a checkpoint or savepoint.
        eventTimeColumnName
            The output column that is event time for a stateful operator that follows.
        uid
            The operator's stable name: its state is found by it on every restart and restore. The
            only operator of a query may do without, its uid is ``operator`` then.
        migrations
            How stored states become the ones the processor asks for, by the new state's name;
            needed only where a schema changed in a way that values cannot follow by themselves.

        Raises
        ------
        PlanError
            If an argument is not allowed; names it.
        NotBuiltYetError
            If an argument asks for what is not built yet; names it.
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

        As ``GroupedData.transformWithStateInPandas`` of PySpark; ``handleInputRows`` is called
        once per key and epoch with an iterator of frames. Parameters and errors as
        :meth:`transformWithState`.
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

        ``handleInputBatch`` of a :class:`BatchProcessor` is called once per subtask and epoch, or a
        few times if the epoch is larger than memory allows. Other parameters and errors as
        :meth:`transformWithState`.
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
        if not isinstance(initial_state, GroupedData):
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
