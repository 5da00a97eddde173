"""CPU time between two times, and what is read of real processes."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.machine.samples import CpuSeconds, Sample, Samples, cpu_between, look

BURN = "n = 0\nwhile n < 20_000_000: n += 1\n"

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").is_file(), reason="only Linux has such figures"
)


def sample(at_s: float, work: float, compilers: float) -> Sample:
    return Sample(at_s, CpuSeconds(work, compilers), 0)


@pytest.mark.parametrize(
    ("begin_s", "end_s", "work", "compilers"),
    [
        (10, 30, 12, 6),
        (10, 20, 4, 4),
        (15, 25, 6, 3),
        (12, 14, 0.8, 0.8),
        (0, 99, 12, 6),
        (40, 50, 0, 0),
    ],
)
def test_between_two_looks_time_is_spent_evenly(
    begin_s: float, end_s: float, work: float, compilers: float
) -> None:
    samples = [sample(10, 100, 50), sample(20, 104, 54), sample(30, 112, 56)]
    cpu = cpu_between(samples, begin_s, end_s)
    assert cpu is not None
    assert cpu.work == pytest.approx(work)
    assert cpu.compilers == pytest.approx(compilers)


def test_without_two_looks_there_is_no_figure() -> None:
    assert cpu_between([], 0, 1) is None
    assert cpu_between([sample(0, 1, 1)], 0, 1) is None


@needs_proc
def test_time_of_a_child_that_has_ended_counts() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Samples() as samples:
        subprocess.run([sys.executable, "-c", BURN], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cpu = samples.cpu_between(0, time.time())
    assert cpu is not None
    assert cpu.work >= spent - 0.05  # the clocks of /proc have ticks of 10 ms
    assert samples.workers_peak_bytes(0) is not None


@needs_proc
def test_compilers_of_the_jvm_are_apart(spark: SparkSession) -> None:
    spark.range(10).count()
    cpu = look().cpu
    assert cpu.compilers > 0
    assert cpu.work > 0
