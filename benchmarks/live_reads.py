"""How long a live read takes, and how much it slows down the query.

``python -m benchmarks.live_reads`` runs a running count over 1,000,000 keys on RocksDB, epoch after
epoch without a pause. In every second group of epochs, a thread of the driver reads the state of
random keys, so many a second. The CPU seconds of epochs with and without reads are compared,
because the time of an epoch also depends on other programs. Each value is compared with what pandas
computes for its epoch, and must be of the newest epoch that was committed when the read began, or
of a newer one. The first two epochs of a group are not counted: in them the reader catches up with
the epochs that it left out, which the first reads show.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from benchmarks.machine.cpu import CpuTimes, CpuUse
from benchmarks.machine.properties import describe_machine
from benchmarks.runs.input_files import write_files
from benchmarks.runs.run import Epoch, WrongResultError
from benchmarks.runs.session import Sessions, use_this_python
from benchmarks.runs.spark_run import report_epochs
from benchmarks.workloads import counting

_NAME = "live_reads"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_DEFAULT_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_SUBTASKS = 2
_GROUP = 10
"""So many epochs are with reads, then so many without."""

_TURN = 2
"""So many epochs of a group are not counted."""

_WARM_UP = 5


@dataclass
class _Reads:
    """What the reading thread saw: the milliseconds and result of each read."""

    ms: list[float] = field(default_factory=list)
    found: list[tuple[int, int, Any]] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    failure: BaseException | None = None


class _Group:
    """Epochs with or without reads, and the CPU seconds of all processes in those that count."""

    def __init__(self, *, is_read: bool) -> None:
        self.is_read = is_read
        self.epochs: list[int] = []
        self.use: CpuUse | None = None
        self._left_out = _TURN
        self._clocks: CpuTimes | None = None

    def add(self, epoch: int) -> None:
        """Count an epoch that begins."""
        if self._left_out:
            self._left_out -= 1
            return
        if not self.epochs:
            self._clocks = CpuTimes.now()
        self.epochs.append(epoch)

    def end(self) -> None:
        """Read the clocks."""
        self.use = CpuUse.since(self._clocks)


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
    path = options.results / _NAME
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".md").write_text(_markdown(report))
    print(_markdown(report))
    return 0


def _measure(spark: SparkSession, options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    frames = [counting.one_row_per_key(options.keys)] + [
        counting.random_rows(options.keys, options.rows, epoch)
        for epoch in range(1, _WARM_UP + options.epochs + 1)
    ]
    files = write_files(directory / "source", frames)
    query, reads, groups = _run(spark, options, directory)
    if reads.failure is not None:
        raise WrongResultError(f"a read failed: {reads.failure!r}")
    epochs = report_epochs(query)
    if len(epochs) != len(files):
        raise WrongResultError(f"{len(epochs)} epochs for {len(files)} files")
    _check(frames, reads)
    with_reads, without = (
        [
            each
            for each in epochs
            for group in groups
            if group.is_read == is_read and each.number in group.epochs
        ]
        for is_read in (True, False)
    )
    return {
        "settings": {"keys": options.keys, "rows per epoch": options.rows, "reads": len(reads.ms)},
        "reads_a_second": options.reads_a_second,
        "machine": describe_machine(spark),
        "first_read_of_a_subtask_ms": reads.first_ms,
        "read_ms": {
            name: float(np.percentile(reads.ms, percent))
            for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
        },
        "cpu_ms_of_a_read": 1000 * reads.cpu_seconds / (len(reads.ms) + len(reads.first_ms)),
        "cpu_seconds_of_an_epoch_with_reads": _cpu_of_an_epoch(groups, is_read=True),
        "cpu_seconds_of_an_epoch_without": _cpu_of_an_epoch(groups, is_read=False),
        "epoch_ms_with_reads": _median(with_reads),
        "epoch_ms_without": _median(without),
        "epochs_with_reads": len(with_reads),
        "epochs": len(with_reads) + len(without),
    }


def _median(epochs: Sequence[Epoch]) -> float:
    return float(np.median([each.ms for each in epochs]))


def _cpu_of_an_epoch(groups: Sequence[_Group], *, is_read: bool) -> float | None:
    """Return the median of groups; the CPU of a group is known once the next one begins."""
    seconds = [
        group.use.own_seconds / len(group.epochs)
        for group in groups
        if group.is_read == is_read and group.use is not None
    ]
    return float(np.median(seconds)) if seconds else None


def _run(
    spark: SparkSession, options: argparse.Namespace, directory: Path
) -> tuple[ckpt.CheckpointedQuery, _Reads, list[_Group]]:
    stream = spark.readStream.schema(counting.INPUT).option("maxFilesPerTrigger", 1)
    counts = ckpt.key_by(stream.parquet(str(directory / "source")), "key").transformWithState(
        counting.RowsCount(), counting.OUTPUT, "Append", "None", uid="count"
    )
    may_read = threading.Event()
    groups: list[_Group] = []

    def write(batch: DataFrame, epoch: int) -> None:
        if epoch > _WARM_UP and (epoch - _WARM_UP - 1) % _GROUP == 0:
            if groups:
                groups[-1].end()
            groups.append(_Group(is_read=len(groups) % 2 == 1))
            (may_read.set if groups[-1].is_read else may_read.clear)()
        if groups:
            groups[-1].add(epoch)
        batch.write.format("noop").mode("overwrite").save()

    spark.conf.set(_PROVIDER, _DEFAULT_PROVIDER)
    query = (
        ckpt.write_stream(counts)
        .foreachBatch(write)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(directory / "location"))
        .option("spark.ckpt.state.backend.type", options.backend)
        .start()
    )
    reads = _Reads()
    end = threading.Event()
    reader = threading.Thread(target=_read, args=(query, options, may_read, end, reads))
    reader.start()
    query.awaitTermination()
    end.set()
    may_read.set()
    reader.join()
    return query, reads, groups


def _read(
    query: ckpt.CheckpointedQuery,
    options: argparse.Namespace,
    may_read: threading.Event,
    end: threading.Event,
    reads: _Reads,
) -> None:
    chance = np.random.default_rng(1)
    state = query.state("count", "count")
    try:
        while may_read.wait() and not end.is_set():
            reads.first_ms += _first_reads(state)
            while may_read.is_set() and not end.wait(1 / options.reads_a_second):
                key = int(chance.integers(options.keys))
                began = time.perf_counter()
                found = state.get(key)
                reads.ms.append(1000 * (time.perf_counter() - began))
                reads.found.append((key, found.epoch, found.value))
    except ckpt.errors.StateUseError:
        return  # the query has ended
    except BaseException as exc:
        reads.failure = exc
    finally:
        reads.cpu_seconds = time.thread_time()


def _first_reads(state: ckpt.results.LiveState) -> list[float]:
    """Read keys of each subtask after a pause, in which its copy may have become too old."""
    slowest = []
    for key in range(64):
        began = time.perf_counter()
        state.get(key)
        slowest.append(1000 * (time.perf_counter() - began))
    return sorted(slowest, reverse=True)[:_SUBTASKS]


def _check(frames: Sequence[pd.DataFrame], reads: _Reads) -> None:
    """Compare each value with the count and sum of its key up to its epoch."""
    if not reads.found:
        raise WrongResultError("nothing was read")
    rows = pd.concat(frame.assign(epoch=epoch) for epoch, frame in enumerate(frames))
    wanted_keys = {key for key, _, _ in reads.found}
    of_key = dict(iter(rows[rows["key"].isin(wanted_keys)].groupby("key")))
    for key, epoch, value in reads.found:
        until = of_key[key][of_key[key]["epoch"] <= epoch]
        expected = {"n": len(until), "total": int(until["value"].sum())}
        if value != expected:
            raise WrongResultError(f"key {key}, epoch {epoch}: {value} instead of {expected}")


def _markdown(report: dict[str, Any]) -> str:
    ms, settings = report["read_ms"], report["settings"]
    slower = report["epoch_ms_with_reads"] / report["epoch_ms_without"] - 1
    first = ", ".join(f"{each:.0f}" for each in report["first_read_of_a_subtask_ms"])
    what = (
        f"{settings['keys']:,} keys, {settings['rows per epoch']:,} rows an epoch, "
        f"{settings['reads']:,} reads of random keys, {report['reads_a_second']} a second. "
        "Every value was compared with what pandas computes."
    )
    with_reads = report["epochs_with_reads"]
    rows = [
        ("`get`, median", f"{ms['p50']:.1f} ms", ""),
        ("`get`, p99", f"{ms['p99']:.1f} ms", "20 ms"),
        ("`get`, slowest", f"{ms['max']:.1f} ms", ""),
        ("first `get` of each subtask in each group of epochs", f"{first} ms", ""),
        (
            f"median of {with_reads} epochs with reads",
            f"{report['epoch_ms_with_reads']:.0f} ms",
            "",
        ),
        (
            f"median of {report['epochs'] - with_reads} epochs without reads",
            f"{report['epoch_ms_without']:.0f} ms",
            "",
        ),
        ("slower with reads", f"{100 * slower:+.1f} %", "2 %"),
        (
            "CPU of a read, its part of following the epochs included",
            f"{report['cpu_ms_of_a_read']:.2f} ms",
            "",
        ),
        *_cpu_rows(report),
    ]
    table = [f"| {name} | {measured} | {target} |" for name, measured, target in rows]
    machine = [f"* {name}: {value}" for name, value in report["machine"].items()]
    head = ["# Live reads", "", what, "", "| figure | measured | target |", "|---|---|---|"]
    return "\n".join([*head, *table, "", *machine, ""])


def _cpu_rows(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    with_reads = report["cpu_seconds_of_an_epoch_with_reads"]
    without = report["cpu_seconds_of_an_epoch_without"]
    if with_reads is None or without is None:
        return []
    return [
        ("CPU seconds of an epoch with reads", f"{with_reads:.3f}", ""),
        ("CPU seconds of an epoch without", f"{without:.3f}", ""),
        ("more CPU with reads", f"{100 * (with_reads / without - 1):+.1f} %", "2 %"),
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live_reads",
        description="Measure live reads of a busy query.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=20_000, help="in an epoch")
    parser.add_argument("--epochs", type=int, default=60, help="epochs that are counted")
    parser.add_argument("--reads-a-second", type=int, default=100)
    parser.add_argument("--backend", default="rocksdb")
    parser.add_argument("--results", type=Path, default=Path("bench-output"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
