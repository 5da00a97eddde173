"""What it costs a query that somebody looks at the console, or scrapes its metrics.

``python -m benchmarks.console_looking`` runs a running count on RocksDB, epoch after epoch without
a pause. Groups of epochs make pairs: in one group nobody looks, in the other somebody opens a page
every few seconds, opens the page of states, or Prometheus scrapes. Which one is first alternates.
Pairs in which nobody looks in both groups show the noise. The console is that of ``query.ui()``, a
process like that of ``pyspark-ckpt ui``, and each page and scrape must show what it should.

With ``--busy 2`` other programs keep the cores busy. What the console then gets is the
most that it can take from anybody.

The figure is the CPU time that the query's processes (driver, JVM, workers) take for a row: the
ratio within each pair, and the median of the ratios. Wall time depends on other programs too much.
The CPU time of the console itself is given per look. The first epochs of a group do not count.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from benchmarks.machine.cpu import CpuTimes, CpuUse, process_seconds
from benchmarks.machine.properties import describe_machine
from benchmarks.runs.input_files import write_files
from benchmarks.runs.run import WrongResultError
from benchmarks.runs.session import Sessions, use_this_python
from benchmarks.workloads import counting

_NAME = "console_looking"
NOBODY, PAGES, STATES, SCRAPES = "nobody looks", "pages", "page of states", "scrapes"
CONTENDERS = (NOBODY, PAGES, STATES, SCRAPES)
_TURN = 2
_WARM_UP = 20
_RESAMPLES = 4000


@dataclass
class _Group:
    """Epochs in which the same happened next to the query."""

    contender: str
    epochs: int = 0
    began: CpuTimes | None = None
    console_began_s: float = 0.0
    looker_began_s: float = 0.0
    looks_began: int = 0
    query_s: float = 0.0
    console_s: float = 0.0
    wall_s: float = 0.0
    looks: int = 0
    others_share: float = 0.0


@dataclass
class _Looker:
    """Opens what the running group asks for, every few seconds, and checks the answer."""

    seconds: float
    looks: dict[str, Callable[[], None]] = field(default_factory=dict)
    contender: str = NOBODY
    opened: int = 0
    cpu_s: float = 0.0
    failure: BaseException | None = None
    end: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            while not self.end.wait(self.seconds):
                contender = self.contender
                if contender != NOBODY:
                    self.looks[contender]()
                    self.opened += 1
                self.cpu_s = time.thread_time()
        except BaseException as exc:
            self.failure = exc


class _Groups:
    """The groups of a run, one after the other; told of each epoch before its rows are read."""

    def __init__(self, order: Sequence[str], epochs: int, looker: _Looker) -> None:
        self._order = order
        self._epochs = epochs
        self._looker = looker
        self.console = 0
        self.done: list[_Group] = []
        self._now: _Group | None = None

    def epoch(self, number: int) -> None:
        """Note that an epoch begins; the one after the last group ends it."""
        place = number - _WARM_UP - 1
        if place < 0:
            return
        if place % self._epochs == 0:
            self._end()
            if len(self.done) < len(self._order):
                self._now = _Group(self._order[len(self.done)])
                self._looker.contender = self._now.contender
        elif place % self._epochs == _TURN and self._now is not None:
            self._now.console_began_s = process_seconds(self.console)
            self._now.looker_began_s = self._looker.cpu_s
            self._now.looks_began = self._looker.opened
            self._now.began = CpuTimes.now()

    def _end(self) -> None:
        group, self._now = self._now, None
        if group is None:
            return
        use, ended = CpuUse.since(group.began), CpuTimes.now()
        assert use is not None
        assert ended is not None
        assert group.began is not None  # Linux
        group.epochs = self._epochs - _TURN
        group.wall_s = ended.wall - group.began.wall
        group.console_s = process_seconds(self.console) - group.console_began_s
        own_s = self._looker.cpu_s - group.looker_began_s
        group.query_s = use.own_seconds - group.console_s - own_s
        group.looks = self._looker.opened - group.looks_began
        group.others_share = use.others_share
        self.done.append(group)


def order_of(pairs: int) -> list[str]:
    """Return what happens in each group; two neighbours are a pair."""
    found: list[str] = []
    for number in range(pairs):
        for contender in CONTENDERS:
            pair = [NOBODY, contender]
            found += pair if number % 2 == 0 else pair[::-1]
    return found


def pair_ratios(groups: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """Return the ratio of each pair: somebody looks by nobody looks, by who looks.

    Parameters
    ----------
    groups
        What happened in each group, and its CPU seconds; two neighbours are a pair.
    """
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for first, second in zip(groups[::2], groups[1::2], strict=True):
        looked, nobody = (first, second) if first[0] != NOBODY else (second, first)
        found[looked[0]].append(looked[1] / nobody[1])
    return found


def median_with_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and an interval that has the true median in 95 of 100 runs."""
    generator = np.random.default_rng(7)
    drawn = generator.choice(np.asarray(ratios), (_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the query and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=12, help="of each kind")
    parser.add_argument("--epochs", type=int, default=10, help="of a group")
    parser.add_argument("--seconds", type=float, default=2.0, help="between two looks")
    parser.add_argument("--busy", type=int, default=0, help="programs that keep cores busy")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args(arguments)
    use_this_python()
    with (
        _busy_programs(options.busy),
        tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory,
    ):
        sessions = Sessions(Path(directory))
        try:
            report = _measure(sessions.new(), options, Path(directory))
        finally:
            sessions.stop()
    path = options.results / (f"{_NAME}_busy" if options.busy else _NAME)
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".md").write_text(_markdown(report))
    print(_markdown(report))
    return 0


