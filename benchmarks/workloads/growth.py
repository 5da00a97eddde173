"""W5: how an epoch and a restart become slower as state grows."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pandas as pd
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_ckpt as ckpt
from benchmarks.runs.case import Case, Epochs, Figure, FinishedRun, Kind, Target, Workload
from benchmarks.runs.check import check_rows
from benchmarks.runs.input_files import write_files
from benchmarks.runs.spark_operators import BACKENDS, ROWS, ours_name
from benchmarks.runs.spark_run import read_output, report_epochs, start_query
from benchmarks.workloads.wide_state import (
    AGG,
    COLUMNS,
    INPUT,
    categories_by_epoch,
    our_map,
    touches,
    write_touches,
)

_SIZES = (100_000, 1_000_000, 10_000_000)
_TOUCHED = 10_000


def growth(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W5: the maps of W3 for more and more keys, the same number touched per epoch."""
    touched = max(10, int(_TOUCHED * scale))
    cases = [_case(max(10 * touched, int(keys * scale)), touched) for keys in _SIZES]
    return Workload(
        "W5",
        "w5_growth",
        "W5: growth of state",
        "The maps of W3, the same number of keys touched per epoch whatever the size. After each "
        "run of this library its local copies are measured and deleted; then the query is started "
        "again at its checkpointLocation, and another one from the last checkpoint, with one more "
        "epoch of input. A restart lasts from start() to the commit of that epoch.",
        cases,
        references=[AGG.name],
        targets=[
            Target(
                f"{figure.value}, {backend}, {cases[-1].name} / {cases[0].name}",
                (cases[-1].name, ours_name(ROWS, backend)),
                (cases[0].name, ours_name(ROWS, backend)),
                limit,
                figure,
                at_least=False,
            )
            for figure, limit in ((Figure.MS_PER_EPOCH, 1.3), (Figure.RESTORE_SECONDS, 1.5))
            for backend in BACKENDS
        ],
        figure=Figure.MS_PER_EPOCH,
    )


def _case(keys: int, touched: int) -> Case:
    name = f"{keys:,} keys"
    return Case(
        name,
        f"{name}, {touched:,} touched per epoch",
        INPUT,
        COLUMNS,
        partial(write_touches, keys, touched),
        categories_by_epoch,
        [*(our_map(backend) for backend in BACKENDS), AGG],
        epochs=Epochs(10, 5),
        slow_epochs=Epochs(10, 5),
        measure_more=partial(_measure_restarts, keys, touched),
    )


def _measure_restarts(keys: int, touched: int, run: FinishedRun) -> Mapping[str, float]:
    if run.contender.kind is not Kind.OURS:
        return {}
    assert isinstance(run.query, ckpt.CheckpointedQuery)
    checkpoint = max(
        (row for row in run.query.checkpoints().collect() if row.kind == "checkpoint"),
        key=lambda row: row.checkpoint_id,
    )
    local_bytes = _delete_local_copies(run)
    checkpoint_bytes = _size_bytes(run.directory / "location")
    source = run.directory / "source"
    done = len(list(source.glob("*.parquet")))
    write_files(source, [touches(keys, touched, done)], first=done)
    expected = categories_by_epoch(sorted(source.glob("*.parquet")))
    restart_seconds = _restart(run, run.directory, None, expected)
    _delete_local_copies(run)
    restore_seconds = _restart(
        run, run.directory / "restored", checkpoint.path, expected[expected["epoch"] == done]
    )
    return {
        "restart s": restart_seconds,
        Figure.RESTORE_SECONDS.value: restore_seconds,
        "local copies MiB": local_bytes / 1024**2,
        "checkpoint location MiB": checkpoint_bytes / 1024**2,
    }


def _restart(
    run: FinishedRun, directory: Path, checkpoint: str | None, expected: pd.DataFrame
) -> float:
    """Start a query over one more epoch, check the output, and return the seconds it took."""
    began_at = time.time()
    source = run.directory / "source"
    query = start_query(run.spark, run.case, run.contender, source, directory, checkpoint)
    query.awaitTermination()
    seconds = _committed_at(query) - began_at
    output = read_output(run.spark, run.case, directory)
    check_rows(f"{run.case.title}: {run.contender.name}, restart", output, expected, COLUMNS)
    return seconds


def _committed_at(query: StreamingQuery) -> float:
    (epoch,) = report_epochs(query)
    return epoch.started_at + epoch.ms / 1000


def _delete_local_copies(run: FinishedRun) -> int:
    """Delete this query's local copies, as if the machine were another one; return their size."""
    local = Path(run.spark.conf.get("spark.local.dir") or "")
    copies = list(local.rglob(f"pyspark_ckpt/{run.query.id}"))
    if not copies:
        raise FileNotFoundError(f"no local copy of query {run.query.id} below {local}")
    size_bytes = sum(map(_size_bytes, copies))
    for copy in copies:
        shutil.rmtree(copy)
    return size_bytes


def _size_bytes(directory: Path) -> int:
    """Return the size of a directory on disk; sparse files count by their blocks."""
    return sum(512 * path.stat().st_blocks for path in directory.rglob("*") if path.is_file())
