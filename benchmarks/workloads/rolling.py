"""W10: each row with the number and the sum of the rows of its key in the time before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.runs.case import Case, Contender, Epochs, InputFiles, Kind, Target, Workload
from benchmarks.runs.input_files import read_files, write_files
from benchmarks.runs.spark_operators import BACKENDS, PANDAS, ours, pysparks

INPUT = "key long, time_ms long, v long"
OUTPUT = "key long, time_ms long, n long, total long"
COLUMNS = ("key", "time_ms", "n", "total")
WINDOW_MS = 20_000
EPOCH_MS = 10_000
_ORIGIN_MS = 1_704_067_200_000
_ROWS_PER_KEY = 10
_SEED = 41
_CASE = "rolling"


class PandasRolling(StatefulProcessor):
    """Keeps the rows of the window in a list; frames in, frames out."""

    def init(self, handle: Any) -> None:
        self._window = handle.getListState("window", "time_ms long, v long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        new = pd.concat(list(rows)).sort_values("time_ms")
        before = np.array(list(self._window.get()), np.int64).reshape(-1, 2)
        times = np.concatenate([before[:, 0], new["time_ms"].to_numpy()])
        sums = np.concatenate([[0], np.cumsum(np.concatenate([before[:, 1], new["v"]]))])
        ends = np.arange(len(before), len(times))
        firsts = np.searchsorted(times, times[ends] - WINDOW_MS, "right")
        yield pd.DataFrame(
            {
                "key": key[0],
                "time_ms": new["time_ms"],
                "n": ends - firsts + 1,
                "total": sums[ends + 1] - sums[firsts],
            }
        )
        is_kept = times > times[-1] - WINDOW_MS
        kept = zip(times[is_kept].tolist(), np.diff(sums)[is_kept].tolist(), strict=True)
        self._window.put(list(kept))

    def close(self) -> None:
        pass


def rolling(scale: float, **_: Any) -> Workload:
    """Return W10: 20,000 keys, 200,000 rows per epoch, about 20 rows in a window."""
    keys = max(20, int(20_000 * scale))
    contenders = [ready_made(backend) for backend in BACKENDS]
    contenders += [
        ours(PANDAS, PandasRolling, "key", OUTPUT, "rocksdb"),
        pysparks(PANDAS, PandasRolling, "key", OUTPUT),
    ]
    case = Case(
        _CASE,
        f"{keys:,} keys, {keys * _ROWS_PER_KEY:,} rows per epoch",
        INPUT,
        COLUMNS,
        partial(write_rows, keys),
        rolled,
        contenders,
        epochs=Epochs(6, 4),
        slow_epochs=Epochs(2, 3),
    )
    return Workload(
        "W10",
        "w10_rolling",
        "W10: rolling windows",
        "Each row comes out with the number and the sum of the rows of its key in the 20 seconds "
        "up to it. An epoch is 10 seconds of rows.",
        [case],
        references=[PANDAS],
        targets=[
            Target(
                f"rows/s, {name('rocksdb')} / {PANDAS}",
                (_CASE, name("rocksdb")),
                (_CASE, PANDAS),
                5,
            )
        ],
    )


def name(backend: str) -> str:
    """Return the name of the ready-made operator's contender."""
    return f"operators.rolling, {backend}"


def ready_made(backend: str) -> Contender:
    """Return the ready-made operator as a contender."""

    def query(df: DataFrame) -> DataFrame:
        timed = df.withColumn("time", F.timestamp_millis("time_ms"))
        aggregates = {"n": ckpt.agg.Count(), "total": ckpt.agg.Sum("v")}
        windows = ckpt.operators.rolling(
            ckpt.key_by(timed, "key"), aggregates, by="time", within=WINDOW_MS, uid="operator"
        )
        return windows.select(*COLUMNS)

    options = {"spark.ckpt.state.backend.type": backend}
    return Contender(name(backend), Kind.OURS, query, options=options)


def write_rows(keys: int, directory: Path, epochs: int) -> InputFiles:
    """Write epochs of rows whose times are different within a key, in any order."""
    return InputFiles(write_files(directory, _epochs(keys, epochs)))


def _epochs(keys: int, epochs: int) -> Iterator[pd.DataFrame]:
    random = np.random.default_rng((_SEED, keys))
    step_ms = EPOCH_MS // _ROWS_PER_KEY
    for epoch in range(epochs):
        of_key = np.tile(np.arange(_ROWS_PER_KEY) * step_ms, keys)
        times = _ORIGIN_MS + epoch * EPOCH_MS + of_key + random.integers(0, step_ms, len(of_key))
        rows = pd.DataFrame(
            {
                "key": np.repeat(np.arange(keys), _ROWS_PER_KEY),
                "time_ms": times,
                "v": random.integers(0, 1_000, len(of_key)),
            }
        )
        yield rows.iloc[random.permutation(len(rows))]


def rolled(files: Sequence[Path]) -> pd.DataFrame:
    """Compute all windows with pandas."""
    rows = read_files(files).sort_values(["key", "time_ms"], ignore_index=True)
    rows["time"] = pd.to_datetime(rows["time_ms"], unit="ms")
    window = rows.groupby("key").rolling(f"{WINDOW_MS}ms", on="time")["v"]
    return rows.assign(
        n=window.count().to_numpy().astype(np.int64), total=window.sum().to_numpy().astype(np.int64)
    )[list(COLUMNS)]
