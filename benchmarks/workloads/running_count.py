"""W0 and W1: running count and sum per key, in small and in large epochs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.case import (
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
from benchmarks.input_files import write_files
from benchmarks.limits import IDLE, NONE
from benchmarks.not_durable import NO_CHECKPOINTS, NotDurableSubtask
from benchmarks.programs.known import counting_programs
from benchmarks.spark_operators import (
    BACKENDS,
    BATCHES,
    PANDAS,
    ROWS,
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
}
_NOT_DURABLE = "pyspark_ckpt rows, rocksdb, not durable"
_CASE = "running count"


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
        _ours(mode, backend) for mode in (ROWS, PANDAS, BATCHES) for backend in BACKENDS
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
        "transformWithStateInPandas, unchanged. Batches: all keys in one call. Not durable: an "
        "operator that writes no segment, reads none back, makes no base snapshot and takes no "
        "checkpoint. groupBy.agg aggregates before the shuffle.",
        [_case(100_000, 1_000_000, scale, contenders, Epochs(5, 2), Epochs(1, 1), Sink.BATCHES)],
        references=[AGG.name, PANDAS],
        targets=_targets(),
    )


def _targets() -> list[Target]:
    rows = ours_name(ROWS, "rocksdb")
    speed = [
        (rows, PANDAS, 60),
        (rows, APPLY.name, 35),
        (ours_name(PANDAS, "rocksdb"), PANDAS, 10),
        (rows, "PyFlink thread mode, rocksdb", 30),
        (rows, "Flink SQL, rocksdb", 3),
        (ours_name(BATCHES, "rocksdb"), AGG.name, 0.6),
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
    keys, rows = max(10, int(keys * scale)), max(100, int(rows * scale))
    return Case(
        _CASE,
        f"{keys:,} keys, {rows:,} rows per epoch",
        counting.INPUT,
        counting.COLUMNS,
        partial(_write, keys, rows),
        counting.running_counts,
        contenders,
        epochs,
        slow_epochs,
        sink,
    )


def _write(keys: int, rows: int, directory: Path, epochs: int) -> InputFiles:
    frames = (counting.random_rows(keys, rows, epoch) for epoch in range(epochs))
    return InputFiles(write_files(directory, frames))
