"""``python -m benchmarks.stored_memory``: the memory of what reads or rewrites stored state.

Each step runs over a state of 1 and of 10 million keys. Workers and this process are looked at
while it runs. It should not depend on the size of the state. The result of each step is
read back; a wrong one ends the benchmark with status 1 and without figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from benchmarks.cost_per_key import (
    SUBTASKS,
    Newest,
    WrongStateError,
    check_savepoint,
    rows_of,
    started,
    total_of,
    with_an_epoch,
)
from benchmarks.import_state import StoppedQuery, WrongImportError
from benchmarks.machine.cpu import own_processes
from benchmarks.machine.process_memory import taken_bytes
from benchmarks.machine.properties import describe_machine
from benchmarks.reports.markdown_table import table
from benchmarks.runs.session import Sessions, use_this_python

_CHECKED_IN = Path(__file__).parent / "results"
_MILLIONS = (1, 10)
_MIB = 1 << 20
_EVERY_S = 0.05
_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass
class Peaks:
    """The most that the workers together, and this process, allocated in each step, in MiB."""

    by_step: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Look at both while a step runs. This process counts by what it grew."""
        ended, most = threading.Event(), {"workers": 0, "driver": 0}
        before = taken_bytes(os.getpid())[0]

        def look() -> None:
            while not ended.wait(_EVERY_S):
                workers = sum(taken_bytes(pid)[0] for pid in own_processes() if _is_worker(pid))
                most["workers"] = max(most["workers"], workers)
                most["driver"] = max(most["driver"], taken_bytes(os.getpid())[0] - before)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        self.by_step[step] = {name: size / _MIB for name, size in most.items()}


def _is_worker(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # it ended just now


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    figures: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        sessions = Sessions(Path(directory))
        try:
            spark = sessions.new()
            spark.conf.set(_PARTITIONS, SUBTASKS)
            _measure(spark, Path(directory) / "warm-up", "heap", 1_000)
            for backend in options.backends:
                figures[backend] = {}
                for millions in options.millions:
                    place = Path(directory) / "run"
                    keys = int(millions * 1_000_000)
                    measured = figures[backend][f"{millions:g}"] = _measure(
                        spark, place, backend, keys
                    )
                    shutil.rmtree(place)
                    print(backend, millions, measured, flush=True)
            machine = describe_machine(spark)
        except (WrongStateError, WrongImportError) as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
        finally:
            sessions.stop()
    text = _report(figures, machine)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "stored_memory.md").write_text(text, encoding="utf-8")
    results = {"machine": machine, "mib": figures}
    (options.results / "stored_memory.json").write_text(json.dumps(results, indent=2) + "\n")
    return 0


def _measure(
    spark: SparkSession, base: Path, backend: str, keys: int
) -> dict[str, dict[str, float]]:
    """Return the memory of each step."""
    spark.conf.set("spark.ckpt.state.backend.type", backend)
    peaks, source, saved = Peaks(), str(base / "in"), str(base / "saved")
    rows_of(spark, keys).repartition(SUBTASKS).write.parquet(source)

    def check(path: str, step: str, most: int = keys) -> None:
        check_savepoint(path, most, total_of(most), f"{backend}, {keys} keys, {step}")

    with peaks.of("bootstrap"):
        rows = spark.read.parquet(source)
        new = ckpt.edit_state(spark=spark).add_operator("op", Newest(), "k long")
        bootstrapped = new.put("op", "newest", rows).save(saved).path
    check(bootstrapped, "bootstrap")
    query = started(spark, source, base / "location")
    try:
        query.processAllAvailable()
        for form in ("NATIVE", "CANONICAL"):
            with peaks.of(f"savepoint, {form.lower()}"):
                savepoint = query.triggerSavepoint(saved, form).path
            check(savepoint, "savepoint")
    finally:
        query.stop()
    spark.range(1).selectExpr("id k", "0L n", "'' s").write.mode("append").parquet(source)
    forks: list[tuple[str, int, int | None]] = [
        ("restore, same parallelism", SUBTASKS, None),
        ("restore, 3 subtasks, without a shuffle", 3, None),
        ("restore, other key groups, with a shuffle", SUBTASKS, 64),
    ]
    for step, parallelism, key_groups in forks:
        spark.conf.set(_PARTITIONS, parallelism)
        with peaks.of(step):
            fork = started(spark, source, base / "fork", savepoint, key_groups)
        try:
            taken = with_an_epoch(fork).triggerSavepoint(saved).path
        finally:
            fork.stop()
        check(taken, step)
        shutil.rmtree(base / "fork")
    spark.conf.set(_PARTITIONS, SUBTASKS)
    erased = spark.range(keys - 1000, keys).selectExpr("id k")
    with peaks.of("edit, 1,000 keys erased"):
        edited = ckpt.edit_state(savepoint, spark=spark).erase("op", erased).save(saved).path
    check(edited, "edit", keys - 1000)
    with peaks.of("all entries"):
        check(savepoint, "all entries")
    with peaks.of("one key"), ckpt.location(savepoint).state() as snapshot:
        found = snapshot.state("op", "newest").get(keys // 2)
    if found["n"] != keys // 2 % 1000:
        raise WrongStateError(f"{backend}, {keys} keys: one key has {found}")
    with peaks.of("difference"):
        counts = ckpt.location(savepoint).diff(edited).counts[["added", "removed", "changed"]]
    if counts.values.tolist() != [[0, 1000, 0]]:
        raise WrongStateError(f"{backend}, {keys} keys: the difference is {counts}")
    if backend == "rocksdb":  # a query of Spark's own has no backend of ours
        native = StoppedQuery(spark, base / "native", keys)
        with peaks.of("import of a query of Spark's own"):
            native.imported()
        native.check()
    return peaks.by_step


def _report(
    figures: dict[str, dict[str, dict[str, dict[str, float]]]], machine: dict[str, Any]
) -> str:
    sizes = list(next(iter(figures.values())))
    heads = [f"{process}, {size} M" for process in ("workers", "driver") for size in sizes]
    rows = [["backend", "step", *heads]]
    for backend, by_size in figures.items():
        for step in by_size[sizes[0]]:
            cells = [
                f"{by_size[size][step][process]:.0f}"
                for process in ("workers", "driver")
                for size in sizes
            ]
            rows.append([backend, step, *cells])
    host = ", ".join(f"{name} {value}" for name, value in machine.items())
    shown = "\n".join(table(rows))
    return (
        "# Memory of reads and rewrites of stored state\n\n"
        "`python -m benchmarks.stored_memory`: MiB, the most that was allocated (`RssAnon`), by "
        f"the size of the state in million keys. A long and a text of 40 characters per key, "
        f"{SUBTASKS} subtasks. Of the workers it is what all of them have, with Python and the "
        "library; what they share counts in each. Of the driver it is by how much this process "
        "grew. After each step the keys and the sum of their numbers were compared.\n\n"
        f"{shown}\n\nMachine: {host}.\n"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored_memory", description=__doc__)
    parser.add_argument("--millions", type=float, nargs="+", default=_MILLIONS)
    parser.add_argument("--backends", nargs="+", default=("heap", "rocksdb"))
    parser.add_argument("--results", type=Path, default=_CHECKED_IN)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
