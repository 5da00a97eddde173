"""The content of the report, which is also in the JSON."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.reports.plot import save_plot
from benchmarks.reports.ratios import Figures
from benchmarks.reports.report import Report
from benchmarks.runs.case import Figure, Target
from tests.benchmarks.cases import run, workload

TARGET = Target("rows/s, ours / peer", ("small", "ours"), ("small", "peer"), 3)
GROWTH = Target(
    "ms, large / small",
    ("large", "ours"),
    ("small", "ours"),
    1.3,
    Figure.MS_PER_EPOCH,
    at_least=False,
)
REPETITIONS = [
    {
        (case, name): run(100, ms, ms)
        for case, name, ms in (
            ("small", "ours", 50 * number),
            ("small", "peer", 100 * number),
            ("large", "ours", 60 * number),
            ("large", "peer", 100 * number),
        )
    }
    for number in (1, 2, 3)
]


def report(breakdown: tuple[str, ...] = ()) -> Report:
    of = workload([TARGET, GROWTH])
    return Report(of, {"scale": 1}, {"CPUs": 2}, REPETITIONS, breakdown)


def test_the_tables_have_every_contender_of_every_case() -> None:
    text = report().markdown()
    assert "## the small case" in text
    assert "## the large case" in text
    rows = [line for line in text.splitlines() if line.startswith(("| ours ", "| peer "))]
    assert len(rows) == 8  # figures and parts, of two contenders in two cases
    assert "1,000 (667 to 2,000)" in rows[0]
    assert "2.00 (2.00 to 2.00)" in rows[0]


def test_targets_are_judged_across_cases_too() -> None:
    text = report().markdown()
    assert "- rows/s, ours / peer: 2.00 (2.00 to 2.00), target at least 3: NOT reached" in text
    assert "- ms, large / small: 1.20 (1.20 to 1.20), target at most 1.3: reached" in text


def test_settings_machine_and_breakdown_are_shown() -> None:
    text = report(("## Where an epoch goes", "somewhere")).markdown()
    assert "Settings: scale 1." in text
    assert "Machine: CPUs 2." in text
    assert text.rstrip().endswith("somewhere")


def test_json_has_every_repetition_and_is_valid() -> None:
    figures = json.loads(json.dumps(report().as_json(), allow_nan=False))
    ours = figures["cases"]["small"]["ours"]
    assert ours["times as fast as peer"] == {"median": 2, "lowest": 2, "highest": 2}
    assert [one["epoch_ms"] for one in ours["repetitions"]] == [[50] * 2, [100] * 2, [150] * 2]
    assert [one["reached"] for one in figures["targets"]] == [False, True]


def test_the_plot_is_a_small_picture(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    save_plot(workload([]), Figures(REPETITIONS), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 100_000
