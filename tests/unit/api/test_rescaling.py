"""Rules go on, whatever a restart by them raises."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from pyspark_ckpt.query import restarts as rescaling
from pyspark_ckpt.restarting.rules import RescaleRules
from pyspark_ckpt.restarting.turn import Turn

RUNNING = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
REPORT = {
    "batchId": 1,
    "durationMs": {"triggerExecution": 99_000, "addBatch": 1},
    "sources": [{"numInputRows": 5}],
}


def test_an_error_of_the_users_function_ends_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescaling, "POLL_S", 0.01)
    calls: list[int] = []
    enough = threading.Event()
    operators = SimpleNamespace(descriptors=[SimpleNamespace(parallelism=2)])

    def restart(program: Any, parallelism: int, reason: str) -> None:
        calls.append(parallelism)
        if len(calls) == 3:
            query.isActive = False
            enough.set()
        raise KeyError("REGION")

    query: Any = SimpleNamespace(
        id="q",
        isActive=True,
        _query=SimpleNamespace(runId="r", recentProgress=[REPORT]),
        _turn=Turn("q"),
        _restart=restart,
        _coordinator=SimpleNamespace(files=SimpleNamespace(operators=operators)),
    )
    rescaling.follow(query, RescaleRules(1, 8, 30_000, None, 10, 1, 0))
    assert enough.wait(60)
    assert calls == [calls[0]] * 3


def test_a_look_that_fails_ends_no_rules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails with any error, such as of Py4J or of a report in another form; one line says so."""
    monkeypatch.setattr(rescaling, "POLL_S", 0.01)
    done = threading.Event()
    errors = iter([Py4JError("gone"), OSError("gone"), KeyError("durationMs")])

    class Run(SimpleNamespace):
        @property
        def recentProgress(self) -> list[Any]:
            for error in errors:
                raise error
            return [REPORT]

    def restart(*_: Any) -> None:
        query.isActive = False
        done.set()

    operators = SimpleNamespace(descriptors=[SimpleNamespace(parallelism=2)])
    query: Any = SimpleNamespace(
        id="q",
        isActive=True,
        _spark=SimpleNamespace(sparkContext=SimpleNamespace(_jsc=RUNNING)),
        _query=Run(runId="r"),
        _turn=Turn("q"),
        _restart=restart,
        _coordinator=SimpleNamespace(files=SimpleNamespace(operators=operators)),
    )
    rescaling.follow(query, RescaleRules(1, 8, 30_000, None, 10, 1, 0))
    assert done.wait(60)
    (line,) = [record.message for record in caplog.records if "look again" in record.message]
    assert line.endswith("look again every 0.01 s: Py4JError: gone")
