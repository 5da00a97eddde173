"""The methods of a query's writer that choose its sink, its trigger and its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ckpt.api.epoch_function import EpochFunction
from pyspark_ckpt.settings import is_ckpt_option
from pyspark_ckpt.spark.session import spark_writer
from pyspark_ckpt.spark.sink import FOREACH_BATCH, SinkChoice

Writer = TypeVar("Writer", bound="SinkWriter")


class SinkWriter(DataStreamWriter):
    """PySpark's ``DataStreamWriter`` that also keeps its sink, trigger and options.

    It holds the writer that the session's own PySpark made, classic or Connect, and passes every
    call on. It inherits from PySpark's class only for ``isinstance`` and type hints
    (docs/design/0050-spark-connect.md).

    Parameters
    ----------
    df : DataFrame
        The query.
    """

    def __init__(self, df: DataFrame) -> None:
        # Without `super().__init__`: it is for classic sessions, and this class passes calls on.
        self._stream = df
        self._writer = spark_writer(df)
        self._ckpt_options: dict[str, str] = {}
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
        self._sink.format = "foreach"
        return self

    def foreachBatch(self: Writer, func: Callable[[DataFrame, int], None]) -> Writer:
        """Process each epoch's output with a function; as ``DataStreamWriter.foreachBatch``.

        All actions on the DataFrame have to end before the function returns, also actions of other
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
        for key, value in options.items():
            if is_ckpt_option(key):
                self._ckpt_options[key] = str(value)
            else:
                self._writer.option(key, value)
                self._sink.options[key.lower()] = value
        return self

    def _use_location_once(self, url: str) -> None:
        """Give Spark a location for this start only; the next start makes a new one."""
        self._writer.option("checkpointLocation", url)
