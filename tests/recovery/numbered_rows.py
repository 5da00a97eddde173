"""Input for the numbering program, and the oracle: each key's rows are numbered 1, 2, 3, ..."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_FILE = 300
KEYS = 40


def write_input(directory: Path, number: int, chance: random.Random) -> pd.DataFrame:
    """Write the next file of random rows, which appears at once, and return the rows."""
    frame = pd.DataFrame(
        {
            "key": [f"k{chance.randrange(KEYS)}" for _ in range(ROWS_PER_FILE)],
            "value": [chance.randrange(1000) for _ in range(ROWS_PER_FILE)],
        }
    )
    hidden = directory / f".{number:04d}.tmp"
    pq.write_table(pa.Table.from_pandas(frame), hidden)
    os.utime(hidden, (1_700_000_000 + number,) * 2)  # the file source reads the oldest first
    hidden.rename(directory / f"{number:04d}.parquet")
    return frame


def check_output(output_directory: Path, rows: pd.DataFrame) -> None:
    """Check that numbers have no gap and no repeat, and that the last states are of all rows."""
    output = _committed_output(output_directory)
    numbers = output.sort_values("n").groupby("key")["n"].agg(list)
    counts = rows.groupby("key").size()
    assert {key: list(range(1, n + 1)) for key, n in counts.items()} == numbers.to_dict()
    last = output.loc[output.groupby("key")["n"].idxmax()].set_index("key").sort_index()
    totals = rows.groupby("key")["value"].sum()
    assert last["total"].to_dict() == totals.to_dict()
    assert last["listed"].to_dict() == counts.to_dict()
    kinds = rows.groupby(["key", rows["value"] % 3]).size().groupby("key").max()
    assert output.groupby("key")["of_kind"].max().to_dict() == kinds.to_dict()


def _committed_output(directory: Path) -> pd.DataFrame:
    """Read the files that the sink's own log lists; others are leftovers of killed runs."""
    names: dict[str, None] = {}
    for entry in (directory / "_spark_metadata").glob("[0-9]*"):
        for line in entry.read_text().splitlines()[1:]:
            path = json.loads(line)["path"]
            names[Path(path).name] = None
    tables = [pq.read_table(directory / name) for name in names]
    return pa.concat_tables(tables).to_pandas()
