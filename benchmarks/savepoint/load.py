"""The effect of a savepoint on a busy query: its epochs, and how far it lags its source."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import pyspark_ckpt as ckpt
from benchmarks.runs.check import check_rows
from benchmarks.runs.run import Epoch
from benchmarks.runs.spark_run import report_epochs
from benchmarks.savepoint.copies import COLUMNS, FORMATS
from benchmarks.savepoint.counted_notes import Program, expected_counts, some_keys, write_file

_CALIBRATING = 8
_QUIET_EPOCHS = 6
_OF_ITS_TIME = 0.7
"""How much of the time a query is busy."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A savepoint of a busy query.

    Parameters
    ----------
    format
        Of the savepoint.
    is_first
        Whether it is the session's first savepoint.
    seconds
        Its duration.
    epochs_ms
        Of the epochs that it overlapped.
    quiet_ms
        Of those before.
    delay_ms, quiet_delay_ms
        The longest time from the arrival of a file to its commit, during and before.
    recovered_seconds
        From the end of the savepoint to the first commit with no more delay than before;
        ``None`` if no measured epoch had one.
    """

    format: str
    is_first: bool
    seconds: float
    epochs_ms: Sequence[int]
    quiet_ms: Sequence[int]
    delay_ms: float
    quiet_delay_ms: float
    recovered_seconds: float | None

    @property
    def ratio(self) -> float:
        """The longest epoch during it over the median epoch before."""
        return max(self.epochs_ms) / median(self.quiet_ms)


@dataclass
class _Feeder:
    """Adds a file at an interval, whatever the query does, and notes when."""

    program: Program
    keys: int
    rows: int
    touched: list[Any] = field(default_factory=list)
    arrived_at: list[float] = field(default_factory=list)

    def add(self, touched: Any = None) -> None:
        number = len(self.touched)
        keys = some_keys(number, self.keys, self.rows) if touched is None else touched
        self.touched.append(keys)
        write_file(self.program.source, number, keys)
        self.arrived_at.append(time.time())

    def run(self, seconds: float, ended: threading.Event) -> None:
        while not ended.wait(seconds):
            self.add()


def disturb(
    program: Program, keys: int, rows: int, repetitions: int, directory: Path
) -> list[Disturbance]:
    """Run a query that is busy most of the time, and take savepoints of it.

    Parameters
    ----------
    program
        With an empty source.
    keys, rows
        Keys that have state, and rows of an epoch.
    repetitions
        Savepoints in each format; they take turns.
    directory
        For its location and output.

    Raises
    ------
    WrongResultError, CkptError
        If its output or a savepoint is wrong.
    """
    feeder = _Feeder(program, keys, rows)
    feeder.add(np.random.default_rng(keys).permutation(keys))
    query = program.start(directory)
    query.processAllAvailable()
    for _ in range(_CALIBRATING):
        feeder.add()
    query.processAllAvailable()
    epoch_seconds = median(epoch.ms for epoch in _epochs(query)[2:]) / 1000
    ended = threading.Event()
    thread = threading.Thread(target=feeder.run, args=(epoch_seconds / _OF_ITS_TIME, ended))
    thread.start()
    found: list[Disturbance] = []
    try:
        for number in range(repetitions):
            turn = FORMATS if number % 2 else FORMATS[::-1]
            for each in turn:
                found.append(_disturb_once(query, feeder, each, is_first=not found))
    finally:
        ended.set()
        thread.join()
    query.processAllAvailable()
    check_rows("busy query", program.output(directory), expected_counts(feeder.touched), COLUMNS)
    query.stop()
    return found


def _disturb_once(
    query: ckpt.CheckpointedQuery, feeder: _Feeder, savepoint_format: str, *, is_first: bool
) -> Disturbance:
    before = len(_epochs(query))
    _await_epochs(query, before + _QUIET_EPOCHS)
    began_at = time.time()
    savepoint = query.triggerSavepoint(format=savepoint_format.upper())
    ended_at = time.time()
    _await_epochs(query, len(_epochs(query)) + _QUIET_EPOCHS)
    ckpt.location(savepoint.path).verify()
    ckpt.location(savepoint.path).dispose()
    epochs = _epochs(query)
    quiet = [epoch for epoch in epochs[before:] if _ended_at(epoch) < began_at]
    later = [epoch for epoch in epochs if _ended_at(epoch) >= ended_at]
    meanwhile = [e for e in epochs if e.started_at < ended_at and _ended_at(e) > began_at]
    meanwhile = meanwhile or later[:1]  # it may fit between two epochs; the next one may feel it
    quiet_delay = max(_delay(epoch, feeder) for epoch in quiet)
    recovered = next((e for e in later if _delay(e, feeder) <= quiet_delay), None)
    return Disturbance(
        format=savepoint_format,
        is_first=is_first,
        seconds=ended_at - began_at,
        epochs_ms=[epoch.ms for epoch in meanwhile],
        quiet_ms=[epoch.ms for epoch in quiet],
        delay_ms=1000 * max(_delay(epoch, feeder) for epoch in meanwhile),
        quiet_delay_ms=1000 * quiet_delay,
        recovered_seconds=None if recovered is None else _ended_at(recovered) - ended_at,
    )


def _epochs(query: ckpt.CheckpointedQuery) -> list[Epoch]:
    return report_epochs(query)


def _await_epochs(query: ckpt.CheckpointedQuery, epochs: int) -> None:
    while len(_epochs(query)) < epochs:
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        time.sleep(0.05)


def _ended_at(epoch: Epoch) -> float:
    return epoch.started_at + epoch.ms / 1000


def _delay(epoch: Epoch, feeder: _Feeder) -> float:
    """Return the seconds from the arrival of an epoch's one file to its commit."""
    return _ended_at(epoch) - feeder.arrived_at[epoch.number]
