"""Rules go on, whatever a restart by them raises."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_ckpt.api import rescaling
from pyspark_ckpt.restarting.rules import RescaleRules
from pyspark_ckpt.restarting.turn import Turn

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