@contextmanager
def _busy_programs(number: int) -> Iterator[None]:
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for each in programs:
            each.terminate()
            each.wait()


def _measure(spark: SparkSession, options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    order = order_of(options.pairs)
    frames = [counting.one_row_per_key(options.keys)] + [
        counting.random_rows(options.keys, options.rows, epoch)
        for epoch in range(1, _WARM_UP + 1 + len(order) * options.epochs + 1)
    ]
    write_files(directory / "source", frames)
    looker = _Looker(options.seconds)
    groups = _Groups(order, options.epochs, looker)
    _run(spark, directory, groups, looker)
    if looker.failure is not None:
        raise WrongResultError(f"a look failed: {looker.failure!r}")
    ratios = pair_ratios([(each.contender, each.query_s) for each in groups.done])
    return {
        "settings": {
            "keys": options.keys,
            "rows per epoch": options.rows,
            "epochs of a group": options.epochs - _TURN,
            "seconds between looks": options.seconds,
            "busy programs": options.busy,
        },
        "machine": describe_machine(spark),
        "contenders": {name: _figures(name, groups.done, options.rows) for name in CONTENDERS},
        "ratios": ratios,
    }


def _figures(name: str, groups: Sequence[_Group], rows: int) -> dict[str, float]:
    of = [each for each in groups if each.contender == name]
    looks = sum(each.looks for each in of)
    epochs = sum(each.epochs for each in of)
    wall_s = sum(each.wall_s for each in of)
    console_s = sum(each.console_s for each in of)
    return {
        "looks": looks,
        "epochs": epochs,
        "rows_per_second": rows * epochs / wall_s,
        "query_cpu_us_per_row": 1e6 * sum(each.query_s for each in of) / (rows * epochs),
        "console_cpu_ms_per_look": 1e3 * console_s / looks if looks else 0.0,
        "console_cores": console_s / wall_s,
        "others_share": float(np.mean([each.others_share for each in of])),
    }


def _run(spark: SparkSession, directory: Path, groups: _Groups, looker: _Looker) -> None:
    stream = spark.readStream.schema(counting.INPUT).option("maxFilesPerTrigger", 1)
    counts = ckpt.key_by(stream.parquet(str(directory / "source")), "key").transformWithState(
        counting.RowsCount(), counting.OUTPUT, "Append", "None", uid="count"
    )

    def write(batch: DataFrame, epoch: int) -> None:
        if looker.failure is not None:
            raise WrongResultError(f"a look failed: {looker.failure!r}")
        groups.epoch(epoch)
        batch.write.format("noop").mode("overwrite").save()

    query = (
        ckpt.write_stream(counts)
        .foreachBatch(write)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(directory / "all" / "location"))
        .option("spark.ckpt.execution.checkpointing.interval", "1ms")
        .option("spark.ckpt.metrics.reporters", "prometheus")
        .option("spark.ckpt.metrics.reporter.prometheus.port", "0")
        .start()
    )
    scraped = query.metricsReporters["prometheus"]
    console = query.ui()
    try:
        looker.looks.update(_looks(console.url, scraped))
        groups.console = _listener(console.url)
        thread = threading.Thread(target=looker.run)
        thread.start()
        query.awaitTermination()
        looker.end.set()
        thread.join()
    finally:
        console.close()


