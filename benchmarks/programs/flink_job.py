"""What the programs for Flink share: input, settings, the timed job, and its output.

PyFlink comes without Parquet, so the rows are first written as CSV, which is not timed. A job runs
over a single row first, to measure the start and end of any job.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pyflink.common import Configuration, Encoder
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink, RollingPolicy
from pyflink.table import StreamTableEnvironment

CHECKPOINT_INTERVAL = "10 s"
_PARALLELISM = 2
_ROW = re.compile(r"([+-][IUDA]+)\[(.*)\]")


@dataclass(frozen=True, slots=True)
class Request:
    """The benchmark's request to a program."""

    files: Sequence[Path]
    output: Path
    scratch: Path
    arguments: dict[str, Any]

    @classmethod
    def read(cls) -> Request:
        """Return the request on the command line."""
        given = json.loads(sys.argv[1])
        files = [Path(file) for file in given.pop("files")]
        return cls(files, Path(given.pop("output")), Path(given.pop("scratch")), given)


Build = Callable[[StreamTableEnvironment], DataStream]
"""From the environment, which has the table `input`, to the stream that is written."""


def run(
    request: Request, columns: str, build: Build, output_columns: Sequence[str], *, in_order: bool
) -> None:
    """Run a job over the request's files; write its output as Parquet and print the figures.

    Parameters
    ----------
    request
        From the command line.
    columns
        DDL of the input, computed columns and watermark included.
    build
        The job.
    output_columns
        Names of the fields of its rows.
    in_order
        Whether one reader must see all rows in the order of the files.
    """
    rows = pd.concat([pd.read_parquet(file) for file in request.files], ignore_index=True)
    first = rows.head(1)
    _run_job(request, first, "cold", columns, build, in_order=in_order)
    idle_ms, idle_s = _run_job(request, first, "idle", columns, build, in_order=in_order)
    taken_ms, taken_s = _run_job(request, rows, "all", columns, build, in_order=in_order)
    written = _read(request.scratch / "all" / "output", output_columns)
    written.to_parquet(request.output / "output.parquet", index=False)
    # Of a job too short to be measured, no more than half is taken for its start and end.
    seconds = max(taken_ms - idle_ms, taken_ms / 2) / 1000
    answer = {"rows": len(rows), "seconds": seconds, "idle_seconds": idle_ms / 1000}
    print(json.dumps({**answer, "spans_s": {"idle": idle_s, "all": taken_s}}))


def _run_job(
    request: Request, rows: pd.DataFrame, name: str, columns: str, build: Build, *, in_order: bool
) -> tuple[int, tuple[float, float]]:
    """Return the job's own milliseconds, and its begin and end in seconds since 1970."""
    directory = request.scratch / name
    source = directory / "input"
    source.mkdir(parents=True)
    readers = 1 if in_order else _PARALLELISM  # a reader takes whole files
    for number in range(readers):
        rows.iloc[number::readers].to_csv(source / f"{number}.csv", index=False, header=False)
    # The interpreter inside Flink's process does not know the virtual environment.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    settings = _settings(request, directory)
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    environment.set_parallelism(_PARALLELISM)
    tables = StreamTableEnvironment.create(environment)
    tables.execute_sql(
        f"CREATE TABLE input ({columns}) WITH ('connector' = 'filesystem', "
        f"'path' = 'file://{source}', 'format' = 'csv')"
    )
    sink = (
        FileSink.for_row_format(f"file://{directory / 'output'}", Encoder.simple_string_encoder())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    build(tables).sink_to(sink)
    began_s = time.time()
    taken_ms = int(environment.execute(name).get_net_runtime())
    return taken_ms, (began_s, time.time())


def _settings(request: Request, directory: Path) -> Configuration:
    settings = Configuration()
    for key, value in {
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "state.backend.type": request.arguments["backend"],
        "taskmanager.memory.managed.size": "1g",
        "taskmanager.numberOfTaskSlots": str(_PARALLELISM),
        "execution.checkpointing.interval": CHECKPOINT_INTERVAL,
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": f"file://{directory / 'checkpoints'}",
        "restart-strategy.type": "none",
        "table.local-time-zone": "UTC",
        **request.arguments.get("settings", {}),
    }.items():
        settings.set_string(key, value)
    return settings


def _read(directory: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows that a job has committed, without retracted ones."""
    found = []
    for file in sorted(directory.rglob("part-*")):
        for line in file.read_text(encoding="utf-8").splitlines():
            match = _ROW.fullmatch(line)
            if match is None:
                raise ValueError(f"{file}: {line!r} is no row")
            if match[1] in ("+I", "+U", "+UA"):
                found.append([int(value) for value in match[2].split(", ")])
    return pd.DataFrame(found, columns=list(columns))
