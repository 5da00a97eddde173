"""Input files: one Parquet file per epoch, the same rows on every machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

_FIRST_MTIME = 1_700_000_000


def write_files(directory: Path, frames: Iterable[pd.DataFrame], first: int = 0) -> list[Path]:
    """Write frames to files that Spark's file source takes one by one, in this order.

    Parameters
    ----------
    directory
        Created if it does not exist.
    frames
        One per epoch.
    first
        Number of the first file, if others come before.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for number, frame in enumerate(frames, start=first):
        path = directory / f"{number:05d}.parquet"
        frame.to_parquet(path, index=False)
        # Spark's file source reads the oldest file first, to the second.
        os.utime(path, (_FIRST_MTIME + 10 * number,) * 2)
        files.append(path)
    return files


def link_files(files: Sequence[Path], directory: Path) -> Path:
    """Make a directory with the same files, which is a contender's source."""
    directory.mkdir(parents=True)
    for file in files:
        (directory / file.name).hardlink_to(file)
    return directory


def read_files(files: Sequence[Path]) -> pd.DataFrame:
    """Return all rows of some files, in order."""
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
