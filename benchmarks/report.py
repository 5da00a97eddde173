"""Figures of several runs: ratios within a repetition, then their median; as text and JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from benchmarks.contenders import APPLY, CONTENDERS, IDLE, TRANSFORM, Contender, Kind
from benchmarks.measure import Run
from pyspark_ckpt import __version__

TARGET_RATIO = 20
"""Times ``applyInPandasWithState`` that this library is to reach, with either backend."""

Repetition = Mapping[str, Run]
"""One run of each contender, by its name."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the repetitions."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def text(self, digits: int) -> str:
        values = (self.median, self.lowest, self.highest)
        middle, low, high = (f"{value:,.{digits}f}" for value in values)
        return f"{middle} ({low} to {high})"

    def as_json(self) -> dict[str, float]:
        values = {"median": self.median, "lowest": self.lowest, "highest": self.highest}
        return {name: round(value, 2) for name, value in values.items()}


class Report:
    """What the repetitions say.

    Parameters
    ----------
    settings
        The command line's numbers.
    machine
        See :func:`describe_machine`.
    repetitions
        The runs, in order.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        machine: Mapping[str, Any],
        repetitions: Sequence[Repetition],
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._repetitions = repetitions

    def ratio(self, contender: Contender, peer: Contender) -> Spread:
        """Return how many times as fast as a peer, which ran in the same repetition."""
        return self._spread(
            lambda runs: runs[contender.name].rows_per_second / runs[peer.name].rows_per_second
        )

    def markdown(self) -> str:
        """Return the tables."""
        return "\n".join(
            [
                "# Running count and sum per key",
                "",
                *self._setting_lines(),
                "",
                *_table(self._figures(), "lrrrrrr"),
                "",
                *self._verdicts(),
                "",
                "Median milliseconds of an epoch and of its parts, as Spark reports them:",
                "",
                *_table(self._breakdown(), "l" + "r" * len(CONTENDERS)),
                "",
            ]
        )

    def as_json(self) -> dict[str, Any]:
        """Return all figures, those of each repetition too."""
        return {
            "benchmark": "running count and sum per key",
            "settings": dict(self._settings),
            "machine": dict(self._machine),
            "target_ratio_to_applyInPandasWithState": TARGET_RATIO,
            "contenders": {contender.name: self._contender(contender) for contender in CONTENDERS},
        }

    def _contender(self, contender: Contender) -> dict[str, Any]:
        runs = [runs[contender.name] for runs in self._repetitions]
        cpu = self._cpu(contender)
        return {
            "rows_per_second": self._rows_per_second(contender).as_json(),
            f"ratio_to_{APPLY.name}": self.ratio(contender, APPLY).as_json(),
            f"ratio_to_{TRANSFORM.name}": self.ratio(contender, TRANSFORM).as_json(),
            "cpu_seconds_per_million_rows": cpu and cpu.as_json(),
            "median_ms": self._median_ms(contender),
            "repetitions": [
                {
                    "rows_per_second": round(run.rows_per_second, 2),
                    "steady_epochs": len(run.epochs),
                    "epoch_ms": [epoch.ms for epoch in run.epochs],
                    "share_of_wall_time_in_triggers": round(run.share_in_triggers, 4),
                    "cpu_seconds_of_all_epochs": run.cpu and round(run.cpu.own_seconds, 2),
                    "share_of_cpus_used_by_others": run.cpu and round(run.cpu.others_share, 3),
                    "checkpoints": run.checkpoints,
                }
                for run in runs
            ],
        }

    def _setting_lines(self) -> list[str]:
        numbers = self._settings
        machine = ", ".join(f"{name} {value}" for name, value in self._machine.items())
        text = (
            f"{numbers['keys']:,} keys, {numbers['rows_per_epoch']:,} rows per epoch, "
            f"{numbers['repetitions']} repetitions in turn in one session. pyspark_ckpt and "
            f"the limits: {numbers['epochs']} epochs, the first {numbers['warm_up_epochs']} not "
            f"counted; PySpark's own: {numbers['peer_epochs']} epochs, the first "
            f"{numbers['peer_warm_up_epochs']} not counted. Every output row of every run was "
            "checked against pandas. Figures are the median of the repetitions (lowest to "
            "highest); a ratio is taken within a repetition. CPU time is that of driver, JVM and "
            "workers over the whole query; what other programs took of the machine is noise."
        )
        return [text, "", f"Machine: {machine}."]

    def _figures(self) -> list[list[str]]:
        header = [
            "operator",
            "rows/s",
            f"times {APPLY.name}",
            f"times {TRANSFORM.name}",
            "ms per epoch",
            "CPU s per million rows",
            "CPUs used by others",
        ]
        return [header] + [
            [
                contender.name,
                self._rows_per_second(contender).text(0),
                self.ratio(contender, APPLY).text(1),
                self.ratio(contender, TRANSFORM).text(1),
                f"{self._median_ms(contender)['triggerExecution']:,.0f}",
                self._cpu_text(contender),
                self._others_text(contender),
            ]
            for contender in CONTENDERS
        ]

    def _verdicts(self) -> list[str]:
        lines = []
        for contender in CONTENDERS:
            if contender.kind is Kind.OURS:
                ratio = self.ratio(contender, APPLY).median
                verdict = "reached" if ratio >= TARGET_RATIO else "NOT reached"
                lines.append(
                    f"- {contender.name}: {ratio:.1f} times {APPLY.name}, target "
                    f"{TARGET_RATIO}: {verdict}"
                )
        limit = self.ratio(IDLE, APPLY).median
        lines.append(
            f"- Limit: an operator that does nothing has {limit:.1f} times the rows/s of "
            f"{APPLY.name}; no operator in Python can pass that at this size of epoch."
        )
        return lines

    def _breakdown(self) -> list[list[str]]:
        medians = [self._median_ms(contender) for contender in CONTENDERS]
        parts = sorted({part for durations in medians for part in durations})
        parts.sort(key=lambda part: -max(durations.get(part, 0) for durations in medians))
        return [["part", *[contender.name for contender in CONTENDERS]]] + [
            [part, *[f"{durations.get(part, 0):,.0f}" for durations in medians]] for part in parts
        ]

    def _median_ms(self, contender: Contender) -> dict[str, float]:
        of_runs = [runs[contender.name].median_durations_ms() for runs in self._repetitions]
        return {part: median(durations[part] for durations in of_runs) for part in of_runs[0]}

    def _rows_per_second(self, contender: Contender) -> Spread:
        return self._spread(lambda runs: runs[contender.name].rows_per_second)

    def _cpu(self, contender: Contender) -> Spread | None:
        figures = [runs[contender.name].cpu_seconds_per_million_rows for runs in self._repetitions]
        known = [figure for figure in figures if figure is not None]
        return Spread.of(known) if known else None

    def _cpu_text(self, contender: Contender) -> str:
        cpu = self._cpu(contender)
        return "unknown" if cpu is None else cpu.text(1)

    def _others_text(self, contender: Contender) -> str:
        uses = [runs[contender.name].cpu for runs in self._repetitions]
        shares = [100 * use.others_share for use in uses if use is not None]
        return Spread.of(shares).text(0) + " %" if shares else "unknown"

    def _spread(self, figure: Callable[[Repetition], float]) -> Spread:
        return Spread.of([figure(runs) for runs in self._repetitions])


def describe_machine(spark: SparkSession) -> dict[str, Any]:
    """Return what figures depend on, and nothing that names the machine."""
    jvm: Any = spark._jvm
    return {
        "CPUs": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "Python": platform.python_version(),
        "PySpark": pyspark.__version__,
        "Java": jvm.java.lang.System.getProperty("java.version"),
        "pandas": pd.__version__,
        "NumPy": np.__version__,
        "PyArrow": pa.__version__,
        "pyspark_ckpt": __version__,
    }


def _table(rows: Sequence[Sequence[str]], alignment: str) -> list[str]:
    """Lay out a Markdown table that can be read as plain text."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(alignment))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(cells, widths, alignment, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"

    rule = [
        "-" * width if side == "l" else "-" * (width - 1) + ":"
        for width, side in zip(widths, alignment, strict=True)
    ]
    return [line(rows[0]), line(rule), *map(line, rows[1:])]
