"""The benchmark as a user starts it, with real Spark at the smallest size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.workloads.known import WITH_PROGRAMS, WORKLOADS

ROOT = Path(__file__).parents[2]
TINY = ["--scale", "0.001", "--repetitions", "1", "--most-epochs", "1"]
OURS, PEER = "pyspark_ckpt batches, rocksdb", "groupBy.agg in the JVM"

WITH_A_WRONG_EXPECTATION = """
import sys
from benchmarks.__main__ import main
from benchmarks.workloads import counting
right = counting.running_counts
counting.running_counts = lambda files: right(files).iloc[1:]
sys.exit(main(sys.argv[1:]))
"""

pytestmark = pytest.mark.own_jvm


def benchmark(
    results: Path, *arguments: str, program: str = ""
) -> subprocess.CompletedProcess[str]:
    what = ["-c", program] if program else ["-m", "benchmarks"]
    command = [sys.executable, *what, *TINY, "--results", str(results), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.soak
def test_one_workload_gives_figures_a_plot_and_a_breakdown(tmp_path: Path) -> None:
    done = benchmark(tmp_path, "--workload", "W1", "--contenders", OURS, PEER)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("result is right") == 2
    figures = json.loads((tmp_path / "w1_running_count.json").read_text())
    ours = figures["cases"]["running count"][OURS]
    assert ours[f"times as fast as {PEER}"]["median"] > 0
    assert [len(run["epoch_ms"]) for run in ours["repetitions"]] == [1]
    assert figures["targets"][0]["target"] == f"rows/s, {OURS} / {PEER}"
    text = (tmp_path / "w1_running_count.md").read_text()
    phases = text.partition("## Where an epoch goes")[2]
    for phase in (
        "wait for Spark's rows", "grouping", "decode", "encode", "write", "user code", "segment",
        "output",
    ):  # fmt: skip
        assert f"| {phase} " in phases
    assert (tmp_path / "w1_running_count.png").exists()


@pytest.mark.soak
def test_a_wrong_result_gives_no_figures(tmp_path: Path) -> None:
    arguments = ("--workload", "W1", "--contenders", OURS)
    done = benchmark(tmp_path, *arguments, program=WITH_A_WRONG_EXPECTATION)
    assert done.returncode == 1
    assert "WRONG RESULT, no figures" in done.stderr
    assert OURS in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert "rows/s" not in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_contender_of_every_workload_is_right(workload: str, tmp_path: Path) -> None:
    done = benchmark(tmp_path, "--workload", workload)
    assert done.returncode == 0, done.stderr[-3000:]
    turns = sum(len(case.contenders) for case in WORKLOADS[workload](1).cases)
    assert done.stdout.count("result is right") == turns


@pytest.mark.soak
@pytest.mark.skipif(
    not (ROOT / ".venv-flink" / "bin" / "python").exists(),
    reason="make bench ARGS=--peers installs Flink",
)
@pytest.mark.parametrize("workload", WITH_PROGRAMS)
def test_flink_and_bytewax_are_right(workload: str, tmp_path: Path) -> None:
    done = benchmark(tmp_path, "--peers", "--workload", workload, "--contenders", "flink", "byte")
    assert done.returncode == 0, done.stderr[-3000:]
    has_bytewax = (ROOT / ".venv-bytewax" / "bin" / "python").exists()
    assert done.stdout.count("result is right") >= 4 + has_bytewax
