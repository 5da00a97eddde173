"""The input of the benchmark, one Parquet file per epoch, and what must come out of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

INPUT_SCHEMA = "key long, value long"
OUTPUT_SCHEMA = "key long, n long, total long"
OUTPUT_COLUMNS = ["key", "n", "total"]

_LOWEST, _HIGHEST = -100, 100
SAMPLED_BELOW = -80
"""Values below it are a tenth of all."""

_SEED = 20_240_229
_FIRST_MTIME = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """How much data: keys are drawn uniformly, so nearly every key is in every epoch."""

    keys: int
    rows_per_epoch: int

    def write_epochs(self, directory: Path, epochs: int) -> list[Path]:
        """Write one file per epoch; the same number gives the same rows on every machine."""
        directory.mkdir(parents=True)
        files = []
        for epoch in range(epochs):
            path = directory / f"{epoch:05d}.parquet"
            self._epoch(epoch).to_parquet(path, index=False)
            # Spark's file source reads the oldest file first, to the second.
            os.utime(path, (_FIRST_MTIME + 10 * epoch,) * 2)
            files.append(path)
        return files

    def _epoch(self, epoch: int) -> pd.DataFrame:
        random = np.random.default_rng((_SEED, epoch))
        return pd.DataFrame(
            {
                "key": random.integers(0, self.keys, self.rows_per_epoch),
                "value": random.integers(_LOWEST, _HIGHEST, self.rows_per_epoch),
            }
        )


def link_files(files: Sequence[Path], directory: Path) -> Path:
    """Make a directory with the same files, which is a contender's source."""
    directory.mkdir(parents=True)
    for file in files:
        (directory / file.name).hardlink_to(file)
    return directory


def expected_output(files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas what a running count and sum emits: a row per key and epoch, sorted."""
    epochs = [
        pd.read_parquet(file).groupby("key")["value"].agg(["size", "sum"]).reset_index()
        for file in files
    ]
    changes = pd.concat(epochs, ignore_index=True)
    running = changes.groupby("key")[["size", "sum"]].cumsum()
    output = pd.DataFrame({"key": changes["key"], "n": running["size"], "total": running["sum"]})
    return in_order(output)


def sampled_output(files: Sequence[Path]) -> pd.DataFrame:
    """Compute with pandas what a query lets through that has no operator or an idle one."""
    rows = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    sampled = rows[rows["value"] < SAMPLED_BELOW]
    return in_order(
        pd.DataFrame({"key": sampled["key"], "n": sampled["value"], "total": sampled["value"]})
    )


def in_order(output: pd.DataFrame) -> pd.DataFrame:
    """Sort output rows: by key and, as counts only grow, by epoch."""
    return output[OUTPUT_COLUMNS].sort_values(OUTPUT_COLUMNS, ignore_index=True)
