"""W3: a map per key, of which an epoch touches a small part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.runs.case import Case, Contender, Epochs, InputFiles, Kind, Workload
from benchmarks.runs.input_files import write_files
from benchmarks.runs.spark_operators import BACKENDS, PANDAS, ROWS, ours, pysparks

INPUT = "key long, category long, value long"
OUTPUT = "key long, category long, n long, total long"
COLUMNS = ("key", "category", "n", "total")
CATEGORIES = 8
ROWS_PER_TOUCHED_KEY = 2
MOST_LOADED_AT_ONCE = 1_000_000

_SEED = 303


class RowsMap(StatefulProcessor):
    """Count and sum per category in a map; rows in, rows out."""

    def init(self, handle: Any) -> None:
        self._map = handle.getMapState("by_category", "category long", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        changed: dict[int, tuple[int, int]] = {}
        for row in rows:
            category = row.category
            n, total = changed.get(category) or self._map.getValue((category,)) or (0, 0)
            changed[category] = (n + 1, total + row.value)
        for category, (n, total) in changed.items():
            self._map.updateValue((category,), (n, total))
            yield Row(key=key[0], category=category, n=n, total=total)

    def close(self) -> None:
        pass


class PandasMap(StatefulProcessor):
    """The same; frames in, frames out."""

    def init(self, handle: Any) -> None:
        self._map = handle.getMapState("by_category", "category long", "n long, total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        changed: dict[int, tuple[int, int]] = {}
        for frame in rows:
            for category, value in zip(
                frame["category"].tolist(), frame["value"].tolist(), strict=True
            ):
                n, total = changed.get(category) or self._map.getValue((category,)) or (0, 0)
                changed[category] = (n + 1, total + value)
        for category, counted in changed.items():
            self._map.updateValue((category,), counted)
        yield pd.DataFrame(
            [(key[0], category, *counted) for category, counted in changed.items()],
            columns=list(COLUMNS),
        )

    def close(self) -> None:
        pass


def _aggregated_in_the_jvm(df: DataFrame) -> DataFrame:
    counted = (F.count("*").alias("n"), F.sum("value").alias("total"))
    return df.groupBy("key", "category").agg(*counted)


AGG = Contender("groupBy.agg in the JVM", Kind.PEER, _aggregated_in_the_jvm, output_mode="update")


def wide_state(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W3: 1,000,000 keys, 10,000 of them touched per epoch."""
    keys = max(100, int(1_000_000 * scale))
    case = Case(
        "wide state",
        f"{keys:,} keys, {keys // 100:,} touched per epoch",
        INPUT,
        COLUMNS,
        partial(write_touches, keys, keys // 100),
        categories_by_epoch,
        [
            *(our_map(backend) for backend in BACKENDS),
            ours(PANDAS, PandasMap, "key", OUTPUT, "rocksdb"),
            AGG,
            pysparks(PANDAS, PandasMap, "key", OUTPUT),
            pysparks(ROWS, RowsMap, "key", OUTPUT),
        ],
        epochs=Epochs(10, 3),
        slow_epochs=Epochs(3, 1),
    )
    return Workload(
        "W3",
        "w3_wide_state",
        "W3: a map per key, one key in a hundred touched per epoch",
        "Every key has a map of count and sum by category, filled by epochs that are not counted. "
        f"An epoch has {ROWS_PER_TOUCHED_KEY} rows of each key that it touches. Spark's "
        "aggregation groups by key and category.",
        [case],
        references=[AGG.name, PANDAS],
    )


def our_map(backend: str) -> Contender:
    """Return this library's contender, rows in and out."""
    return ours(ROWS, RowsMap, "key", OUTPUT, backend)


def write_touches(keys: int, touched: int, directory: Path, epochs: int) -> InputFiles:
    """Write files that give each key an entry, and epochs that touch some of them."""
    load = write_files(directory, _load(keys))
    frames = (touches(keys, touched, epoch) for epoch in range(epochs))
    return InputFiles(write_files(directory, frames, first=len(load)), load=load)


def _load(keys: int) -> Iterator[pd.DataFrame]:
    random = np.random.default_rng((_SEED, keys))
    order = random.permutation(keys)
    for part in np.array_split(order, -(-keys // MOST_LOADED_AT_ONCE)):
        yield _rows(random, part)


def touches(keys: int, touched: int, epoch: int) -> pd.DataFrame:
    """Return an epoch's rows."""
    random = np.random.default_rng((_SEED, keys, epoch))
    chosen = random.choice(keys, max(1, touched), replace=False)
    return _rows(random, random.permutation(np.repeat(chosen, ROWS_PER_TOUCHED_KEY)))


def _rows(random: np.random.Generator, keys: np.ndarray[Any, Any]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "key": keys,
            "category": random.integers(0, CATEGORIES, len(keys)),
            "value": random.integers(-100, 100, len(keys)),
        }
    )


def categories_by_epoch(files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas the output: a row per key, touched category and epoch."""
    of_entry = ["key", "category"]
    epochs = [
        pd.read_parquet(file)
        .groupby(of_entry)["value"]
        .agg(["size", "sum"])
        .reset_index()
        .assign(epoch=epoch)
        for epoch, file in enumerate(files)
    ]
    changes = pd.concat(epochs, ignore_index=True)
    running = changes.groupby(of_entry)[["size", "sum"]].cumsum()
    return changes[[*of_entry, "epoch"]].assign(n=running["size"], total=running["sum"])
