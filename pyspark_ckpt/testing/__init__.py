"""Unit tests of processors without Spark, on the library's own state, timers and barriers."""

from pyspark_ckpt.testing.crash_step import CrashStep
from pyspark_ckpt.testing.harness import ProcessorHarness
from pyspark_ckpt.testing.snapshot import Snapshot

__all__ = ["CrashStep", "ProcessorHarness", "Snapshot"]
