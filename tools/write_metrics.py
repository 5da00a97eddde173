"""Write the lists of metrics and counters into ``docs``: ``make pages``.

Run it after a change of ``metrics/declared.py`` or ``formats/counters.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark_ckpt.formats.counters import COUNTERS, Counter
from pyspark_ckpt.metrics.declared import GROUPS, Metric

DOCS = Path(__file__).parents[1] / "docs"

_METRICS_HEAD = "| metric | kind | labels | meaning | Flink |\n|---|---|---|---|---|\n"
_COUNTERS_HEAD = (
    "| field | meaning | of the subtasks | column of `subtask_history` |\n|---|---|---|---|\n"
)


def metrics() -> str:
    """Return a table of the metrics of each group."""
    groups = (
        f"\n### {group}\n\n{_METRICS_HEAD}" + "".join(map(_metric, GROUPS[group]))
        for group in GROUPS
    )
    return "".join(groups) + "\n"


def counters() -> str:
    """Return a table of the counters."""
    rows = (_counter(field, counter) for field, counter in COUNTERS.items())
    return f"\n{_COUNTERS_HEAD}" + "".join(rows) + "\n"


def _metric(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    flink = f"`{metric.flink}`" if metric.flink else ""
    name, kind = f"`{metric.prometheus_name}`", metric.kind.value
    return f"| {name} | {kind} | {labels} | {metric.help} | {flink} |\n"


def _counter(field: str, counter: Counter) -> str:
    column = f"`{field}`" if counter.in_history else ""
    return f"| `{counter.progress}` | {counter.help} | {counter.over.value} | {column} |\n"


PAGES: Mapping[Path, tuple[str, Callable[[], str]]] = {
    DOCS / "metrics.md": ("metrics", metrics),
    DOCS / "processors.md": ("counters", counters),
}
"""The pages, each with the name of its list and what makes the list."""


def page(path: Path) -> str:
    """Return a page with a new list in it."""
    name, written = PAGES[path]
    place = re.compile(rf"(?<=^<!-- {name} -->\n).*(?=^<!-- end of {name} -->$)", re.M | re.S)
    after, lists = place.subn(lambda _: written(), path.read_text(encoding="utf-8"))
    if lists != 1:
        raise ValueError(f"{path} has {lists} lists of {name}; one is needed")
    return after


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(page(each), encoding="utf-8")
