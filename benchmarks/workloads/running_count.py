"""W0, W1, W1F, W1R and W7: running count and sum per key, by size, rows per key, rows out, skew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.programs.known import counting_programs
from benchmarks.runs.case import (
    Case,
    Contender,
    Epochs,
    Figure,
    InputFiles,
    Program,
    Sink,
    Target,
    Workload,
)
from benchmarks.runs.input_files import write_files
from benchmarks.runs.limits import IDLE, JVM_MAP, MAP_ONLY, NONE
from benchmarks.runs.not_durable import NO_CHECKPOINTS, NotDurableSubtask
from benchmarks.runs.spark_operators import (
    ARROW,
    BACKENDS,
    BATCHES,
    COMBINE,
    PANDAS,
    ROWS,
    combined,
    ours,
    ours_name,
    pysparks,
)
from benchmarks.workloads import counting
from benchmarks.workloads.counting import AGG, APPLY

_OF_MODE: dict[str, type] = {
    ROWS: counting.RowsCount,
    PANDAS: counting.PandasCount,
    BATCHES: counting.BatchesCount,
    ARROW: counting.ArrowCount,
}
_NOT_DURABLE = "pyspark_ckpt rows, rocksdb, not durable"
_PARTIAL = "pyspark_ckpt rows, rocksdb, combined before"
_CASE = "running count"
_COMBINED = f"pyspark_ckpt {COMBINE}, rocksdb"
_ROW_PER_KEY = "pyspark_ckpt rows, rocksdb, a row per key"
_TUPLES = "pyspark_ckpt rows, rocksdb, tuples out"
_HOT = "hot key"
_EACH_ROW = {ROWS: counting.RowsCountEachRow, ARROW: counting.ArrowCountEachRow}


def small(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W0, the first benchmark of this library: 10,000 keys, 100,000 rows per epoch."""
    contenders = [
        *(_ours(ROWS, backend) for backend in BACKENDS),
        APPLY,
        pysparks(PANDAS, counting.PandasCount, "key", counting.OUTPUT),
        IDLE,
        NONE,
    ]
    return Workload(
        "W0",
        "running_count",
        "Running count and sum per key, small epochs",
        "A Python loop over the rows of each key. The limits show what Spark itself takes.",
        [_case(10_000, 100_000, scale, contenders, Epochs(30, 4), Epochs(2, 1), Sink.FILES)],
        references=[APPLY.name, PANDAS],
        targets=[
            Target(
                f"rows/s, {backend} / {APPLY.name}",
                (_CASE, ours_name(ROWS, backend)),
                (_CASE, APPLY.name),
                20,
            )
            for backend in BACKENDS
        ],
    )


