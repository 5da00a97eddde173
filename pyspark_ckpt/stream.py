"""``key_by``: from a streaming DataFrame to a keyed stream, and through a processor back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import NotBuiltYetError, PlanError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.batch_input import BatchInput, BatchProcessor
from pyspark_ckpt.operator.declared_states import declare_states
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, encode_descriptor
from pyspark_ckpt.operator.epoch_clock import TimeMode
from pyspark_ckpt.operator.input_columns import KEY_GROUP, TOKEN, InputColumns
from pyspark_ckpt.operator.input_mode import InputMode
from pyspark_ckpt.operator.key_groups import (
    check_max_parallelism,
    default_max_parallelism,
    subtask_tokens,
)
from pyspark_ckpt.operator.output_rows import OutputRows
from pyspark_ckpt.operator.pandas_input import PandasInput
from pyspark_ckpt.operator.rows_input import RowsInput
from pyspark_ckpt.operator.subtask import SubtaskFunction
from pyspark_ckpt.operator_arguments import OperatorArguments

if TYPE_CHECKING:
    from pyspark.sql import GroupedData

STATE_SCHEMA = "handle binary"
"""What Spark's own state store keeps for a subtask."""

DESCRIPTOR_METADATA = "pyspark_ckpt.operator"
"""Key of the operator's descriptor in the metadata of the token column."""

_TIMEOUTS = {
    TimeMode.NONE: GroupStateTimeout.NoTimeout,
    TimeMode.PROCESSING_TIME: GroupStateTimeout.ProcessingTimeTimeout,
    TimeMode.EVENT_TIME: GroupStateTimeout.EventTimeTimeout,
}


def key_by(df: DataFrame, *columns: str | Column, maxParallelism: int | None = None) -> KeyedStream:
    """Partition a streaming DataFrame by key.

    Called on the driver, where ``df.groupBy(*columns)`` would be. A null is a key like any other,
    as in Spark's ``groupBy``.

    Parameters
    ----------
    df
        A streaming DataFrame.
    columns
        One or more of its columns.
    maxParallelism
        Number of key groups, fixed for the life of the state; by default a power of two from 128
        up, derived from ``spark.sql.shuffle.partitions`` as Flink does.

    Raises
    ------
    PlanError
        If a key column is missing, ambiguous or not one of `df`, or `maxParallelism` cannot be.
    NotBuiltYetError
        If `df` is not streaming, or has a column of a type that is not built yet.
    """
    if not df.isStreaming:
        raise NotBuiltYetError("key_by on a batch DataFrame is not built yet; use a stream")
    if not hasattr(df, "_jdf"):
        raise NotBuiltYetError("key_by over Spark Connect is not built yet; use a classic session")
    conf = df.sparkSession.conf
    parallelism = int(conf.get("spark.sql.shuffle.partitions") or 200)
    time_zone = str(conf.get("spark.sql.session.timeZone"))
    chosen = default_max_parallelism(parallelism) if maxParallelism is None else maxParallelism
    return KeyedStream(
        df,
        InputColumns(df.schema, _key_names(df, columns), time_zone),
        parallelism,
        check_max_parallelism(chosen, parallelism),
    )


