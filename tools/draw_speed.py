"""Draw how many times as fast the library was as PySpark's operator, from the checked-in results.

``make pages`` writes ``docs/pictures/speed.png``, which README and the benchmarks page show.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "pictures" / "speed.png"
PEER = "transformWithStateInPandas"
BARS = (
    (
        "count of 100,000 keys, declared aggregates",
        "w1_running_count",
        "pyspark_ckpt combined before the shuffle, rocksdb",
    ),
    ("count of 100,000 keys, batches of keys", "w1_running_count", "pyspark_ckpt batches, rocksdb"),
    ("count of 100,000 keys, rows", "w1_running_count", "pyspark_ckpt rows, rocksdb"),
    ("the same, a pandas processor unchanged", "w1_running_count", "pyspark_ckpt pandas, rocksdb"),
    ("sessions in event time, Arrow tables", "w2_sessions", "pyspark_ckpt Arrow, rocksdb"),
    ("sessions in event time, rows", "w2_sessions", "pyspark_ckpt rows, rocksdb"),
    ("maps of 1,000,000 keys, 1 % touched", "w3_wide_state", "pyspark_ckpt rows, rocksdb"),
    ("maps, a pandas processor unchanged", "w3_wide_state", "pyspark_ckpt pandas, rocksdb"),
)


def factors() -> dict[str, float]:
    """Return the median factor of each bar, by its label."""
    return {label: _factor(name, contender) for label, name, contender in BARS}


def draw(path: Path) -> None:
    """Write the picture."""
    bars = factors()
    figure, axes = plt.subplots(figsize=(8, 3))
    axes.barh(list(bars), list(bars.values()), color="#2a6f97")
    axes.axvline(1, color="#bc6c25", linewidth=2)
    for at, value in enumerate(bars.values()):
        axes.annotate(f" {value:.2g} times", (value, at), va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(bars.values()))
    axes.set_title(f"Times as fast as PySpark's {PEER} (orange line)", fontsize=10, loc="left")
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _factor(name: str, contender: str) -> float:
    results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    (case,) = results["cases"].values()
    factor: float = case[contender][f"times as fast as {PEER}"]["median"]
    return factor


if __name__ == "__main__":
    draw(PICTURE)
