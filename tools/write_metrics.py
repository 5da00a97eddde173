"""Write what the list of metrics says into ``docs/metrics.md``: ``make metrics``.

Run it after a change of ``pyspark_ckpt/metrics/declared.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_ckpt.metrics.declared import GROUPS, Metric

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
_LIST = re.compile(r"(?<=^<!-- metrics -->\n).*(?=^<!-- end of metrics -->$)", re.M | re.S)


_HEAD = "| metric | kind | labels | meaning | Flink |\n|---|---|---|---|---|\n"


def tables() -> str:
    """Return a table of the metrics of each group."""
    groups = (f"\n### {group}\n\n{_HEAD}" + "".join(map(_row, GROUPS[group])) for group in GROUPS)
    return "".join(groups) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    flink = f"`{metric.flink}`" if metric.flink else ""
    name, kind = f"`{metric.prometheus_name}`", metric.kind.value
    return f"| {name} | {kind} | {labels} | {metric.help} | {flink} |\n"


def page(before: str) -> str:
    """Return the page on metrics with a new list in it."""
    after, lists = _LIST.subn(lambda _: tables(), before)
    if lists != 1:
        raise ValueError(f"{PAGE} has {lists} lists of metrics; one is needed")
    return after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
