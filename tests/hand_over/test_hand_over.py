"""Rows go through Arrow where PySpark lets them, packed elsewhere, with the same results.

The settings of a worker belong to a Spark context, so most cases run in their own driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hand_over import program

ARROW, PACKED = "arrow", "packed"

SESSION: list[tuple[dict[str, str], str]] = [
    ({}, ARROW),
    ({"spark.ckpt.internal.execution.hand-over": "packed"}, PACKED),
    ({"spark.sql.pyspark.udf.profiler": "perf"}, PACKED),
    ({"spark.sql.execution.arrow.useLargeVarTypes": "true"}, ARROW),
    ({"spark.sql.execution.arrow.maxRecordsPerBatch": "3"}, ARROW),
    ({"spark.sql.execution.arrow.compression.codec": "zstd"}, ARROW),
    ({"spark.sql.execution.arrow.compression.codec": "lz4"}, ARROW),
]
CONTEXT: list[tuple[dict[str, str], str]] = [
    ({"spark.python.use.daemon": "false"}, ARROW),
    ({"spark.python.worker.reuse": "false"}, ARROW),
    ({"spark.python.unix.domain.socket.enabled": "true"}, ARROW),
    ({"spark.python.worker.faulthandler.enabled": "true"}, ARROW),
    ({"spark.python.udf.pipelined.enabled": "true"}, PACKED),
    ({"spark.python.profile": "true"}, ARROW),
]


def run(directory: Path, cases: list[dict[str, str]], context: dict[str, str]) -> list[Any]:
    """Run the program once for each conf of a session, in one driver."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, program.__file__, str(directory), json.dumps([context, cases])],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=540,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results: list[Any] = json.loads((directory / program.RESULTS).read_text())
    return results


def check(results: list[Any], cases: list[tuple[dict[str, str], str]]) -> None:
    expected = program.expected()
    for found, (conf, hand_over) in zip(results, cases, strict=True):
        assert found["rows"] == expected, conf
        assert set(found["handOvers"]) == {hand_over}, conf
        assert found["epochs"] >= 4, conf


@pytest.mark.soak
def test_settings_of_a_session(tmp_path: Path) -> None:
    check(run(tmp_path, [conf for conf, _ in SESSION], {}), SESSION)


@pytest.mark.soak
@pytest.mark.parametrize("conf", CONTEXT, ids=lambda conf: next(iter(conf[0])))
def test_settings_of_a_context(tmp_path: Path, conf: tuple[dict[str, str], str]) -> None:
    check(run(tmp_path, [{}, {"spark.ckpt.internal.execution.hand-over": "packed"}], conf[0]),
          [conf, ({}, PACKED)])  # fmt: skip


@pytest.mark.soak
def test_settings_of_make_hand_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each session of ``make prove WHAT=hand-over`` has them from Spark's directory of settings."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(Path(__file__).with_name("packed_conf")))
    check(run(tmp_path, [{}], {}), [({}, PACKED)])
