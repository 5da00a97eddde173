"""The parts of a workload: cases of input data, and the contenders that run over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

Expected = Callable[[Sequence[Path]], pd.DataFrame]
"""Computes with pandas, from the input files, every row that must come out."""


class Kind(Enum):
    """Whose program a contender is."""

    OURS = "pyspark_ckpt"
    PEER = "peer"
    LIMIT = "limit"


class Sink(Enum):
    """Where the queries of a case write; all contenders of a case the same way."""

    FILES = "Spark's file sink, Parquet"
    BATCHES = "foreachBatch that writes Parquet"


class Figure(Enum):
    """What the ratios of a workload compare."""

    ROWS_PER_SECOND = "rows/s"
    MS_PER_EPOCH = "ms per epoch"
    RESTORE_SECONDS = "restore from checkpoint s"
    """Measured after some runs."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """Epochs of a run after those that fill the state."""

    counted: int
    warm_up: int = 0

    @property
    def all(self) -> int:
        """Warm-up and counted ones."""
        return self.warm_up + self.counted


@dataclass(frozen=True, slots=True)
class InputFiles:
    """One Parquet file per epoch, in the order in which Spark's file source takes them."""

    epochs: Sequence[Path]
    load: Sequence[Path] = ()
    """These fill the state before the first epoch that may count."""
    tail: Sequence[Path] = ()
    """These end the run, such as a row that moves the watermark past everything; not counted."""

    def of(self, epochs: int) -> list[Path]:
        """Return the files of a run over the first epochs."""
        return [*self.load, *self.epochs[:epochs], *self.tail]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A query that has ended, with all its files still there."""

    spark: SparkSession
    case: Case
    contender: Contender
    directory: Path
    query: StreamingQuery


@dataclass(frozen=True, slots=True)
class Contender:
    """A streaming query under measurement.

    Parameters
    ----------
    name, kind
        Its name in figures, and whose it is. This library's are written with ``write_stream``.
    query
        From the input stream to the output, in the case's output columns.
    output_mode, options
        Of the writer.
    slow
        Whether it gets the smaller number of epochs.
    subtask
        Makes the replacement of this library's function in a subtask.
    expected
        The expected output, if it differs from the case's.
    """

    name: str
    kind: Kind
    query: Callable[[DataFrame], DataFrame]
    output_mode: str = "append"
    options: Mapping[str, Any] = field(default_factory=dict)
    slow: bool = False
    subtask: Callable[..., Any] | None = None
    expected: Expected | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A peer that is not a Spark query: a program in its own virtual environment.

    It gets one JSON argument: the input files, an empty directory for its output, and
    `arguments`; it prints one line of JSON: rows, seconds. Its output is checked like any other,
    after `final` has taken the last state from it, because it emits in its own steps.

    Parameters
    ----------
    name
        How figures call it.
    environment
        Directory of the virtual environment, next to ``.venv``.
    script
        File in ``benchmarks/programs``.
    arguments
        The arguments of the script in addition to the files.
    final
        From everything written, in the case's output columns, to the rows that are compared.
    """

    name: str
    environment: str
    script: str
    arguments: Mapping[str, Any]
    final: Callable[[pd.DataFrame], pd.DataFrame]
    kind: Kind = Kind.PEER
    slow: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """One set of input data, and the contenders that run over it.

    Parameters
    ----------
    name, title
        Short, for keys and columns; and a line for the report.
    schema
        DDL of the input.
    output
        Columns of the output; all of them together order and compare it.
    write
        Writes the input below a directory, for a number of epochs.
    expected
        What must come out.
    contenders
        They take turns.
    epochs, slow_epochs
        How many each contender runs over, and the slow ones.
    sink
        Where all of them write.
    final
        From the output of any contender to its last state, for programs that emit in steps of
        their own.
    measure_more
        Measures more on a finished run, before its files go: figures by name.
    """

    name: str
    title: str
    schema: str
    output: Sequence[str]
    write: Callable[[Path, int], InputFiles]
    expected: Expected
    contenders: Sequence[Contender | Program]
    epochs: Epochs
    slow_epochs: Epochs
    sink: Sink = Sink.BATCHES
    measure_more: Callable[[FinishedRun], Mapping[str, float]] | None = None

    def epochs_of(self, contender: Contender | Program) -> Epochs:
        """Return how many epochs a contender runs over."""
        return self.slow_epochs if contender.slow else self.epochs


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio that should be reached: a figure of one run divided by another run's figure."""

    text: str
    ours: tuple[str, str]
    """Case and contender."""
    other: tuple[str, str]
    limit: float
    figure: Figure = Figure.ROWS_PER_SECOND
    at_least: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """The content of one table, one plot and one JSON file.

    Parameters
    ----------
    name, file_name, title, text
        Such as W1; the file of the results; and what a reader must know.
    cases
        In the order of the report.
    references
        The contenders that others are compared with, if they take part.
    targets
        What must be shown.
    figure
        What is compared.
    """

    name: str
    file_name: str
    title: str
    text: str
    cases: Sequence[Case]
    references: Sequence[str]
    targets: Sequence[Target] = ()
    figure: Figure = Figure.ROWS_PER_SECOND
