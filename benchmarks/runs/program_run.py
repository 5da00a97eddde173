"""One timed run of a peer that is not a Spark query, checked like any other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.machine.samples import FIXED_COMPILER_THREADS, CpuSeconds, Samples
from benchmarks.runs.case import Case, InputFiles, Program
from benchmarks.runs.check import check_rows
from benchmarks.runs.run import Run

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPTS = _ROOT / "benchmarks" / "programs"
_LIMIT_SECONDS = 3_600


class ProgramFailedError(Exception):
    """A peer's program ended with an error."""


def is_installed(program: Program) -> bool:
    """Return whether a program's virtual environment exists."""
    return _python(program).exists()


def run_program(
    case: Case, program: Program, files: InputFiles, expected: pd.DataFrame, directory: Path
) -> Run:
    """Run a program over the files, check its last state, and return what was measured.

    Raises
    ------
    WrongResultError
        If the last state is wrong.
    ProgramFailedError
        If it ended with an error; the end of its own output is in the message.
    """
    output = directory / "output"
    output.mkdir(parents=True)
    paths = files.of(case.epochs_of(program).all)
    request = {
        **program.arguments,
        "files": [str(path) for path in paths],
        "output": str(output),
        "scratch": str(directory / "scratch"),
    }
    with Samples() as samples:
        answer = _answer(program, request)
    name = f"{case.title}: {program.name}"
    written = pd.concat(
        [pd.read_parquet(path) for path in sorted(output.glob("*.parquet"))], ignore_index=True
    )
    check_rows(name, program.final(written), program.final(expected), case.output)
    shutil.rmtree(directory, ignore_errors=True)
    rows = int(answer["rows"])
    return Run(rows=rows, seconds=float(answer["seconds"]), cpu=_cpu(samples, answer["spans_s"]))


def _cpu(samples: Samples, spans_s: dict[str, list[float]]) -> CpuSeconds | None:
    """Return the CPU time of a job over all rows less that of the same job over one."""
    idle, whole = (samples.cpu_between(*spans_s[name]) for name in ("idle", "all"))
    if idle is None or whole is None:
        return None
    return CpuSeconds(max(whole.work - idle.work, 0.0), max(whole.compilers - idle.compilers, 0.0))


def _answer(program: Program, request: dict[str, Any]) -> dict[str, Any]:
    command = [str(_python(program)), str(_SCRIPTS / program.script), json.dumps(request)]
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": FIXED_COMPILER_THREADS}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False,
        env=environment,
    )  # fmt: skip
    if done.returncode != 0:
        raise ProgramFailedError(f"{program.name}: {_causes(done.stderr or done.stdout)}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _causes(text: str) -> str:
    """Return an error's text without Java's frames, which hide its causes."""
    lines = [line for line in text.splitlines() if not line.startswith("\tat ")]
    return "\n".join(lines)[-3000:]


def _python(program: Program) -> Path:
    return _ROOT / program.environment / "bin" / "python"
