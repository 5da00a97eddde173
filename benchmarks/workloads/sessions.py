"""W2: sessions of events in event time, with a timer per session and input out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.programs.known import session_programs
from benchmarks.runs.case import (
    Case,
    Contender,
    Epochs,
    InputFiles,
    Kind,
    Program,
    Target,
    Workload,
)
from benchmarks.runs.input_files import read_files, write_files
from benchmarks.runs.spark_operators import ARROW, BACKENDS, PANDAS, ROWS, ours, ours_name, pysparks
from benchmarks.workloads.session_arrow import ArrowSessions
from benchmarks.workloads.session_processors import PandasSessions, RowsSessions

INPUT = "key long, time_ms long"
OUTPUT = "key long, start_ms long, last_ms long, n long"
COLUMNS = ("key", "start_ms", "last_ms", "n")
GAP_MS = 30 * 60_000
EPOCH_MS = 10 * 60_000
LATEST_MS = 5 * 60_000
"""How much later than others a row may come; the watermark allows twice that, so none is late."""

_WATERMARK = f"{2 * LATEST_MS} milliseconds"
_ORIGIN_MS = 1_704_067_200_000
_LEAVING = 10
"""One active key in so many is replaced in every epoch."""

_ROWS_PER_KEY = 5
_SEED = 17
_CASE = "sessions"
_LAST_KEY = -1
JVM = "session_window in the JVM"


def sessions(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W2: 50,000 active keys, 250,000 rows per epoch."""
    keys = max(20, int(50_000 * scale))
    of_mode: dict[str, Callable[[], StatefulProcessor]] = {
        ROWS: partial(RowsSessions, GAP_MS),
        PANDAS: partial(PandasSessions, GAP_MS),
    }
    contenders: list[Contender | Program] = [
        ours(mode, make, "key", OUTPUT, backend, prepare=with_event_time, time_mode="EventTime")
        for mode, make in of_mode.items()
        for backend in BACKENDS
    ]
    contenders += [
        ours(
            ARROW,
            partial(ArrowSessions, GAP_MS),
            "key",
            OUTPUT,
            backend,
            prepare=with_event_time,
            time_mode="EventTime",
        )
        for backend in BACKENDS
    ]
    contenders += [ready_made(backend) for backend in BACKENDS]
    contenders.append(Contender(JVM, Kind.PEER, partial(session_windows, GAP_MS)))
    if with_programs:
        # Row by row, the last of an epoch may be older than its first by all of the epoch.
        contenders += session_programs(GAP_MS, EPOCH_MS + LATEST_MS)
    else:
        contenders += [
            pysparks(mode, make, "key", OUTPUT, prepare=with_event_time, time_mode="EventTime")
            for mode, make in of_mode.items()
        ]
    case = Case(
        _CASE,
        f"{keys:,} active keys, {keys * _ROWS_PER_KEY:,} rows per epoch",
        INPUT,
        COLUMNS,
        partial(write_sessions, keys),
        partial(closed_sessions, GAP_MS),
        contenders,
        epochs=Epochs(6, 6),
        slow_epochs=Epochs(2, 4),
    )
    return Workload(
        "W2",
        "w2_sessions",
        "W2: sessions in event time",
        "A session ends 30 minutes after its last event. An epoch is 10 minutes of events, which "
        "come up to 5 minutes out of order; none is late. A tenth of the active keys leaves in "
        "every epoch and others come. Sessions begin to end in the fifth epoch; a last epoch, not "
        "counted, ends all.",
        [case],
        references=[JVM, PANDAS],
        targets=[
            Target(
                f"rows/s, {ours_name(mode, 'rocksdb')} / {PANDAS}",
                (_CASE, ours_name(mode, "rocksdb")),
                (_CASE, PANDAS),
                22,
            )
            for mode in (ROWS, ARROW)
        ],
    )


def ready_made(backend: str) -> Contender:
    """Return the ready-made operator as a contender."""

    def query(df: DataFrame) -> DataFrame:
        keyed = ckpt.key_by(with_event_time(df), "key")
        ended = ckpt.operators.sessions(keyed, {"n": ckpt.agg.Count()}, gap=GAP_MS, uid="operator")
        last_ms = F.unix_millis("end") - GAP_MS
        return ended.select(
            "key", F.unix_millis("start").alias("start_ms"), last_ms.alias("last_ms"), "n"
        )

    options = {"spark.ckpt.state.backend.type": backend}
    return Contender(f"operators.sessions, {backend}", Kind.OURS, query, options=options)


def with_event_time(df: DataFrame) -> DataFrame:
    """Return the stream with a watermark."""
    return df.withColumn("time", F.timestamp_millis("time_ms")).withWatermark("time", _WATERMARK)


def session_windows(gap_ms: int, df: DataFrame) -> DataFrame:
    """Return Spark's own sessions, in the output's columns."""
    window = F.session_window("time", f"{gap_ms} milliseconds")
    counted = with_event_time(df).groupBy("key", window).agg(F.count("*").alias("n"))
    last_ms = F.unix_millis(F.col("session_window.end")) - gap_ms
    return counted.select(
        "key",
        F.unix_millis(F.col("session_window.start")).alias("start_ms"),
        last_ms.alias("last_ms"),
        "n",
    )


def write_sessions(keys: int, directory: Path, epochs: int) -> InputFiles:
    """Write epochs, and one with a single row far ahead, which ends every session."""
    written = write_files(directory, _epochs(keys, epochs))
    ahead_ms = _ORIGIN_MS + (epochs + 1_000) * EPOCH_MS
    last = pd.DataFrame({"key": [_LAST_KEY], "time_ms": [ahead_ms]})
    return InputFiles(written, tail=write_files(directory, [last], first=epochs))


def _epochs(keys: int, epochs: int) -> Iterator[pd.DataFrame]:
    random = np.random.default_rng((_SEED, keys))
    active = np.arange(keys)
    resting = np.arange(keys, 2 * keys)
    for epoch in range(epochs):
        rows = np.repeat(active, _ROWS_PER_KEY)
        times = _ORIGIN_MS + epoch * EPOCH_MS + random.integers(0, EPOCH_MS, len(rows))
        times -= random.integers(0, LATEST_MS, len(rows))
        order = random.permutation(len(rows))
        yield pd.DataFrame({"key": rows[order], "time_ms": times[order]})
        leaving = random.permutation(keys)[: max(1, keys // _LEAVING)]
        coming = random.permutation(len(resting))[: len(leaving)]
        active[leaving], resting[coming] = resting[coming], active[leaving]


def closed_sessions(gap_ms: int, files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas every session except the one that the last row opens."""
    rows = read_files(files)
    return sessions_of(rows[rows["key"] != _LAST_KEY], gap_ms)


def sessions_of(rows: pd.DataFrame, gap_ms: int) -> pd.DataFrame:
    """Compute with pandas the sessions of keys and times."""
    rows = rows.sort_values(["key", "time_ms"], ignore_index=True)
    is_first = (rows["key"].diff() != 0) | (rows["time_ms"].diff() > gap_ms)
    times = rows.groupby(["key", is_first.cumsum().rename("session")])["time_ms"]
    found = times.agg(start_ms="min", last_ms="max", n="size")
    return found.reset_index()[list(COLUMNS)]
