"""The figures of tortures: what a run adds to a file, and a table of all runs in it."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.measured_commit import measured_commit


@dataclass
class Figures:
    """What a torture was."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 0
    files: int = 0
    rows: int = 0
    timers: int = 0
    queries: int = 0
    forks: int = 0
    ended_by_themselves: int = 0
    last_words: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def shown(figures: Figures) -> Mapping[str, Any]:
    """Return the figures with their sums, the machine and the commit."""
    machine = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "commit": measured_commit(),
    }
    kinds = {
        kind: sum(n for fault, n in figures.faults.items() if fault.endswith(ending))
        for kind, ending in (("kills", " killed"), ("pauses", " stands still"))
    }
    return {**vars(figures), "total": figures.faults.total(), **kinds, **machine}


def add_run(run: Mapping[str, Any], results: Path) -> None:
    """Add the figures of a run to a file; those of the same seed and commit are replaced."""
    runs = json.loads(results.read_text()) if results.exists() else []
    others = [each for each in runs if any(each[name] != run[name] for name in ("seed", "commit"))]
    results.write_text(json.dumps([*others, run], indent=1) + "\n")


def table_of(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of runs and their sum, for the page of promises.

    Parameters
    ----------
    runs
        The figures of each run.
    """
    faults: Counter[str] = Counter()
    lines = [
        "| seed | commit | faults | kills | pauses | queries | forks | rows | timers | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    counted = ("total", "kills", "pauses", "queries", "forks", "rows", "timers")
    for run in runs:
        faults.update(run["faults"])
        cells = [f"{run['seed']}", f"`{run['commit']}`", *(f"{run[name]:,}" for name in counted)]
        lines.append(f"| {' | '.join(cells)} | {run['seconds'] / 60:.0f} |")
    sums = [f"{sum(run[name] for run in runs):,}" for name in counted]
    minutes = sum(run["seconds"] for run in runs) / 60
    lines.append(f"| all | | {' | '.join(sums)} | {minutes:.0f} |")
    each = ", ".join(f"{fault} {number}" for fault, number in sorted(faults.items()))
    return "\n".join(lines) + f"\n\nThe faults: {each}.\n"
