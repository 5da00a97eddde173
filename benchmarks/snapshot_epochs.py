"""How much base snapshots and checkpoints slow down the epochs around them.

``python -m benchmarks.snapshot_epochs`` runs a running count over 2,000,000 keys on RocksDB. Epochs
follow each other without a pause. Whenever another 1 % of the keys was written a base snapshot is
taken and uploaded in the background; a checkpoint is triggered halfway between two of them, so that
each has one more. With ``--by-default`` base snapshots are taken when the library's defaults say
so, and the checkpoints have the changelog of 1 % of the keys. Each epoch is assigned to what ran
at the same time, and compared with the median of all. The output is compared with pandas.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from benchmarks.machine.properties import describe_machine
from benchmarks.reports.snapshot_report import ObservedEpoch, SnapshotReport
from benchmarks.runs.check import check_rows
from benchmarks.runs.input_files import write_files
from benchmarks.runs.run import Epoch, WrongResultError
from benchmarks.runs.session import Sessions, use_this_python
from benchmarks.runs.spark_run import report_epochs
from benchmarks.workloads import counting
from pyspark_ckpt.checkpoint.handles import read_handles
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import open_storage

_OPERATOR = 0
_PERCENT_PER_SNAPSHOT = 1.0
_UNCOUNTED_SNAPSHOTS = 6
"""Until all keys are in the base and the JVM has compiled what it runs (two and about four)."""
_NAME = "snapshot_epochs"
_NAME_BY_DEFAULT = "snapshot_epochs_by_default"
_MOST_SEGMENTS = "spark.ckpt.internal.state.changelog.materialize.max-segments"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the query and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        sessions = Sessions(Path(directory))
        try:
            report = _measure(sessions.new(), options, Path(directory))
        except WrongResultError as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
        finally:
            sessions.stop()
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / (_NAME_BY_DEFAULT if options.by_default else _NAME)
    path.with_suffix(".json").write_text(json.dumps(report.as_json(), indent=1) + "\n")
    path.with_suffix(".md").write_text(report.markdown())
    print(report.markdown())
    return 0


def _measure(spark: SparkSession, options: argparse.Namespace, directory: Path) -> SnapshotReport:
    rows = max(1, round(options.keys * _PERCENT_PER_SNAPSHOT / 100 / options.epochs_per_snapshot))
    settings = {
        "keys": options.keys,
        "rows per epoch": rows,
        "epochs per snapshot": "by default" if options.by_default else options.epochs_per_snapshot,
        "epochs per checkpoint": options.epochs_per_snapshot,
    }
    warm_up = 1 + _UNCOUNTED_SNAPSHOTS * options.epochs_per_snapshot
    frames = [counting.one_row_per_key(options.keys)] + [
        counting.random_rows(options.keys, rows, epoch)
        for epoch in range(1, warm_up + options.epochs)
    ]
    files = write_files(directory / "source", frames)
    query = _run(spark, options, directory)
    epochs = report_epochs(query)
    if len(epochs) != len(files):
        raise WrongResultError(f"{len(epochs)} epochs for {len(files)} files")
    output = pd.read_parquet(directory / "output")
    expected = counting.running_counts(files)
    check_rows("running count", output, expected, counting.COLUMNS)
    observed = _observed(spark, query, epochs, str(directory / "location"))
    new_bytes = ckpt.location(str(directory / "location")).history()
    counted = new_bytes[new_bytes["epoch"] >= warm_up]
    shares = (counted["new_bytes"] / counted["size_bytes"]).astype(float).tolist()
    return SnapshotReport(settings, describe_machine(spark), observed[warm_up:], shares)


def _run(
    spark: SparkSession, options: argparse.Namespace, directory: Path
) -> ckpt.CheckpointedQuery:
    stream = spark.readStream.schema(counting.INPUT).option("maxFilesPerTrigger", 1)
    counts = ckpt.key_by(stream.parquet(str(directory / "source")), "key").transformWithState(
        counting.RowsCount(), counting.OUTPUT, "Append", "None", uid="count"
    )
    output = directory / "output"
    begun: list[int] = []

    def write(batch: DataFrame, epoch: int) -> None:
        begun.append(epoch)
        batch.write.mode("overwrite").parquet(str(output / f"epoch={epoch}"))

    every = options.epochs_per_snapshot
    writer = ckpt.write_stream(counts)
    if not options.by_default:
        writer = writer.option(_MOST_SEGMENTS, str(every))
    query: Any = (
        writer.foreachBatch(write)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(directory / "location"))
        .option("spark.ckpt.state.backend.type", "rocksdb")
        .option("spark.ckpt.execution.checkpointing.interval", "1h")  # none but those triggered
        .option("spark.ckpt.execution.checkpointing.num-retained", "1000")
        .start()
    )
    next_checkpoint = every // 2
    while not query.awaitTermination(0.05):
        if begun and begun[-1] > next_checkpoint:
            try:
                query.triggerCheckpoint()
            except ckpt.errors.CheckpointAbortedError as exc:
                if exc.reason != ckpt.results.AbortReason.QUERY_ENDED:
                    raise
            next_checkpoint += every
    return query


def _observed(
    spark: SparkSession, query: ckpt.CheckpointedQuery, epochs: Sequence[Epoch], location: str
) -> list[ObservedEpoch]:
    """Assign each epoch to what ran at the same time."""
    checkpoints = [
        (row.triggered_at.timestamp(), row.triggered_at.timestamp() + row.duration_ms / 1000)
        for row in query.checkpoints().collect()
    ]
    observed = []
    log = SparkLog(open_storage(location))
    before: list[Handle] = []
    for epoch in epochs:
        # Spark keeps the state of this many epochs only.
        is_kept = epoch.number > len(epochs) - 90
        handles = read_handles(spark, log, epoch.number, _OPERATOR, None) if is_kept else []
        ended_at = epoch.started_at + epoch.ms / 1000
        observed.append(
            ObservedEpoch(
                epoch.number,
                epoch.durations_ms,
                has_snapshot=_is_at_work(before) or _is_at_work(handles),
                has_checkpoint=any(
                    begin < ended_at and end > epoch.started_at for begin, end in checkpoints
                ),
                open_ms=_most(handles, "open_ms"),
                process_ms=_most(handles, "process_ms"),
                barrier_ms=_most(handles, "barrier_ms"),
            )
        )
        before = handles
    return observed


def _is_at_work(handles: Sequence[Handle]) -> bool:
    """Return whether a snapshot was taken in this epoch, or is being uploaded after it."""
    return any(handle.pending is not None for handle in handles)


def _most(handles: Sequence[Handle], name: str) -> int:
    return max((getattr(handle.metrics, name) for handle in handles if handle.metrics), default=0)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.snapshot_epochs",
        description="Measure the epochs around base snapshots and checkpoints.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--epochs", type=int, default=60, help="epochs that are counted")
    parser.add_argument(
        "--epochs-per-snapshot", type=int, default=10, help="in which 1 %% of the keys is written"
    )
    parser.add_argument(
        "--by-default", action="store_true", help="force no base snapshots beyond the defaults"
    )
    parser.add_argument("--results", type=Path, default=Path("bench-output"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
