"""W9: rows of many columns and long strings, of which a processor keeps little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
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
from benchmarks.runs.case import Case, Contender, Epochs, InputFiles, Kind, Workload
from benchmarks.runs.input_files import write_files
from benchmarks.runs.spark_operators import ARROW, BACKENDS, BATCHES, PANDAS, ROWS, ours, pysparks

NUMBERS = [f"n{number:02d}" for number in range(30)]
TEXTS = [f"t{number}" for number in range(5)]
TEXT_CHARACTERS = 200
INPUT = ", ".join(
    ["key long", *(f"{name} long" for name in NUMBERS), *(f"{name} string" for name in TEXTS)]
)
OUTPUT = "key long, n long, total long, greatest string"
COLUMNS = ("key", "n", "total", "greatest")
_STATE = "n long, total long, greatest string"
_SEED = 909
_KINDS_OF_TEXT = 5_000


class RowsWide(StatefulProcessor):
    """Count, sum of one number, and the greatest text; rows in, rows out."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("seen", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        n, total, greatest = self._state.get() or (0, 0, "")
        for row in rows:
            n += 1
            total += row.n00
            greatest = max(greatest, row.t0)
        self._state.update((n, total, greatest))
        yield Row(key=key[0], n=n, total=total, greatest=greatest)

    def close(self) -> None:
        pass


class PandasWide(StatefulProcessor):
    """The same; frames in, frames out."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("seen", _STATE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        seen = _add(self._state.get() or (0, 0, ""), rows)
        self._state.update(seen)
        yield pd.DataFrame([(key[0], *seen)], columns=list(COLUMNS))

    def close(self) -> None:
        pass


class BatchesWide(ckpt.BatchProcessor):
    """The same for all keys at once."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("seen", _STATE)

    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        old = self._state.getMany(keys)
        of_key = rows.groupby(level=0)
        greatest = of_key["t0"].max()
        before = old["greatest"].fillna("").to_numpy(object)
        new = pd.DataFrame(
            {
                "n": old["n"].to_numpy(np.int64, na_value=0) + of_key.size().to_numpy(),
                "total": old["total"].to_numpy(np.int64, na_value=0)
                + of_key["n00"].sum().to_numpy(),
                "greatest": np.maximum(before, greatest.to_numpy(object)),
            }
        )
        self._state.updateMany(keys, new)
        yield keys.assign(**{name: new[name] for name in COLUMNS[1:]})

    def close(self) -> None:
        pass


