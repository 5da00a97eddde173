"""A running count and sum per key in Bytewax: two processes, state in memory, recovery in SQLite.

A snapshot of what changed is written every ten seconds. As with Flink, the dataflow runs over a
single row first: what that takes is its start and its end.
"""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pandas as pd
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

_PROCESSES = 2
_BATCH_ROWS = 10_000
_SNAPSHOT_INTERVAL = timedelta(seconds=10)


class _Rows(StatefulSourcePartition):
    def __init__(self, path: Path, position: int | None) -> None:
        frame = pd.read_parquet(path)
        self._rows = list(
            zip(map(str, frame["key"].tolist()), frame["value"].tolist(), strict=True)
        )
        self._position = position or 0

    def next_batch(self) -> Iterable[Any]:
        if self._position >= len(self._rows):
            raise StopIteration
        batch = self._rows[self._position : self._position + _BATCH_ROWS]
        self._position += len(batch)
        return batch

    def snapshot(self) -> int:
        return self._position


class _Source(FixedPartitionedSource):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def list_parts(self) -> list[str]:
        return sorted(path.name for path in self._directory.glob("*.parquet"))

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> _Rows:
        return _Rows(self._directory / for_part, resume_state)


class _Count(StatefulBatchLogic):
    def __init__(self, state: tuple[int, int] | None) -> None:
        self._n, self._total = state or (0, 0)

    def on_batch(self, values: list[int]) -> tuple[Iterable[tuple[int, int]], bool]:
        self._n += len(values)
        self._total += sum(values)
        return [(self._n, self._total)], StatefulBatchLogic.RETAIN

    def snapshot(self) -> tuple[int, int]:
        return self._n, self._total


class _File(StatelessSinkPartition):
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)

    def write_batch(self, items: list[Any]) -> None:
        self._writer.writerows((key, *counted) for key, counted in items)

    def close(self) -> None:
        self._file.close()


class _Sink(DynamicSink):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _File:
        return _File(self._directory / f"{worker_index}.csv")


def _work(directory: Path, addresses: list[str], process: int) -> None:
    """Run one process of the dataflow."""
    flow = Dataflow("count")
    rows = op.input("input", flow, _Source(directory / "input"))
    counted = op.stateful_batch("count", rows, _Count)
    op.output("output", counted, _Sink(directory / "output"))
    recovery = RecoveryConfig(directory / "recovery")
    cluster_main(
        flow, addresses, process, epoch_interval=_SNAPSHOT_INTERVAL, recovery_config=recovery
    )


def _run(rows: pd.DataFrame, directory: Path) -> float:
    """Run the dataflow over rows and return the seconds it took."""
    for name in ("input", "output", "recovery"):
        (directory / name).mkdir(parents=True)
    for number in range(_PROCESSES):
        part = rows.iloc[number::_PROCESSES]
        part.to_parquet(directory / "input" / f"{number}.parquet", index=False)
    init_db_dir(directory / "recovery", _PROCESSES)
    addresses = [f"127.0.0.1:{_free_port()}" for _ in range(_PROCESSES)]
    began_at = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--process", str(number), str(directory), *addresses]
        )
        for number in range(_PROCESSES)
    ]
    statuses = [process.wait() for process in processes]
    if any(statuses):
        raise RuntimeError(f"a process of the dataflow ended with {statuses}")
    return time.monotonic() - began_at


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def main() -> None:
    """Run what the command line asks for."""
    request = json.loads(sys.argv[1])
    rows = pd.concat([pd.read_parquet(file) for file in request["files"]], ignore_index=True)
    scratch = Path(request["scratch"])
    idle_seconds = _run(rows.head(1), scratch / "idle")
    taken_seconds = _run(rows, scratch / "all")
    outputs = [
        pd.read_csv(path, header=None, names=["key", "n", "total"])
        for path in sorted((scratch / "all" / "output").glob("*.csv"))
    ]
    written = pd.concat([output for output in outputs if len(output)], ignore_index=True)
    written.to_parquet(Path(request["output"]) / "output.parquet", index=False)
    # Of a run too short to be measured, no more than half is taken for its start and end.
    seconds = max(taken_seconds - idle_seconds, taken_seconds / 2)
    print(json.dumps({"rows": len(rows), "seconds": seconds, "idle_seconds": idle_seconds}))


if __name__ == "__main__":
    if sys.argv[1] == "--process":
        _work(Path(sys.argv[3]), sys.argv[4:], int(sys.argv[2]))
    else:
        main()
