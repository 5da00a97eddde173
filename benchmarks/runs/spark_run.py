"""One timed run of one streaming query, checked row by row.

The time is from the trigger of the first counted epoch to the commit of the last: planning,
reading, shuffle, operator, state, barrier, sink and Spark's own logs, as Spark reports them in
``StreamingQuery.recentProgress``, and the gaps between. Not measured are the start of the query,
the epochs before, and the check afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_ckpt as ckpt
from benchmarks.machine.cpu import CpuTimes, CpuUse
from benchmarks.machine.samples import Samples
from benchmarks.runs.case import Case, Contender, FinishedRun, InputFiles, Kind, Sink
from benchmarks.runs.check import check_rows
from benchmarks.runs.input_files import link_files
from benchmarks.runs.other_subtask import subtasks_of
from benchmarks.runs.run import Epoch, Run, WrongResultError


def run_query(
    spark: SparkSession,
    case: Case,
    contender: Contender,
    files: InputFiles,
    expected: pd.DataFrame,
    directory: Path,
) -> Run:
    """Run a query over the files, check all its output, and return what was measured.

    Raises
    ------
    WrongResultError
        If the output or the number of epochs is wrong, or a checkpoint was aborted.
    """
    counts = case.epochs_of(contender)
    all_files = files.of(counts.all)
    source = link_files(all_files, directory / "source")
    clocks = CpuTimes.now()
    with Samples() as samples:
        query = start_query(spark, case, contender, source, directory)
        query.awaitTermination()
    machine = CpuUse.since(clocks)
    epochs = report_epochs(query)
    name = f"{case.title}: {contender.name}"
    if len(epochs) != len(all_files):
        raise WrongResultError(f"{name}: {len(epochs)} epochs for {len(all_files)} files")
    check_rows(name, read_output(spark, case, directory), expected, case.output)
    first = len(files.load) + counts.warm_up
    more = {}
    if case.measure_more is not None:
        more = dict(case.measure_more(FinishedRun(spark, case, contender, directory, query)))
    counted = epochs[first : first + counts.counted]
    run = Run.of_epochs(
        counted,
        rows=_rows(all_files[first : first + counts.counted]),
        machine=machine,
        cpu=samples.cpu_between(counted[0].started_at, counted[-1].ended_at),
        workers_peak_bytes=samples.workers_peak_bytes(counted[0].started_at),
        checkpoints=_checkpoints(name, query),
        more=more,
    )
    shutil.rmtree(directory, ignore_errors=True)
    return run


def _rows(files: Sequence[Path]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)


def start_query(
    spark: SparkSession,
    case: Case,
    contender: Contender,
    source: Path,
    directory: Path,
    checkpoint: str | None = None,
) -> StreamingQuery:
    """Start a query over all files of `source`, one per epoch; it ends by itself.

    Parameters
    ----------
    spark, case, contender
        What to start.
    source
        Directory of the input files.
    directory
        Where its output and its checkpointLocation are.
    checkpoint
        What a query of this library is restored from, if it does not begin or continue.
    """
    stream = spark.readStream.schema(case.schema).option("maxFilesPerTrigger", 1)
    with subtasks_of(contender.subtask):
        df = contender.query(stream.parquet(str(source)))
    is_ours = contender.kind is Kind.OURS
    writer: Any = ckpt.write_stream(df) if is_ours else df.writeStream
    if checkpoint is not None:
        writer = writer.restoreFrom(checkpoint)
    writer = writer.outputMode(contender.output_mode).trigger(availableNow=True)
    writer = writer.options(**contender.options, checkpointLocation=str(directory / "location"))
    output = directory / "output"
    if case.sink is Sink.FILES:
        writer = writer.format("parquet").option("path", str(output))
    else:
        writer = writer.foreachBatch(_write_batch(output))
    query: StreamingQuery = writer.start()
    return query


def _write_batch(output: Path) -> Any:
    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.mode("overwrite").parquet(str(output / f"epoch-{epoch:05d}"))

    return write


def read_output(spark: SparkSession, case: Case, directory: Path) -> pd.DataFrame:
    """Return all rows that a query has committed."""
    reader = spark.read
    if case.sink is Sink.BATCHES:
        reader = reader.option("recursiveFileLookup", "true")
    # Of a file sink, Spark reads exactly the files that the sink's log has committed.
    frame: pd.DataFrame = reader.parquet(str(directory / "output")).toArrow().to_pandas()
    return frame


def report_epochs(query: StreamingQuery) -> list[Epoch]:
    """Return Spark's report of every epoch that took a file."""
    progress: Sequence[Any] = query.recentProgress
    return [
        Epoch(
            number=report["batchId"],
            started_at=datetime.fromisoformat(report["timestamp"]).timestamp(),
            durations_ms=dict(report["durationMs"]),
        )
        for report in progress
        if _offsets(report, "startOffset") != _offsets(report, "endOffset")
    ]


def _offsets(report: Any, which: str) -> list[Any]:
    # Not by the number of rows: a filter that Parquet evaluates may drop all rows of a file.
    return [source[which] for source in report["sources"]]


def _checkpoints(name: str, query: StreamingQuery) -> int | None:
    """Return how many checkpoints a query of this library completed; none may be aborted."""
    if not isinstance(query, ckpt.CheckpointedQuery):
        return None
    rows = query.checkpoints().collect()
    aborted = [row.reason for row in rows if row.status != "completed"]
    if aborted:
        raise WrongResultError(f"{name}: checkpoints were aborted: {aborted}")
    return max((row.checkpoint_id for row in rows), default=0)
