"""W8: how long a row takes from source to sink, at a steady rate over a large state.

``python -m benchmarks.latency`` gives 1,000,000 keys a state, and then sends 1,000 rows a second
through a socket to a running count. A row carries the time at which it was due, so that rows which
wait because the query is busy count in full. It has arrived when the epoch's output has been
written. Contenders take turns, each in its own session. All rows must arrive once, with the
count of their key; a wrong row prints no figures and ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.machine.properties import describe_machine
from benchmarks.machine.samples import Samples
from benchmarks.runs.run import WrongResultError
from benchmarks.runs.session import Sessions, use_this_python

_NAME = "w8_latency"
_MAP_ONLY = "map only, no state"
_OUTPUT = "key long, n long, due_ms long"
_PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
_CPU = "cpu_percent"
_TICK_SECONDS = 0.01
_MOST_P99_MS = 800
_MOST_TIMES_MAP_ONLY = 2.0
_DEADLINE_SECONDS = 300.0
_FILLED_AT_ONCE = 25_000
_SEED = 808


class CountEachRow(StatefulProcessor):
    """A row out for each row in, with the count of its key so far."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        (n,) = self._count.get() or (0,)
        for due_ms in sorted(row.due_ms for row in rows):
            n += 1
            yield Row(key=key[0], n=n, due_ms=due_ms)
        self._count.update((n,))

    def close(self) -> None:
        pass


@dataclass
class _Arrivals:
    """When the rows of each epoch had been written."""

    output: Path
    ms_of_epoch: dict[int, int] = field(default_factory=dict)
    rows: int = 0

    def write(self, batch: DataFrame, epoch: int) -> None:
        """Write an epoch's rows; called by Spark."""
        path = self.output / f"epoch={epoch}"
        batch.write.mode("overwrite").parquet(str(path))
        self.ms_of_epoch[epoch] = time.time_ns() // 1_000_000
        self.rows += len(pd.read_parquet(path, columns=["n"]))

    def read(self) -> pd.DataFrame:
        """Return all rows with the time of their arrival."""
        rows = pd.read_parquet(self.output, columns=["key", "n", "due_ms", "epoch"])
        arrived = rows["epoch"].astype("int64").map(self.ms_of_epoch)
        return rows.assign(arrived_ms=arrived).drop(columns="epoch")


