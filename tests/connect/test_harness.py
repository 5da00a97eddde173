"""The harness needs no session, so a program for Spark Connect tests its processors without one."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.connect.conftest import ROOT

PROGRAM = """
import sys
from pyspark.sql import Row, SparkSession
from pyspark_ckpt.testing import ProcessorHarness
from tests.unit.testing.processors import Count

harness = ProcessorHarness(Count())
print([harness.test("a", [Row(n=2)])[0].n for _ in range(2)])
print(SparkSession.getActiveSession(), "pyspark.sql.connect.session" in sys.modules)
"""


def test_the_harness_starts_no_session() -> None:
    """The address in the environment is nobody's, and there is no JVM to be found."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={
            **os.environ,
            "PYTHONPATH": ROOT,
            "SPARK_REMOTE": "sc://127.0.0.1:1",
            "JAVA_HOME": "/nowhere",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["[2, 4]", "None False"], done.stderr
