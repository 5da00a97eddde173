"""The methods of a query's writer that choose its sink, its trigger and its options."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ckpt.api.epoch_function import EpochFunction
from pyspark_ckpt.errors import NotBuiltYetError
from pyspark_ckpt.sessions import connect
from pyspark_ckpt.sessions.connect_plan import give_output_mode
from pyspark_ckpt.sessions.kind import is_connect
from pyspark_ckpt.settings import Settings, is_ckpt_option, read_settings
from pyspark_ckpt.spark.session import settings_of, spark_writer
from pyspark_ckpt.spark.sink import FOREACH_BATCH, SinkChoice
from pyspark_ckpt.storage.open import Storage

_MEMORY = "memory"

Writer = TypeVar("Writer", bound="SinkWriter")


class SinkWriter(DataStreamWriter):
    """PySpark's ``DataStreamWriter`` that also keeps its sink, trigger and options.

    It holds the writer that the session's own PySpark made, classic or Connect, and passes every
    call on. It inherits from PySpark's class only for ``isinstance`` and type hints
    (docs/design/0050-spark-connect.md).
    """

    def __init__(self, df: DataFrame) -> None:
        # Without `super().__init__`: it is for classic sessions, and this class passes calls on.
        self._stream = df
        self._writer = spark_writer(df)
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._ckpt_options: dict[str, str] = {}
        self._conf: dict[str, str] | None = None
        self._sink = SinkChoice()
        self._output_mode = "append"
        self._when: dict[str, Any] = {"processingTime": "0 seconds"}

    def outputMode(self: Writer, outputMode: str) -> Writer:
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

    def clusterBy(self: Writer, *cols: Any) -> Writer:
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

    def format(self: Writer, source: str) -> Writer:
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

    def foreach(self: Writer, f: Any) -> Writer:
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

    def foreachBatch(self: Writer, func: Callable[[DataFrame, int], None]) -> Writer:
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

    def queryName(self: Writer, queryName: str) -> Writer:
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

    def partitionBy(self: Writer, *cols: Any) -> Writer:
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

    def trigger(self: Writer, **when: Any) -> Writer:
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

    def option(self: Writer, key: str, value: Any) -> Writer:
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

    def options(self: Writer, **options: Any) -> Writer:
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

    def _repeat_calls_of(self, other: SinkWriter) -> None:
        """Choose the sink, the trigger and the options as on another writer."""
        for name, arguments, options in list(other._calls):
            getattr(self, name)(*arguments, **options)
        self._sink, self._conf = deepcopy(other._sink), other._conf

    def _conf_of_query(self) -> dict[str, str]:
        """Return the conf of the query's first start in this process, else the session's."""
        return settings_of(self._stream.sparkSession) if self._conf is None else self._conf

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
        if is_connect(self._stream):
            give_output_mode(self._stream, self._output_mode)
        return start(self)

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
        return connect.new_session(spark)

    def _start_once(self, start: Callable[[Any], StreamingQuery]) -> StreamingQuery:
        """Start Spark's query for one more epoch; for a writer that nobody else starts."""
        self._writer.trigger(once=True)
        return self._start_spark(start)