def _listener(url: str) -> int:
    """Return the id of the process that serves an address: a child of this one."""
    port = urlsplit(url).port
    (found,) = (
        child.pid
        for child in psutil.Process().children()
        if any(each.laddr.port == port for each in child.net_connections())
    )
    return int(found)


def _looks(console: str, metrics: str) -> dict[str, Callable[[], None]]:
    start = _page(console)
    (key,) = set(re.findall(r"/q/([0-9a-f]{16})/", start)) or {""}
    pages = cycle([("", "location"), (f"q/{key}/", "slowest"), (f"q/{key}/files", "Data files")])

    def open_page() -> None:
        address, shown = next(pages)
        _check(_page(console + address), shown)

    return {
        PAGES: open_page,
        STATES: lambda: _check(_page(f"{console}q/{key}/state"), "count"),
        SCRAPES: lambda: _check(_page(metrics), "pyspark_ckpt_epochs_total"),
    }


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def _check(page: str, shown: str) -> None:
    if shown not in page:
        raise WrongResultError(f"the page does not show {shown!r}")


def _markdown(report: dict[str, Any]) -> str:
    settings = report["settings"]
    busy = f"{settings['busy programs']} other programs kept cores busy."
    rows = ""
    for name, each in report["contenders"].items():
        ratios = report["ratios"][name]
        median, low, high = median_with_interval(ratios)
        rows += (
            f"| {name} | {each['looks']:.0f} | {len(ratios)} | {median - 1:+.2%} "
            f"| {low - 1:+.2%} to {high - 1:+.2%} | {each['query_cpu_us_per_row']:.1f} µs "
            f"| {each['console_cpu_ms_per_look']:.0f} ms | {each['console_cores']:.1%} "
            f"| {each['rows_per_second']:,.0f} | {each['others_share']:.0%} |\n"
        )
    machine = "".join(f"* {name}: {value}\n" for name, value in report["machine"].items())
    return (
        "# A query while somebody looks\n\n"
        f"{settings['keys']:,} keys, {settings['rows per epoch']:,} rows an epoch, a look every "
        f"{settings['seconds between looks']:g} seconds. A pair is two groups of "
        f"{settings['epochs of a group']} epochs, one after the other; in one of them nobody "
        f"looks. The first row has pairs in which nobody looks at all: it is the noise. {busy}\n\n"
        "| who looks | looks | pairs | more CPU of the query per row, median | 95 % interval "
        "| CPU of the query per row | CPU of the console per look | of one core | rows/s "
        "| other programs' CPU |\n|---|---|---|---|---|---|---|---|---|---|\n"
        f"{rows}\n{machine}"
    )


if __name__ == "__main__":
    sys.exit(main())