class ArrowWide(ckpt.ArrowProcessor):
    """The same for all keys at once, as Arrow tables."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("seen", _STATE)

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        old = self._state.getMany(keys)
        sums = rows.select(["key_position", "n00", "t0"]).group_by("key_position")
        added = sums.aggregate([([], "count_all"), ("n00", "sum"), ("t0", "max")])
        added = added.sort_by("key_position")
        new = pa.table(
            {
                "n": pc.add(pc.fill_null(old.column("n"), 0), added.column("count_all")),
                "total": pc.add(pc.fill_null(old.column("total"), 0), added.column("n00_sum")),
                "greatest": pc.max_element_wise(old.column("greatest"), added.column("t0_max")),
            }
        )
        self._state.updateMany(keys, new)
        yield pa.table({"key": keys.column("key"), **{name: new[name] for name in COLUMNS[1:]}})

    def close(self) -> None:
        pass


def _add(seen: tuple[int, int, str], frames: Iterator[pd.DataFrame]) -> tuple[int, int, str]:
    n, total, greatest = seen
    for frame in frames:
        n += len(frame)
        total += int(frame["n00"].to_numpy().sum())
        greatest = max(greatest, frame["t0"].max())
    return n, total, greatest


def _count_group(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    seen = _add(state.get if state.exists else (0, 0, ""), frames)
    state.update(seen)
    yield pd.DataFrame([(key[0], *seen)], columns=list(COLUMNS))


def _one_group_per_key(df: DataFrame) -> DataFrame:
    return df.groupBy("key").applyInPandasWithState(
        _count_group, OUTPUT, _STATE, "append", GroupStateTimeout.NoTimeout
    )


def _aggregated_in_the_jvm(df: DataFrame) -> DataFrame:
    return df.groupBy("key").agg(
        F.count("*").alias("n"), F.sum("n00").alias("total"), F.max("t0").alias("greatest")
    )


def _function_only(df: DataFrame) -> DataFrame:
    return df.mapInPandas(_one_by_one, OUTPUT)


def _one_by_one(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        found = frame[["key", "n00", "t0"]].set_axis(["key", "total", "greatest"], axis="columns")
        yield found.assign(n=1)[list(COLUMNS)]


AGG = Contender("groupBy.agg in the JVM", Kind.PEER, _aggregated_in_the_jvm, output_mode="update")
_OF_MODE: dict[str, type] = {
    ROWS: RowsWide,
    PANDAS: PandasWide,
    BATCHES: BatchesWide,
    ARROW: ArrowWide,
}


def wide_rows(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W9: 36 columns, a kilobyte of text in each row."""
    del with_programs
    keys, rows = max(10, int(5_000 * scale)), max(10, int(50_000 * scale))
    map_only = Contender(
        "map only, no state", Kind.LIMIT, _function_only, expected=rows_without_state
    )
    case = Case(
        "wide rows",
        f"{keys:,} keys, {rows:,} rows per epoch",
        INPUT,
        COLUMNS,
        partial(_write, keys, rows),
        greatest_by_epoch,
        [
            *(
                ours(mode, processor, "key", OUTPUT, backend)
                for mode, processor in _OF_MODE.items()
                for backend in BACKENDS[: 2 if mode == ROWS else 1]
            ),
            AGG,
            Contender("applyInPandasWithState", Kind.PEER, _one_group_per_key, slow=True),
            pysparks(PANDAS, PandasWide, "key", OUTPUT),
            pysparks(ROWS, RowsWide, "key", OUTPUT),
            map_only,
        ],
        epochs=Epochs(5, 2),
        slow_epochs=Epochs(1, 1),
    )
    return Workload(
        "W9",
        "w9_wide_rows",
        "W9: wide rows and long strings",
        f"Each row has {len(NUMBERS)} numbers and {len(TEXTS)} texts of {TEXT_CHARACTERS} "
        "characters. A processor keeps the count, the sum of one number and the greatest of one "
        "text. It does not select columns before the operator, as most programs do not; Spark "
        "itself reads no others for its aggregation and for the map.",
        [case],
        references=[AGG.name, PANDAS],
    )


def _write(keys: int, rows: int, directory: Path, epochs: int) -> InputFiles:
    return InputFiles(
        write_files(directory, (_random_rows(keys, rows, epoch) for epoch in range(epochs)))
    )


def _random_rows(keys: int, rows: int, epoch: int) -> pd.DataFrame:
    random = np.random.default_rng((_SEED, epoch))
    letters = random.integers(ord("a"), ord("z") + 1, (_KINDS_OF_TEXT, TEXT_CHARACTERS), np.uint8)
    texts = np.array([bytes(line).decode("ascii") for line in letters], dtype=object)
    columns = {"key": random.integers(0, keys, rows)}
    columns |= {name: random.integers(-100, 100, rows) for name in NUMBERS}
    columns |= {name: texts[random.integers(0, len(texts), rows)] for name in TEXTS}
    return pd.DataFrame(columns)


def greatest_by_epoch(files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas the output: a row per key and epoch."""
    epochs = [
        pd.read_parquet(file, columns=["key", "n00", "t0"])
        .groupby("key")
        .agg(n=("n00", "size"), total=("n00", "sum"), greatest=("t0", "max"))
        .reset_index()
        for file in files
    ]
    changes = pd.concat(epochs, ignore_index=True)
    running = changes.groupby("key")[["n", "total"]].cumsum()
    # A text of later epochs counts only if it is greater.
    greatest: list[str] = []
    so_far: dict[int, str] = {}
    for key, text in zip(changes["key"].tolist(), changes["greatest"].tolist(), strict=True):
        so_far[key] = max(so_far.get(key, ""), text)
        greatest.append(so_far[key])
    return changes[["key"]].assign(n=running["n"], total=running["total"], greatest=greatest)


def rows_without_state(files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas what the query with a function only emits."""
    rows = pd.concat(pd.read_parquet(file, columns=["key", "n00", "t0"]) for file in files)
    return pd.DataFrame({"key": rows["key"], "n": 1, "total": rows["n00"], "greatest": rows["t0"]})
