"""The server that PySpark's parity tests start in this process: any free port of loopback.

These tests need a separate process, because a process has either classic sessions or Connect's.
With PySpark 4.1 each module needs one: the closing of a session there waits for retries to the
server of the module before, which has ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql.connect.session import SparkSession

from pyspark_ckpt.sessions import connect

os.environ["SPARK_TESTING"] = "1"  # else it has Spark Connect's default port
os.environ.setdefault("SPARK_CONNECT_TESTING_REMOTE", "local[2]")
_SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.python.authenticate.socketTimeout": "120s",  # of workers, on a busy machine
}
_CONF = " ".join(f"--conf {key}={value}" for key, value in _SETTINGS.items())
os.environ["PYSPARK_SUBMIT_ARGS"] = f"{_CONF} {os.environ['PYSPARK_SUBMIT_ARGS']}"

# PySpark closes the client of a session that Python removes, in whichever thread removes it. In 4.0
# and 4.1 that may be a thread for whose end the closing waits, so the run would never end.
SparkSession.__del__ = lambda _: None


@pytest.fixture(autouse=True)
def _stops_its_queries() -> Iterator[None]:
    """Stop what a failed test left, which runs in sessions that PySpark's tests do not know."""
    yield
    for session in [*connect._clones]:
        if not session.is_stopped and not connect._clones[session].is_stopped:
            for query in session.streams.active:
                query.stop()
