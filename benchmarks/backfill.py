"""The memory of every step of a subtask around a large back-fill, with a limit of 64 MB.

``python -m benchmarks.backfill --gigabytes 0.5 2 10`` runs the steps on each backend and for each
size, each in a separate process, and writes the largest growth of every process.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine.process_memory import Growth, measured
from benchmarks.machine.properties import describe_host
from benchmarks.reports.markdown_table import table
from benchmarks.subtask_steps import LIMIT_BYTES, STEPS, Place, command
from state_backends import BACKEND_TYPES

_NAME = "backfill_memory"
_RESULTS = Path(__file__).parent / "results"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    """One step with one state."""

    backend: str
    size_bytes: int
    step: str
    growth: Growth
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the results, and return the exit status."""
    options = _parse(arguments)
    results: list[Measured] = []
    for backend in options.backends:
        for gigabytes in options.gigabytes:
            size_bytes = int(gigabytes * 1e9)
            with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                place = Place(Path(directory), backend, size_bytes, options.value_bytes)
                for step in STEPS:
                    began = time.monotonic()
                    growth = measured(command(step, place))
                    seconds = time.monotonic() - began
                    results.append(Measured(backend, size_bytes, step, growth, seconds))
                    print(results[-1], flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / _NAME
    path.with_suffix(".json").write_text(
        json.dumps(
            {"machine": describe_host(), "steps": [asdict(each) for each in results]}, indent=1
        )
        + "\n"
    )
    path.with_suffix(".md").write_text(_markdown(results, options.value_bytes))
    return 0


def _markdown(results: Sequence[Measured], value_bytes: int) -> str:
    columns = list(dict.fromkeys((each.backend, each.size_bytes) for each in results))
    cells = {(each.backend, each.size_bytes, each.step): each for each in results}
    rows = []
    for step, (_, name) in STEPS.items():
        grown = [cells[(*column, step)].growth for column in columns]
        rows.append([name, *(_mib(each) for each in grown)])
    header = ["step", *(f"{backend}, {size / 1e9:g} GB" for backend, size in columns)]
    return (
        f"Memory limit {LIMIT_BYTES // _MIB} MiB, values of {value_bytes} bytes. MiB that each "
        "step's process grew by at most: allocated, native memory included (`RssAnon`), and in "
        "parentheses pages of mapped files, which the system takes back when it needs them.\n\n"
        + "\n".join(table([header, *rows]))
        + "\n"
    )


def _mib(growth: Growth) -> str:
    return f"{growth.anonymous_bytes // _MIB} ({growth.mapped_bytes // _MIB})"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.backfill",
        description="Measure the memory of a subtask around a large back-fill.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.5, 2.0])
    parser.add_argument("--value-bytes", type=int, default=1_000)
    parser.add_argument("--backends", nargs="+", choices=BACKEND_TYPES, default=BACKEND_TYPES)
    parser.add_argument("--directory", type=Path, help="where the state goes meanwhile")
    parser.add_argument("--results", type=Path, default=_RESULTS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