class _Source:
    """A server that sends lines ``key,due_ms`` to the one who connects."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._stream: socket.socket | None = None

    def accept(self) -> None:
        """Wait for the query."""
        self._stream, _ = self._server.accept()

    def send(self, keys: Sequence[int], due_ms: int) -> None:
        """Send rows that are due at the same time."""
        assert self._stream is not None
        self._stream.sendall("".join(f"{key},{due_ms}\n" for key in keys).encode())

    def close(self) -> None:
        """End the stream."""
        for each in (self._stream, self._server):
            if each is not None:
                each.close()


def _ours(backend: str) -> Callable[[DataFrame], Any]:
    def query(df: DataFrame) -> Any:
        counted = ckpt.key_by(df, "key").transformWithState(
            CountEachRow(), _OUTPUT, "Append", "None", uid="count"
        )
        return (
            ckpt.write_stream(counted)
            .option("spark.ckpt.state.backend.type", backend)
            .option("spark.ckpt.execution.checkpointing.interval", "10s")
        )

    return query


def _map_only(df: DataFrame) -> Any:
    def one_by_one(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame({"key": frame["key"], "n": 1, "due_ms": frame["due_ms"]})

    return df.mapInPandas(one_by_one, _OUTPUT).writeStream


_CONTENDERS: dict[str, Callable[[DataFrame], Any]] = {
    "pyspark_ckpt rows, rocksdb": _ours("rocksdb"),
    "pyspark_ckpt rows, heap": _ours("heap"),
    _MAP_ONLY: _map_only,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all contenders and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in _CONTENDERS}
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        sessions = Sessions(Path(directory), local_files_jar=options.local_files_jar)
        try:
            for repetition in range(options.repetitions):
                names = list(_CONTENDERS)
                names = names[repetition % len(names) :] + names[: repetition % len(names)]
                for name in names:
                    place = Path(directory) / f"{repetition}-{names.index(name)}"
                    measured[name].append(_run(sessions.new(), name, options, place))
            machine = describe_machine(sessions.last())
        except WrongResultError as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
        finally:
            sessions.stop()
    settings = {name: getattr(options, name) for name in ("keys", "rows_a_second", "seconds")}
    settings["local_files_jar"] = options.local_files_jar
    report = {"settings": settings, "machine": dict(machine), "ms": measured}
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / (_NAME + ("_with_jar" if options.local_files_jar else ""))
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".md").write_text(_markdown(report))
    print(_markdown(report))
    return 0


def _run(
    spark: SparkSession, name: str, options: argparse.Namespace, directory: Path
) -> dict[str, float]:
    """Run one contender; return percentiles of the milliseconds of rows, and of its epochs."""
    directory.mkdir()
    source, arrivals = _Source(), _Arrivals(directory / "output")
    socket_stream = spark.readStream.format("socket").options(host="127.0.0.1", port=source.port)
    fields = F.split("value", ",")
    rows = socket_stream.load().select(
        fields[0].cast("long").alias("key"), fields[1].cast("long").alias("due_ms")
    )
    accepting = threading.Thread(target=source.accept)
    accepting.start()
    query = (
        _CONTENDERS[name](rows)
        .option("checkpointLocation", str(directory / "location"))
        .foreachBatch(arrivals.write)
        .start()
    )
    samples = Samples()
    try:
        accepting.join(_DEADLINE_SECONDS)
        filled = 0
        # Spark's socket source takes time with the square of the rows that wait (measured).
        parts = max(1, options.keys // _FILLED_AT_ONCE)
        for part in np.array_split(np.arange(options.keys), parts):
            source.send(part.tolist(), 0)
            filled += len(part)
            _await_rows(query, arrivals, filled)
        with samples:
            sent = _send_steadily(source, options)
            _await_rows(query, arrivals, options.keys + len(sent))
    finally:
        query.stop()
        source.close()
    begin_s, end_s = _counted_from_ms(options, sent) / 1000, int(sent["due_ms"].max()) / 1000
    cpu = samples.cpu_between(begin_s, end_s)
    figures = _latencies(name, options, sent, arrivals)
    return figures if cpu is None else {**figures, _CPU: 100 * cpu.work / (end_s - begin_s)}


def _counted_from_ms(options: argparse.Namespace, sent: pd.DataFrame) -> int:
    return int(sent["due_ms"].min()) + int(1000 * options.warm_up_seconds)


def _send_steadily(source: _Source, options: argparse.Namespace) -> pd.DataFrame:
    """Send rows for warm-up and measurement, each at its time; return them."""
    chance = np.random.default_rng(_SEED)
    number = int((options.warm_up_seconds + options.seconds) * options.rows_a_second)
    keys = chance.integers(options.keys, size=number)
    at_once = max(1, round(options.rows_a_second * _TICK_SECONDS))
    began = time.time()
    due_of_row = np.empty(number, dtype=np.int64)
    for first in range(0, number, at_once):
        due = began + first / options.rows_a_second
        time.sleep(max(0.0, due - time.time()))
        due_of_row[first : first + at_once] = int(due * 1000)
        source.send(keys[first : first + at_once].tolist(), int(due * 1000))
    return pd.DataFrame({"key": keys, "due_ms": due_of_row})


def _await_rows(query: Any, arrivals: _Arrivals, rows: int) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while arrivals.rows < rows:
        if time.monotonic() > deadline or not query.isActive:
            raise WrongResultError(f"{arrivals.rows} of {rows} rows arrived: {query.exception()}")
        time.sleep(0.05)


def _latencies(
    name: str, options: argparse.Namespace, sent: pd.DataFrame, arrivals: _Arrivals
) -> dict[str, float]:
    rows = arrivals.read()
    found = rows[rows["due_ms"] > 0].sort_values(["key", "due_ms", "n"], ignore_index=True)
    expected = sent.sort_values(["key", "due_ms"], ignore_index=True)
    # Every key has had one row before.
    n = 1 if name == _MAP_ONLY else expected.groupby("key").cumcount() + 2
    expected = expected.assign(n=n)[["key", "n", "due_ms"]]
    try:
        pd.testing.assert_frame_equal(found[["key", "n", "due_ms"]], expected, check_dtype=False)
    except AssertionError as exc:
        raise WrongResultError(f"{name}: the output is not what was sent: {exc}") from exc
    counted = found[found["due_ms"] >= _counted_from_ms(options, sent)]
    ms = counted["arrived_ms"] - counted["due_ms"]
    epochs = counted["arrived_ms"].nunique()
    return {
        **{label: float(np.percentile(ms, percent)) for label, percent in _PERCENTS.items()},
        "epochs": float(epochs),
    }


def _markdown(report: dict[str, Any]) -> str:
    settings, measured = report["settings"], report["ms"]
    times = f"p99 / {_MAP_ONLY}"
    jar = ", Spark's small files by the jar of local_files_conf()"
    head = [
        "# W8: latency from source to sink",
        "",
        f"{settings['keys']:,} keys of state, {settings['rows_a_second']:,} rows a second for "
        f"{settings['seconds']:g} s, checkpoints every 10 s"
        + (jar if settings["local_files_jar"] else "")
        + ". A row's time is from when it was due to when its epoch's output had been written. "
        "Every row was compared with what was sent. CPU is that of driver, JVM and workers without "
        "the JVM's compilers, in percent of one. Medians of "
        f"{len(measured[_MAP_ONLY])} runs, lowest and highest in parentheses.",
        "",
        _line(["", *(f"{label}, ms" for label in _PERCENTS), "epochs", "CPU, %", times]),
        "|---|" + "---|" * (len(_PERCENTS) + 3),
    ]
    lines = []
    for name, runs in measured.items():
        cells = [_cell([run[label] for run in runs], 0) for label in _PERCENTS]
        ratios = [
            run["p99"] / other["p99"] for run, other in zip(runs, measured[_MAP_ONLY], strict=True)
        ]
        epochs = f"{np.median([run['epochs'] for run in runs]):.0f}"
        cpu = _cell([run[_CPU] for run in runs], 0) if _CPU in runs[0] else ""
        lines.append(_line([name, *cells, epochs, cpu, _cell(ratios, 2)]))
    target = (
        f"Target: p99 under {_MOST_P99_MS} ms, and at most {_MOST_TIMES_MAP_ONLY:g} times that "
        "of the same query without state."
    )
    machine = [f"* {name}: {value}" for name, value in report["machine"].items()]
    return "\n".join([*head, *lines, "", target, "", *machine, ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(values: Sequence[float], digits: int) -> str:
    middle, low, high = (f"{v:.{digits}f}" for v in (np.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latency",
        description="Measure the latency of rows from source to sink.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows-a-second", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="that are counted")
    parser.add_argument("--warm-up-seconds", type=float, default=20.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--local-files-jar", action="store_true", help="for all contenders")
    parser.add_argument("--results", type=Path, default=Path("bench-output"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