class KeyedStream:
    """A stream partitioned by key; made by :func:`key_by`."""

    def __init__(
        self, df: DataFrame, input_columns: InputColumns, parallelism: int, max_parallelism: int
    ) -> None:
        self._df = df
        self._input = input_columns
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: T.StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str,
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
            ``Append`` or ``Update``, the mode that the query is started with.
        timeMode
            ``None``, ``ProcessingTime`` or ``EventTime``: the clock of its timers.
        initialState, eventTimeColumnName
            Not built yet.
        uid
            The operator's stable name: its state is found by it on every restart and restore.
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
            statefulProcessor, outputStructType, outputMode, timeMode, uid, migrations
        )
        _check_not_built(initialState, eventTimeColumnName)
        return self._operator(arguments, RowsInput)

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: T.StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str,
        migrations: Mapping[str, Migration] | None = None,
    ) -> DataFrame:
        """Run a processor over the stream, pandas frames in and frames out.

        As ``GroupedData.transformWithStateInPandas`` of PySpark; ``handleInputRows`` is called
        once per key and epoch with an iterator of frames. Parameters and errors as
        :meth:`transformWithState`.
        """
        arguments = OperatorArguments.checked(
            statefulProcessor, outputStructType, outputMode, timeMode, uid, migrations
        )
        _check_not_built(initialState, eventTimeColumnName)
        return self._operator(arguments, PandasInput)

    def transformWithStateInBatches(
        self,
        statefulProcessor: BatchProcessor,
        outputStructType: T.StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str,
        migrations: Mapping[str, Migration] | None = None,
    ) -> DataFrame:
        """Run a processor over the stream, all keys of an epoch at once, as columns.

        ``handleInputBatch`` of a :class:`BatchProcessor` is called once per subtask and epoch, or a
        few times if the epoch is larger than memory allows. Other parameters and errors as
        :meth:`transformWithState`.
        """
        if not isinstance(statefulProcessor, BatchProcessor):
            raise PlanError(
                f"operator {uid!r}: {type(statefulProcessor).__name__} is no BatchProcessor: "
                "subclass pyspark_ckpt.BatchProcessor and implement handleInputBatch"
            )
        arguments = OperatorArguments.checked(
            statefulProcessor, outputStructType, outputMode, timeMode, uid, migrations
        )
        _check_not_built(initialState, eventTimeColumnName)
        return self._operator(arguments, BatchInput)

    def _operator(
        self,
        arguments: OperatorArguments,
        mode: Callable[[InputColumns, OutputRows], InputMode],
    ) -> DataFrame:
        """Add the operator to the plan."""
        uid, time_mode = arguments.uid, arguments.time_mode
        has_watermark = self._input.event_time_index is not None
        if time_mode is TimeMode.EVENT_TIME and not has_watermark:
            raise PlanError(
                f"operator {uid!r}: timeMode='EventTime' needs a watermark: call withWatermark "
                "before key_by"
            )
        declared = declare_states(arguments.processor, uid, time_mode, has_watermark=has_watermark)
        output = OutputRows(arguments.output_schema, uid)
        descriptor = OperatorDescriptor(
            uid=uid,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            key_schema=self._input.key_schema.json(),
            time_mode=time_mode.value,
            states=declared.descriptors,
        )
        function = SubtaskFunction(
            arguments.processor,
            descriptor,
            self._input,
            mode(self._input, output),
            declared.schemas,
            arguments.migrations,
        )
        processed = (
            self._with_tokens(descriptor)
            .groupBy(TOKEN)
            .applyInPandasWithState(
                _named(function, uid),
                output.sent_schema,
                STATE_SCHEMA,
                arguments.output_mode,
                _TIMEOUTS[time_mode],
            )
        )
        return processed.select(*output.columns())

    def _with_tokens(self, descriptor: OperatorDescriptor) -> DataFrame:
        key_group = F.pmod(F.hash(*self._input.key_columns()), F.lit(self._max_parallelism))
        subtask = F.floor(F.col(KEY_GROUP) * self._parallelism / self._max_parallelism)
        tokens = F.array(*[F.lit(token) for token in subtask_tokens(self._parallelism)])
        token = F.element_at(tokens, subtask.cast("int") + 1)
        metadata = {DESCRIPTOR_METADATA: encode_descriptor(descriptor)}
        travelling = [key_group.alias(KEY_GROUP), *self._input.columns()]
        return self._df.select(*travelling).withColumn(TOKEN, token).withMetadata(TOKEN, metadata)


def _key_names(df: DataFrame, columns: tuple[str | Column, ...]) -> list[str]:
    if not columns:
        raise PlanError("key_by needs at least one key column")
    duplicated = {name for name in df.columns if df.columns.count(name) > 1}
    if duplicated:
        raise PlanError(f"columns {sorted(duplicated)} appear more than once: rename them first")
    names = [
        column if isinstance(column, str) else df.select(column).columns[0] for column in columns
    ]
    for name in names:
        if name not in df.columns:
            raise PlanError(
                f"key column {name!r} is not a column of the stream, which has {df.columns}: "
                "make it one with withColumn first"
            )
    if len(set(names)) != len(names):
        raise PlanError(f"key_by got a column twice: {names}")
    return names


def _check_not_built(initial_state: Any, event_time_column_name: str) -> None:
    if initial_state is not None:
        raise NotBuiltYetError("initialState is not built yet")
    if event_time_column_name:
        raise NotBuiltYetError("eventTimeColumnName is not built yet")


def _named(function: SubtaskFunction, uid: str) -> Any:
    """Return a plain function, which PySpark asks for, that shows the uid in Spark's plans."""

    def operator(key: Any, frames: Any, state: Any) -> Any:
        return function(key, frames, state)

    operator.__name__ = uid
    return operator
