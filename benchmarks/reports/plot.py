"""A small plot per workload: bars with the spread of the repetitions, one panel per case."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

from benchmarks.reports.ratios import Figures
from benchmarks.runs.case import Case, Figure, Kind, Workload

mpl.use("Agg")
from matplotlib import pyplot as plt  # after the backend is chosen
from matplotlib.axes import Axes

_COLOURS = {Kind.OURS: "#2a6f97", Kind.PEER: "#bc6c25", Kind.LIMIT: "#999999"}
_ROW_INCHES = 0.28
_PANEL_INCHES = 0.9


def save_plot(workload: Workload, figures: Figures, path: Path) -> None:
    """Write the plot of a workload's figure to a file, in the format that its name says."""
    heights = [_PANEL_INCHES + _ROW_INCHES * len(case.contenders) for case in workload.cases]
    figure, panels = plt.subplots(
        len(workload.cases), 1, figsize=(8, sum(heights)), squeeze=False, height_ratios=heights
    )
    for panel, case in zip(panels[:, 0], workload.cases, strict=True):
        _draw(panel, case, figures, workload.figure)
    figure.suptitle(workload.title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=80, metadata={"Software": None})
    plt.close(figure)


def _draw(panel: Axes, case: Case, figures: Figures, figure: Figure) -> None:
    bars = []
    for contender in case.contenders:
        spread = figures.spread((case.name, contender.name), lambda run: run.figure(figure))
        if spread is not None:
            bars.append((contender, spread))
    medians = [spread.median for _, spread in bars]
    panel.barh(
        [contender.name for contender, _ in bars],
        medians,
        xerr=[
            [spread.median - spread.lowest for _, spread in bars],
            [spread.highest - spread.median for _, spread in bars],
        ],
        color=[_COLOURS[contender.kind] for contender, _ in bars],
        error_kw={"elinewidth": 1},
    )
    for at, value in enumerate(medians):
        panel.annotate(f" {value:,.0f}", (value, at), fontsize=7, va="bottom", textcoords="data")
    panel.invert_yaxis()
    panel.tick_params(labelsize=7)
    panel.set_xlim(0, 1.15 * max(spread.highest for _, spread in bars))
    panel.set_xlabel(figure.value, fontsize=7)
    panel.set_title(case.title, fontsize=8, loc="left")