def large(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W1: 100,000 keys, 1,000,000 rows per epoch."""
    contenders: list[Contender | Program] = [
        _ours(mode, backend) for mode in (ROWS, PANDAS, BATCHES, ARROW) for backend in BACKENDS
    ]
    contenders.append(
        ours(
            ROWS,
            counting.RowsCount,
            "key",
            counting.OUTPUT,
            "rocksdb",
            name=_NOT_DURABLE,
            options=NO_CHECKPOINTS,
            subtask=NotDurableSubtask,
        )
    )
    contenders.append(
        ours(
            ROWS,
            counting.PartialRowsCount,
            "key",
            counting.OUTPUT,
            "rocksdb",
            combine=counting.AGGREGATES,
            name=_PARTIAL,
        )
    )
    contenders += [combined(counting.AGGREGATES, "key", backend) for backend in BACKENDS]
    contenders.append(AGG)
    if with_programs:
        contenders += counting_programs(counting.last_counts)
    else:
        contenders += [
            APPLY,
            pysparks(PANDAS, counting.PandasCount, "key", counting.OUTPUT),
            pysparks(ROWS, counting.RowsCount, "key", counting.OUTPUT),
            IDLE,
            NONE,
        ]
    return Workload(
        "W1",
        "w1_running_count",
        "W1: running count and sum per key, large epochs",
        "Rows: a Python loop over the rows of each key. Pandas: the processor of PySpark's "
        "transformWithStateInPandas, unchanged. Batches and Arrow: all keys in one call, as pandas "
        "frames and Arrow tables. Combined: declared aggregates. Combined before: "
        "rows that were combined before the shuffle. Not durable: an "
        "operator that writes no segment, reads none back, makes no base snapshot and takes no "
        "checkpoint. groupBy.agg aggregates before the shuffle.",
        [_case(100_000, 1_000_000, scale, contenders, Epochs(5, 2), Epochs(1, 1), Sink.BATCHES)],
        references=[AGG.name, PANDAS],
        targets=_targets(),
    )


def few_rows(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W1F: 50,000 keys, two rows per key and epoch on average."""
    del with_programs
    contenders: list[Contender | Program] = [
        *(_ours(PANDAS, backend) for backend in BACKENDS),
        *(_ours(mode, "rocksdb") for mode in (ROWS, BATCHES)),
        APPLY,
        pysparks(PANDAS, counting.PandasCount, "key", counting.OUTPUT),
        NONE,
    ]
    return Workload(
        "W1F",
        "w1_few_rows",
        "W1 with few rows per key",
        "Two rows per key and epoch on average. The pandas processor is that of PySpark's "
        "transformWithStateInPandas, unchanged; a frame for each key is most of its time.",
        [_case(50_000, 100_000, scale, contenders, Epochs(5, 2), Epochs(2, 1), Sink.BATCHES)],
        references=[PANDAS],
        targets=[],
    )


def each_row(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W1R: W1 with a row out for each row in, as to enrich or to flag rows."""
    del with_programs
    row_per_key = replace(
        _ours(ROWS, "rocksdb"), name=_ROW_PER_KEY, expected=counting.running_counts
    )
    contenders: list[Contender | Program] = [
        *(ours(mode, make, "key", counting.OUTPUT, "rocksdb") for mode, make in _EACH_ROW.items()),
        ours(
            ROWS,
            counting.TuplesCountEachRow,
            "key",
            counting.OUTPUT,
            "rocksdb",
            name=_TUPLES,
        ),
        row_per_key,
        pysparks(ROWS, counting.RowsCountEachRow, "key", counting.OUTPUT),
        MAP_ONLY,
        JVM_MAP,
    ]
    case = _case(100_000, 1_000_000, scale, contenders, Epochs(5, 2), Epochs(1, 1), Sink.BATCHES)
    return Workload(
        "W1R",
        "w1_row_per_row",
        "W1 with a row out for each row in",
        "Each row leaves with its key's count. Next to it the processor of W1, with a row per key.",
        [replace(case, expected=counting.counts_of_each_row)],
        references=[ROWS, MAP_ONLY.name, JVM_MAP.name],
        targets=[
            Target(
                f"ms per epoch, {name} / {_ROW_PER_KEY}",
                (_CASE, name),
                (_CASE, _ROW_PER_KEY),
                1.4,
                Figure.MS_PER_EPOCH,
                at_least=False,
            )
            for name in (ours_name(ROWS, "rocksdb"), _TUPLES)
        ],
    )


def skew(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W7: W1 with uniform keys, and with half of all rows on one key."""
    del with_programs
    contenders: list[Contender | Program] = [
        combined(counting.AGGREGATES, "key", "rocksdb"),
        _ours(BATCHES, "rocksdb"),
        AGG,
    ]
    uniform = _case(100_000, 1_000_000, scale, contenders, Epochs(5, 2), Epochs(1, 1), Sink.BATCHES)
    keys, rows = _size(100_000, 1_000_000, scale)
    hot = replace(
        uniform,
        name=_HOT,
        title=f"{keys:,} keys, {rows:,} rows per epoch, half of them of one key",
        write=partial(_write, counting.skewed_rows, keys, rows),
    )
    return Workload(
        "W7",
        "w7_skew",
        "W7: half of all rows on one key",
        "W1 with uniform keys, and with a hot key.",
        [uniform, hot],
        references=[AGG.name],
        targets=[
            Target(
                f"ms per epoch with a hot key / uniform, {_COMBINED}",
                (_HOT, _COMBINED),
                (_CASE, _COMBINED),
                1.2,
                Figure.MS_PER_EPOCH,
                at_least=False,
            )
        ],
    )


def _targets() -> list[Target]:
    rows = ours_name(ROWS, "rocksdb")
    speed = [
        (rows, PANDAS, 60),
        (rows, APPLY.name, 35),
        (ours_name(PANDAS, "rocksdb"), PANDAS, 9.2),
        (rows, "PyFlink thread mode, rocksdb", 30),
        (rows, "Flink SQL, rocksdb", 4.5),
        (_PARTIAL, "Flink SQL, rocksdb", 4.5),
        (ours_name(BATCHES, "rocksdb"), AGG.name, 0.85),
        (ours_name(ARROW, "rocksdb"), AGG.name, 0.85),
        (_COMBINED, AGG.name, 1.0),
        (ours_name(ROWS, "heap"), rows, 1.1),
    ]
    targets = [
        Target(f"rows/s, {name} / {other}", (_CASE, name), (_CASE, other), limit)
        for name, other, limit in speed
    ]
    durability = Target(
        f"ms per epoch, {rows} / {_NOT_DURABLE}",
        (_CASE, rows),
        (_CASE, _NOT_DURABLE),
        1.15,
        Figure.MS_PER_EPOCH,
        at_least=False,
    )
    return [*targets, durability]


def _ours(mode: str, backend: str) -> Contender:
    return ours(mode, _OF_MODE[mode], "key", counting.OUTPUT, backend)


def _case(
    keys: int,
    rows: int,
    scale: float,
    contenders: list[Contender | Program] | list[Contender],
    epochs: Epochs,
    slow_epochs: Epochs,
    sink: Sink,
) -> Case:
    keys, rows = _size(keys, rows, scale)
    return Case(
        _CASE,
        f"{keys:,} keys, {rows:,} rows per epoch",
        counting.INPUT,
        counting.COLUMNS,
        partial(_write, counting.random_rows, keys, rows),
        counting.running_counts,
        contenders,
        epochs,
        slow_epochs,
        sink,
    )


def _size(keys: int, rows: int, scale: float) -> tuple[int, int]:
    return max(10, int(keys * scale)), max(100, int(rows * scale))


def _write(
    rows_of: Callable[[int, int, int], pd.DataFrame],
    keys: int,
    rows: int,
    directory: Path,
    epochs: int,
) -> InputFiles:
    frames = (rows_of(keys, rows, epoch) for epoch in range(epochs))
    return InputFiles(write_files(directory, frames))
