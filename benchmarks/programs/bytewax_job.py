"""What the programs for Bytewax share: two processes, state in memory, recovery in SQLite.

A snapshot of the changes is written every ten seconds. As with Flink, a dataflow runs over a
single row first, to measure its start and its end.
"""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pandas as pd
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import KeyedStream
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

_PROCESSES = 2
_BATCH_ROWS = 10_000
_SNAPSHOT_INTERVAL = timedelta(seconds=10)
_PROCESS = "--process"


@dataclass(frozen=True, slots=True)
class Job:
    """A dataflow over rows of a key and a number, whose rows out are tuples of numbers.

    Parameters
    ----------
    script
        The file that calls :meth:`run`, which each of the processes runs.
    value
        The column next to the key.
    output
        The names of the columns after the key.
    build
        From the arguments and the keyed rows to the keyed output.
    in_order
        Whether all rows of a key must be read by one process, in their order.
    """

    script: str
    value: str
    output: Sequence[str]
    build: Callable[[dict[str, Any], KeyedStream[Any]], KeyedStream[Any]]
    in_order: bool

    def run(self) -> None:
        """Do what the command line asks for: time the dataflow, or be one of its processes."""
        if sys.argv[1] == _PROCESS:
            number, arguments, directory, *addresses = sys.argv[2:]
            self._work(int(number), json.loads(arguments), Path(directory), addresses)
            return
        request = json.loads(sys.argv[1])
        rows = pd.concat(map(pd.read_parquet, request["files"]), ignore_index=True)
        scratch = Path(request["scratch"])
        spans_s = {
            "idle": self._run(request, rows.head(1), scratch / "idle"),
            "all": self._run(request, rows, scratch / "all"),
        }
        idle_seconds, taken_seconds = (end - begin for begin, end in spans_s.values())
        outputs = [
            pd.read_csv(path, header=None, names=["key", *self.output])
            for path in sorted((scratch / "all" / "output").glob("*.csv"))
        ]
        written = pd.concat([output for output in outputs if len(output)], ignore_index=True)
        written.to_parquet(Path(request["output"]) / "output.parquet", index=False)
        # Of a run too short to be measured, no more than half is taken for its start and end.
        seconds = max(taken_seconds - idle_seconds, taken_seconds / 2)
        print(
            json.dumps(
                {
                    "rows": len(rows),
                    "seconds": seconds,
                    "idle_seconds": idle_seconds,
                    "spans_s": spans_s,
                }
            )
        )

    def _run(
        self, arguments: dict[str, Any], rows: pd.DataFrame, directory: Path
    ) -> tuple[float, float]:
        """Run the dataflow over rows; return its begin and end in seconds since 1970."""
        for name in ("input", "output", "recovery"):
            (directory / name).mkdir(parents=True)
        places = rows["key"] if self.in_order else rows.index.to_series()
        for number in range(_PROCESSES):
            part = rows[places % _PROCESSES == number]
            part.to_parquet(directory / "input" / f"{number}.parquet", index=False)
        init_db_dir(directory / "recovery", _PROCESSES)
        addresses = [f"127.0.0.1:{_free_port()}" for _ in range(_PROCESSES)]
        command = [sys.executable, self.script, _PROCESS]
        rest = [json.dumps(arguments), str(directory), *addresses]
        began_s = time.time()
        processes = [
            subprocess.Popen([*command, str(number), *rest]) for number in range(_PROCESSES)
        ]
        statuses = [process.wait() for process in processes]
        if any(statuses):
            raise RuntimeError(f"a process of the dataflow ended with {statuses}")
        return began_s, time.time()

    def _work(
        self, process: int, arguments: dict[str, Any], directory: Path, addresses: list[str]
    ) -> None:
        flow = Dataflow("benchmark")
        rows = op.input("input", flow, _Source(directory / "input", self.value))
        op.output("output", self.build(arguments, rows), _Sink(directory / "output"))
        recovery = RecoveryConfig(directory / "recovery")
        cluster_main(
            flow, addresses, process, epoch_interval=_SNAPSHOT_INTERVAL, recovery_config=recovery
        )


class _Rows(StatefulSourcePartition):
    def __init__(self, path: Path, value: str, position: int | None) -> None:
        frame = pd.read_parquet(path)
        self._rows = list(zip(map(str, frame["key"].tolist()), frame[value].tolist(), strict=True))
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
    def __init__(self, directory: Path, value: str) -> None:
        self._directory = directory
        self._value = value

    def list_parts(self) -> list[str]:
        return sorted(path.name for path in self._directory.glob("*.parquet"))

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> _Rows:
        return _Rows(self._directory / for_part, self._value, resume_state)


class _File(StatelessSinkPartition):
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)

    def write_batch(self, items: list[Any]) -> None:
        self._writer.writerows((key, *values) for key, values in items)

    def close(self) -> None:
        self._file.close()


class _Sink(DynamicSink):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _File:
        return _File(self._directory / f"{worker_index}.csv")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
