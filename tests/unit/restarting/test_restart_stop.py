"""Stops of a run for good keep a restart out until the last of them is over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.restarting.stopping import RestartStop

PATIENCE_S = 30


class Running:
    """A query that is active."""

    isActive = True  # noqa: N815  # as PySpark names it


class Turn:
    """A lock that says when somebody waits for it."""

    def __init__(self, somebody_waits: threading.Event) -> None:
        self._lock = threading.Lock()
        self._somebody_waits = somebody_waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._somebody_waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_restart_is_refused_until_the_last_stop_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    query: Any = Running()
    restart = RestartStop("q", query)
    second_is_there, second_has_begun, second_may_end = (threading.Event() for _ in range(3))
    monkeypatch.setattr(restart, "_for_good", Turn(second_is_there))

    def second() -> None:
        with restart.left_out():
            second_has_begun.set()
            second_is_there.set()
            assert second_may_end.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        with restart.left_out():
            stop = pool.submit(second)
            assert second_is_there.wait(PATIENCE_S)
        assert second_has_begun.wait(PATIENCE_S)
        with pytest.raises(CheckpointAbortedError, match="is being stopped"), restart.stopping():
            pass
        second_may_end.set()
        stop.result(PATIENCE_S)
    with restart.stopping():
        assert restart.is_under_way
