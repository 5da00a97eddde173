"""A running count and sum per key, with each operator.

Each does its work in the way that its own API makes fastest: rows in a loop where the API gives
rows, vectorised where it gives frames. All yield one row per key and epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.runs.case import Contender, Kind

INPUT = "key long, value long"
OUTPUT = "key long, n long, total long"
COLUMNS = ("key", "n", "total")
_STATE = "n long, total long"
_NEW = ("n", "total")
_LOWEST, _HIGHEST = -100, 100
_SEED = 20_240_229


class RowsCount(StatefulProcessor):
    """Rows in, rows out."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("count", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        count, total = self._state.get() or (0, 0)
        for row in rows:
            count += 1
            total += row.value
        self._state.update((count, total))
        yield Row(key=key[0], n=count, total=total)

    def close(self) -> None:
        pass


class PartialRowsCount(RowsCount):
    """The same over rows that were combined before the shuffle."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        count, total = self._state.get() or (0, 0)
        for row in rows:
            count += row.n
            total += row.total
        self._state.update((count, total))
        yield Row(key=key[0], n=count, total=total)


class PandasCount(StatefulProcessor):
    """Frames in, frames out; runs unchanged in PySpark and here."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("count", _STATE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        count, total = self._state.get() or (0, 0)
        for frame in rows:
            count += len(frame)
            total += int(frame["value"].to_numpy().sum())
        self._state.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "n": [count], "total": [total]})

    def close(self) -> None:
        pass


class BatchesCount(ckpt.BatchProcessor):
    """All keys at once."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("count", _STATE)

    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        old = self._state.getMany(keys)
        places = rows.index.to_numpy()
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        n = np.diff(starts, append=len(places))
        total = np.add.reduceat(rows["value"].to_numpy(), starts)
        new = pd.DataFrame(
            {
                "n": old["n"].to_numpy(np.int64, na_value=0) + n,
                "total": old["total"].to_numpy(np.int64, na_value=0) + total,
            }
        )
        self._state.updateMany(keys, new)
        yield keys.assign(n=new["n"], total=new["total"])

    def close(self) -> None:
        pass


class ArrowCount(ckpt.ArrowProcessor):
    """All keys at once, as Arrow tables."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("count", _STATE)

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        old = self._state.getMany(keys)
        sums = rows.group_by("key_position").aggregate([([], "count_all"), ("value", "sum")])
        sums = sums.sort_by("key_position")
        new = pa.table(
            {
                "n": pc.add(pc.fill_null(old.column("n"), 0), sums.column("count_all")),
                "total": pc.add(pc.fill_null(old.column("total"), 0), sums.column("value_sum")),
            }
        )
        self._state.updateMany(keys, new)
        yield pa.table({"key": keys.column("key"), **dict(zip(_NEW, new.columns, strict=True))})

    def close(self) -> None:
        pass


class RowsCountEachRow(RowsCount):
    """A row out for each row in: the key's count so far, and the row's own value."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        values = [row.value for row in rows]
        count, total = self._state.get() or (0, 0)
        count += len(values)
        self._state.update((count, total + sum(values)))
        for value in values:
            yield Row(key=key[0], n=count, total=value)


class TuplesCountEachRow(RowsCount):
    """The same without a Row for each row out, which is most of the processor's time."""

    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: Any
    ) -> Iterator[tuple[Any, ...]]:
        values = [row.value for row in rows]
        count, total = self._state.get() or (0, 0)
        count += len(values)
        self._state.update((count, total + sum(values)))
        for value in values:
            yield key[0], count, value


class ArrowCountEachRow(ArrowCount):
    """The same for all keys at once, as Arrow tables."""

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        (counted,) = super().handleInputArrow(keys, rows, timerValues)
        n = counted.column("n").take(rows.column("key_position"))
        yield pa.table({"key": rows.column("key"), "n": n, "total": rows.column("value")})


def _count_group(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    count, total = state.get if state.exists else (0, 0)
    for frame in frames:
        count += len(frame)
        total += int(frame["value"].to_numpy().sum())
    state.update((count, total))
    yield pd.DataFrame({"key": [key[0]], "n": [count], "total": [total]})


def _one_group_per_key(df: DataFrame) -> DataFrame:
    return df.groupBy("key").applyInPandasWithState(
        _count_group, OUTPUT, _STATE, "append", GroupStateTimeout.NoTimeout
    )


def _aggregated_in_the_jvm(df: DataFrame) -> DataFrame:
    return df.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


APPLY = Contender("applyInPandasWithState", Kind.PEER, _one_group_per_key, slow=True)
AGGREGATES = {"n": ckpt.agg.Count(), "total": ckpt.agg.Sum("value")}
AGG = Contender("groupBy.agg in the JVM", Kind.PEER, _aggregated_in_the_jvm, output_mode="update")


def random_rows(keys: int, rows: int, epoch: int) -> pd.DataFrame:
    """Return an epoch's rows: keys drawn uniformly; the same rows on every machine."""
    random = np.random.default_rng((_SEED, epoch))
    return pd.DataFrame(
        {
            "key": random.integers(0, keys, rows),
            "value": random.integers(_LOWEST, _HIGHEST, rows),
        }
    )


def one_row_per_key(keys: int) -> pd.DataFrame:
    """Return rows that give every key a state."""
    random = np.random.default_rng((_SEED, keys))
    return pd.DataFrame(
        {"key": random.permutation(keys), "value": random.integers(_LOWEST, _HIGHEST, keys)}
    )


def running_counts(files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas what a running count and sum emits: a row per key and epoch."""
    epochs = [
        pd.read_parquet(file).groupby("key")["value"].agg(["size", "sum"]).reset_index()
        for file in files
    ]
    changes = pd.concat(epochs, ignore_index=True)
    running = changes.groupby("key")[["size", "sum"]].cumsum()
    return pd.DataFrame({"key": changes["key"], "n": running["size"], "total": running["sum"]})


def counts_of_each_row(files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas a row for each row: its key's count at the end of the epoch."""
    counts = pd.Series(dtype="int64")
    found = []
    for file in files:
        rows = pd.read_parquet(file)
        counts = counts.add(rows.groupby("key").size(), fill_value=0).astype("int64")
        n = rows["key"].map(counts)
        found.append(pd.DataFrame({"key": rows["key"], "n": n, "total": rows["value"]}))
    return pd.concat(found, ignore_index=True)


def skewed_rows(keys: int, rows: int, epoch: int) -> pd.DataFrame:
    """Return an epoch's rows, of which half have the key 0."""
    found = random_rows(keys, rows, epoch)
    found.loc[found.index % 2 == 0, "key"] = 0
    return found


def last_counts(output: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of each key, which has the highest count."""
    return output.loc[output.groupby("key")["n"].idxmax()]
