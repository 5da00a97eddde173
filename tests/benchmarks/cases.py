"""Workloads without Spark, for tests of the code that uses their runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.runs.case import (
    Case,
    Contender,
    Epochs,
    Figure,
    InputFiles,
    Kind,
    Target,
    Workload,
)
from benchmarks.runs.run import Epoch, Run

OURS = Contender("ours", Kind.OURS, lambda df: df)
PEER = Contender("peer", Kind.PEER, lambda df: df, slow=True)


def case(name: str = "small") -> Case:
    def write(directory: Path, epochs: int) -> InputFiles:
        raise NotImplementedError

    return Case(
        name,
        f"the {name} case",
        "key long",
        ("key", "n"),
        write,
        lambda files: pd.DataFrame(),
        [OURS, PEER],
        Epochs(2, 1),
        Epochs(1),
    )


def workload(targets: list[Target], figure: Figure = Figure.ROWS_PER_SECOND) -> Workload:
    cases = [case("small"), case("large")]
    return Workload("W", "w", "A title", "A text.", cases, [PEER.name], targets, figure)


def run(rows: int, *epochs_ms: int, gap_ms: int = 0) -> Run:
    """Return a run of epochs with this many rows each, with gaps between them."""
    epochs = []
    started_at = 0.0
    for number, ms in enumerate(epochs_ms):
        epochs.append(Epoch(number, started_at, {"triggerExecution": ms, "addBatch": ms - 1}))
        started_at += (ms + gap_ms) / 1000
    return Run.of_epochs(epochs, rows=rows * len(epochs))
