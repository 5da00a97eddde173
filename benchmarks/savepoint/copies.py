"""Taking savepoints and restoring from them, against a plain copy of their files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

import pyspark_ckpt as ckpt
from benchmarks.runs.check import check_rows
from benchmarks.runs.run import WrongResultError
from benchmarks.savepoint.counted_notes import Program, expected_counts, some_keys, write_file
from benchmarks.savepoint.durable_copy import durable_copy_seconds

FORMATS = ("native", "canonical")
_Made = TypeVar("_Made")
_SMALL_EPOCHS = 4
COLUMNS = ("key", "n")


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of one repetition with one format, all results of which were right.

    Parameters
    ----------
    take
        ``triggerSavepoint``, of a query that has nothing else to do.
    restore
        From ``start()`` with ``restoreFrom`` to its return: all files are copied, Spark's state
        store is written.
    first_epoch
        From there to the commit of an epoch over one key in a hundred: the local copies are built.
    copy
        The plain copy of the savepoint's files, just before.
    bytes, files
        Of the savepoint.
    """

    take: float
    restore: float
    first_epoch: float
    copy: float
    bytes: int
    files: int


class Original:
    """A running query with many keys, of which savepoints are taken.

    Parameters
    ----------
    program
        With an empty source.
    keys
        All get a row in the first epoch, one in a hundred in each of some more.
    directory
        For its location, output and forks.
    """

    def __init__(self, program: Program, keys: int, directory: Path) -> None:
        self._program, self._keys, self._directory = program, keys, directory
        self._touched = [np.random.default_rng(keys).permutation(keys)]
        write_file(program.source, 0, self._touched[0])
        self._query = program.start(directory / "original")
        self._query.processAllAvailable()
        for _ in range(_SMALL_EPOCHS):
            self._feed()
            self._query.processAllAvailable()
        expected = expected_counts(self._touched)
        check_rows("original", program.output(directory / "original"), expected, COLUMNS)
        self._forks = 0

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()

    def round(self, savepoint_format: str) -> Round:
        """Take a savepoint, copy it, fork a query from it, and check that its state is the same.

        Raises
        ------
        WrongResultError
            If the fork's state or output is wrong.
        """
        take, savepoint = _timed(
            lambda: self._query.triggerSavepoint(format=savepoint_format.upper())
        )
        root = Path(savepoint.path)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        copied = self._directory / "copied"
        copy = durable_copy_seconds(files, root, copied)
        shutil.rmtree(copied)
        self._forks += 1
        place = self._directory / f"fork-{self._forks}"
        restore, fork = _timed(lambda: self._program.start(place, savepoint.path))
        try:
            self._check_state(fork)
            first_epoch = self._one_more_epoch(fork, place)
        finally:
            fork.stop()
        ckpt.location(savepoint.path).dispose()
        shutil.rmtree(place)
        return Round(take, restore, first_epoch, copy, savepoint.size_bytes, savepoint.files)

    def _one_more_epoch(self, fork: ckpt.CheckpointedQuery, place: Path) -> float:
        """Feed the fork, and also the original, which must be where its next fork begins."""
        touched = self._feed()
        seconds, _ = _timed(fork.processAllAvailable)
        expected = expected_counts(self._touched)
        output = self._program.output(place)
        check_rows("fork", output, expected.iloc[-len(touched) :], COLUMNS)
        self._query.processAllAvailable()
        return seconds

    def _check_state(self, fork: ckpt.CheckpointedQuery) -> None:
        """Compare all entries of a fork without an epoch with the entries of the original."""
        found, expected = (_entries(query) for query in (fork, self._query))
        if not len(expected) >= self._keys or not found.equals(expected):
            raise WrongResultError(
                f"a fork has {len(found)} entries of state, which are not the {len(expected)} of "
                "the original"
            )

    def _feed(self) -> Any:
        number = len(self._touched)
        touched = some_keys(number, self._keys, max(1, self._keys // 100))
        self._touched.append(touched)
        write_file(self._program.source, number, touched)
        return touched


def _entries(query: ckpt.CheckpointedQuery) -> Any:
    """Return all state of a query, from a canonical savepoint."""
    savepoint = query.triggerSavepoint()
    parts = sorted(Path(savepoint.path).glob("shared/canonical-*.parquet"))
    frames = [pq.read_table(part, columns=["stored_key", "stored_value"]) for part in parts]
    entries = pd.concat([frame.to_pandas() for frame in frames], ignore_index=True)
    ckpt.location(savepoint.path).dispose()
    return entries


def _timed(work: Callable[[], _Made]) -> tuple[float, _Made]:
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made
