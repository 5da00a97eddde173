"""W4: small epochs over a state that is much larger than what an epoch touches."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.runs.case import Case, Epochs, Figure, InputFiles, Target, Workload
from benchmarks.runs.input_files import write_files
from benchmarks.runs.limits import IDLE, MAP_ONLY
from benchmarks.runs.spark_operators import BACKENDS, BATCHES, ROWS, ours, ours_name
from benchmarks.workloads import counting
from benchmarks.workloads.counting import AGG

_CASE = "small epochs"
_OF_MODE: dict[str, type] = {ROWS: counting.RowsCount, BATCHES: counting.BatchesCount}


def small_epochs(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W4: 1,000 rows per epoch, 100,000 keys of state."""
    keys, rows = max(10, int(100_000 * scale)), max(10, int(1_000 * scale))
    operators = [
        ours(mode, processor, "key", counting.OUTPUT, backend)
        for mode, processor in _OF_MODE.items()
        for backend in BACKENDS
    ]
    case = Case(
        _CASE,
        f"{keys:,} keys of state, {rows:,} rows per epoch",
        counting.INPUT,
        counting.COLUMNS,
        partial(_write, keys, rows),
        counting.running_counts,
        [*operators, AGG, IDLE, MAP_ONLY],
        epochs=Epochs(40, 10),
        slow_epochs=Epochs(40, 10),
    )
    return Workload(
        "W4",
        "w4_small_epochs",
        "W4: small epochs",
        "Running count and sum. The first epoch gives every key a state; the next ones warm up. "
        "Map only is the same source and sink with a function in Python and without shuffle and "
        "state; the operator that does nothing has the shuffle and one group per partition.",
        [case],
        references=[MAP_ONLY.name, IDLE.name],
        targets=[
            Target(
                f"ms per epoch, {ours_name(ROWS, backend)} / {MAP_ONLY.name}",
                (_CASE, ours_name(ROWS, backend)),
                (_CASE, MAP_ONLY.name),
                1.35,
                Figure.MS_PER_EPOCH,
                at_least=False,
            )
            for backend in BACKENDS
        ],
        figure=Figure.MS_PER_EPOCH,
    )


def _write(keys: int, rows: int, directory: Path, epochs: int) -> InputFiles:
    load = write_files(directory, [counting.one_row_per_key(keys)])
    frames = (counting.random_rows(keys, rows, epoch) for epoch in range(epochs))
    return InputFiles(write_files(directory, frames, first=1), load=load)
