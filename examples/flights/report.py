"""The job's output: progress, checkpoints, both results side by side, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pandas as pd
from pyspark.sql import DataFrame
from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights.job import Epoch

PYSPARK = "PySpark's operator"
console = Console()

_SHOWN_DIFFERENCES = 10
_TOP = 5
_BAR_WIDTH = 24


@dataclass(frozen=True)
class Run:
    """A finished run of the job."""

    name: str
    backend: str
    threshold_min: int
    rows: int
    epochs: list[Epoch]
    result: pd.DataFrame

    @property
    def rows_per_second(self) -> float:
        """The rows of all epochs by the time of all epochs."""
        return 1000 * sum(e.rows for e in self.epochs) / sum(e.duration_ms for e in self.epochs)


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of `total` rows; yield the function that sets its rows and epochs."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,} rows, {task.fields[epochs]} epochs"),
        TimeElapsedColumn(),
        console=console,
    )
    with progress:
        task = progress.add_task(description, total=total, epochs=0)
        yield lambda rows, epochs: progress.update(task, completed=rows, epochs=epochs)


def show_checkpoints(title: str, checkpoints: DataFrame) -> None:
    """Show what a query can be restored from."""
    table = Table(title=title, title_justify="left")
    for column in ("kind", "epoch", "ms", "KiB", "files", "name"):
        is_text = column in ("kind", "name")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in checkpoints.orderBy("triggered_at").collect():
        if row.status == "completed":
            numbers = f"{row.duration_ms:,}", f"{row.size_bytes / 1024:,.0f}", str(row.files)
            table.add_row(row.kind, str(row.epoch), *numbers, Path(row.path).name)
        else:
            table.add_row(
                row.kind, str(row.epoch), "", "", "", escape(f"{row.status}: {row.reason}")
            )
    console.print(table)


def show_results(original: Run, fork: Run) -> None:
    """Show both results side by side: what each emitted after the savepoint, and the aircraft."""
    since = fork.result["moment"].min()
    table = Table(title=f"Results from {since:%B} {since.day} on", title_justify="left")
    table.add_column("")
    table.add_column(original.name, justify="right")
    table.add_column(fork.name, justify="right")
    for line in zip(*(_headlines(run, since) for run in (original, fork)), strict=True):
        (label, left), (_, right) = line
        table.add_row(label, left, right)
    console.print(table)
    console.print(_top_aircraft(original, fork))


def show_speed(runs: Sequence[Run]) -> None:
    """Plot the rows per second of each run, small and large epochs apart."""
    lines = [
        (run, size, epochs)
        for run in runs
        for size, epochs in _small_and_large(run.epochs).items()
        if epochs
    ]
    speeds = [median(1000 * e.rows / e.duration_ms for e in epochs) for _, _, epochs in lines]
    table = Table(title="Rows per second, median of the epochs", title_justify="left")
    for column in ("run", "epochs", "rows in one", "rows/s", ""):
        table.add_column(column, justify="left" if column in ("run", "") else "right")
    for (run, size, epochs), speed in zip(lines, speeds, strict=True):
        rows = median(epoch.rows for epoch in epochs)
        numbers = (f"{len(epochs)} {size}", f"{rows:,.0f}", f"{speed:,.0f}")
        colour = "yellow" if run.name == PYSPARK else "blue"
        bar = Bar(max(speeds), 0, speed, width=_BAR_WIDTH, color=colour)
        table.add_row(f"{run.name}, {run.backend}", *numbers, bar)
    console.print(table)


def _small_and_large(epochs: list[Epoch]) -> dict[str, list[Epoch]]:
    """Divide epochs in the middle between the least and the most rows, if they differ by much."""
    least, most = (size(epoch.rows for epoch in epochs) for size in (min, max))
    if most < 3 * least:
        return {"": epochs}
    middle = (least * most) ** 0.5
    return {
        "small": [epoch for epoch in epochs if epoch.rows < middle],
        "large": [epoch for epoch in epochs if epoch.rows >= middle],
    }


def show_differences(name: str, found: pd.DataFrame) -> None:
    """Show how a result differs from plain pandas."""
    console.print(f"[bold red]{name}: {len(found):,} rows of stream and pandas have no match[/]")
    if len(found):
        ordered = found.sort_values(["tailnum", "flights", "found in"]).head(_SHOWN_DIFFERENCES)
        text = ordered.drop(columns="copy").to_string(index=False)
        console.print(text, highlight=False, soft_wrap=True)


def _headlines(run: Run, since: pd.Timestamp) -> list[tuple[str, str]]:
    rows = run.result[run.result["moment"] >= since]
    numbers = {
        "flights": len(rows),
        "legs": rows["status"].ne("cancelled").sum(),
        "aircraft": rows["tailnum"].nunique(),
        "delays carried over": rows["carried_min"].gt(0).sum(),
        "minutes carried over": rows["carried_min"].sum(),
        "rows replayed": run.rows,
        "rows per second, all epochs": round(run.rows_per_second),
    }
    settings = [("delay threshold", f"{run.threshold_min} min"), ("state backend", run.backend)]
    return settings + [(label, f"{number:,}") for label, number in numbers.items()]


def _top_aircraft(original: Run, fork: Run) -> Table:
    """Return both running summaries of the aircraft that carried over the most minutes."""
    summaries = [_summaries(run.result) for run in (original, fork)]
    both = summaries[0].join(summaries[1], how="inner", rsuffix="_fork")
    table = Table(title="Last running summaries, most minutes first", title_justify="left")
    table.add_column("aircraft")
    names = ["hops", "miles", f"carried, {original.name}", f"carried, {fork.name}"]
    for name in names:
        table.add_column(name, justify="right")
    for aircraft, row in both.nlargest(_TOP, "minutes_carried").iterrows():
        table.add_row(
            str(aircraft),
            f"{row['hops']:,}",
            f"{row['miles']:,}",
            f"{row['delays_carried']} ({row['minutes_carried']:,} min)",
            f"{row['delays_carried_fork']} ({row['minutes_carried_fork']:,} min)",
        )
    return table


def _summaries(result: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of each aircraft."""
    return result.dropna(subset="tailnum").groupby("tailnum").last()
