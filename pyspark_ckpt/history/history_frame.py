"""The history of a query as a DataFrame whose ``plot()`` draws checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pyspark_ckpt.errors import ConfigurationError

_NEEDED = frozenset(
    {"kind", "status", "checkpoint_id", "triggered_at", "duration_ms", "size_bytes"}
)
_REST = "rest"
_MB = 1024**2


class History(pd.DataFrame):
    """What :func:`history` returns: a ``pandas.DataFrame`` with a plot of its own.

    ``plot()`` without arguments draws the duration of each checkpoint by phase, its size, and the
    attempts that were aborted. It needs the extra ``plot``. With arguments, ``plot`` is that of
    pandas.
    """

    @property
    def _constructor(self) -> type[History]:
        return History

    @property
    def plot(self) -> Any:
        """The plot of checkpoints, or with arguments that of pandas."""
        return _HistoryPlot(self)


class _HistoryPlot(pd.plotting.PlotAccessor):
    def __init__(self, data: pd.DataFrame) -> None:
        super().__init__(data)
        self._history = data

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not set(self._history.columns) >= _NEEDED:
            return super().__call__(*args, **kwargs)
        return plot_history(self._history)


def plot_history(history: pd.DataFrame) -> Any:
    """Draw durations by phase and sizes of the checkpoints of a history; return the two axes."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as exc:
        raise ConfigurationError(
            f"a plot needs a library that is not installed ({exc}): install pyspark_ckpt[plot]"
        ) from exc
    is_checkpoint = history["kind"] == "checkpoint"
    completed = history[is_checkpoint & (history["status"] == "completed")]
    aborted = history[is_checkpoint & (history["status"] == "aborted")]
    _, (durations, sizes) = plt.subplots(2, 1, sharex=True, figsize=(8, 5), layout="constrained")
    ids = [int(each) for each in completed["checkpoint_id"]]
    bottom = [0.0] * len(ids)
    for phase, heights in _by_phase(completed).items():
        durations.bar(ids, heights, bottom=bottom, label=phase)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    failed = aborted[aborted["checkpoint_id"].notna()]
    if len(failed):
        numbers = [int(each) for each in failed["checkpoint_id"]]
        heights = [float(each) for each in failed["duration_ms"].fillna(0)]
        durations.plot(numbers, heights, "x", color="tab:red", label="aborted")
    durations.set_ylabel("duration (ms)")
    if ids or len(failed):
        durations.legend()
    sizes.plot(ids, [int(each) / _MB for each in completed["size_bytes"]], "o-", label="full")
    if "new_bytes" in completed:
        new = completed["new_bytes"].astype("Float64") / _MB
        sizes.plot(ids, new.to_numpy(dtype=float, na_value=float("nan")), "o-", label="new files")
    sizes.set_ylabel("size (MB)")
    sizes.set_xlabel("checkpoint")
    if ids:
        sizes.legend()
    return durations, sizes


def _by_phase(completed: pd.DataFrame) -> Mapping[str, list[float]]:
    """Return the milliseconds of each phase per checkpoint; the rest has no phase."""
    none: list[Mapping[str, int] | None] = [None] * len(completed)
    phases = list(completed["phases_ms"]) if "phases_ms" in completed else none
    known = [each if isinstance(each, Mapping) else {} for each in phases]
    names = list(dict.fromkeys(name for each in known for name in each))
    found = {name: [float(each.get(name, 0)) for each in known] for name in names}
    totals = [float(each) for each in completed["duration_ms"]]
    found[_REST] = [
        max(total - sum(each.values()), 0.0) for total, each in zip(totals, known, strict=True)
    ]
    return found
