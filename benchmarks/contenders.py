"""The contenders: a running count and sum per key, once with each operator.

All read the same files, one per epoch, yield one row per key and epoch, and write it with the same
sink. Each processor does its work in the way that its own API makes fastest: rows in a loop where
the API gives rows, vectorised where it gives pandas frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.data import INPUT_SCHEMA, OUTPUT_SCHEMA, expected_output, sampled_output
from benchmarks.limits import with_idle_operator, without_operator

_STATE_SCHEMA = "n long, total long"


class RowsCount(StatefulProcessor):
    """The processor of this library's contenders: rows in, rows out."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("count", _STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        count, total = self._state.get() or (0, 0)
        for row in rows:
            count += 1
            total += row.value
        self._state.update((count, total))
        yield Row(key=key[0], n=count, total=total)

    def close(self) -> None:
        pass


class PandasCount(StatefulProcessor):
    """The processor for PySpark's ``transformWithStateInPandas``: frames in, frames out."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("count", _STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        count, total = self._state.get() or (0, 0)
        for frame in rows:
            count += len(frame)
            total += int(frame["value"].to_numpy().sum())
        self._state.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "n": [count], "total": [total]})

    def close(self) -> None:
        pass


def count_group(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """The function for PySpark's ``applyInPandasWithState``, one group per key."""
    count, total = state.get if state.exists else (0, 0)
    for frame in frames:
        count += len(frame)
        total += int(frame["value"].to_numpy().sum())
    state.update((count, total))
    yield pd.DataFrame({"key": [key[0]], "n": [count], "total": [total]})


class Kind(Enum):
    """Whose operator it is."""

    OURS = "pyspark_ckpt"
    PEER = "PySpark's own"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Contender:
    """One operator under measurement; `expected` computes its right output with pandas."""

    name: str
    kind: Kind
    writer: Callable[[DataFrame], DataStreamWriter]
    expected: Callable[[Sequence[Path]], pd.DataFrame] = expected_output

    def start(
        self, spark: SparkSession, source: Path, output: Path, location: Path
    ) -> StreamingQuery:
        """Start the query over all files of `source`, one per epoch; it ends by itself."""
        stream = spark.readStream.schema(INPUT_SCHEMA).option("maxFilesPerTrigger", 1)
        return (
            self.writer(stream.parquet(str(source)))
            .format("parquet")
            .outputMode("append")
            .option("path", str(output))
            .option("checkpointLocation", str(location))
            .trigger(availableNow=True)
            .start()
        )


def _ours(backend: str) -> Contender:
    def writer(df: DataFrame) -> DataStreamWriter:
        counts = ckpt.key_by(df, "key").transformWithState(
            statefulProcessor=RowsCount(),
            outputStructType=OUTPUT_SCHEMA,
            outputMode="Append",
            timeMode="None",
            uid="count",
        )
        return ckpt.write_stream(counts).option("spark.ckpt.state.backend.type", backend)

    return Contender(f"pyspark_ckpt, {backend}", Kind.OURS, writer)


def _apply_in_pandas_with_state(df: DataFrame) -> DataStreamWriter:
    return (
        df.groupBy("key")
        .applyInPandasWithState(
            count_group, OUTPUT_SCHEMA, _STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
        )
        .writeStream
    )


def _transform_with_state_in_pandas(df: DataFrame) -> DataStreamWriter:
    return (
        df.groupBy("key")
        .transformWithStateInPandas(
            statefulProcessor=PandasCount(),
            outputStructType=OUTPUT_SCHEMA,
            outputMode="Append",
            timeMode="None",
        )
        .writeStream
    )


HEAP = _ours("heap")
ROCKSDB = _ours("rocksdb")
APPLY = Contender("applyInPandasWithState", Kind.PEER, _apply_in_pandas_with_state)
TRANSFORM = Contender("transformWithStateInPandas", Kind.PEER, _transform_with_state_in_pandas)
IDLE = Contender("an operator that does nothing", Kind.LIMIT, with_idle_operator, sampled_output)
NONE = Contender("no operator at all", Kind.LIMIT, without_operator, sampled_output)
CONTENDERS = (HEAP, ROCKSDB, APPLY, TRANSFORM, IDLE, NONE)
