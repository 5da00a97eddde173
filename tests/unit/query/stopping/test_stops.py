"""A restart is not to answer for a run that has ended, and tells of what it does not mend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.query.checkpoint_taker import CheckpointTaker
from pyspark_ckpt.query.stopping import stops as module
from pyspark_ckpt.query.stopping.run_state import RunState
from pyspark_ckpt.query.stopping.stops import RunStops
from pyspark_ckpt.restarting.turn import turn_of
from pyspark_ckpt.sessions.classic import ClassicSession
from tests.faults.leases import LeaseOf

RUNNING = SimpleNamespace(
    sparkContext=SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    )
)
"""A session that has not ended."""

ALONE = SimpleNamespace(is_lost=False)
"""The race of a run whose query has no other driver."""


def taker_of(runner: Any) -> CheckpointTaker:
    """Return what asks whether another driver runs the query."""
    unused: Any = None
    return CheckpointTaker(runner, cast("Any", ALONE), unused, unused, 0)


def test_a_savepoint_that_holds_a_restart_up_while_somebody_stops_the_run() -> None:
    """An earlier restart could not stop the run, which went on."""
    holds = iter([True, False])

    def out_of_reach() -> None:
        msg = "store: connection reset"
        raise OSError(msg)

    runner = SimpleNamespace(
        hold=SimpleNamespace(wait=lambda _: next(holds)), lease=LeaseOf(out_of_reach)
    )
    query = SimpleNamespace(id="q", isActive=True)
    state = RunState(cast("Any", query), ClassicSession(cast("Any", RUNNING)))
    run: Any = SimpleNamespace(
        check_session=lambda: None,
        query_id="q",
        query=query,
        spark=RUNNING,
        timeout_ms=1000,
        runner=runner,
        taker=taker_of(runner),
        state=state,
    )
    stops = RunStops(run)
    with pytest.raises(OSError, match="connection reset"):
        stops.to_restart()
    assert not state.is_for_restart
    query.isActive = False
    with pytest.raises(CheckpointAbortedError, match="a savepoint takes longer"):
        stops.to_restart()
    assert not state.may_start_again()


def test_a_restart_finishes_the_last_epoch_while_it_has_the_turn_of_the_location(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start of this process neither fences it nor meets that epoch."""
    monkeypatch.setattr(module, "stop_between_epochs", lambda *_: None)
    monkeypatch.setattr(module, "last_metadata", lambda *_: "the last epoch")
    has_turn: list[bool] = []

    def look(*_: object) -> None:
        has_turn.append(turn_of("/location").locked())

    log = SimpleNamespace(storage=SimpleNamespace(url="/location"), committed_epoch=lambda: 0)
    hold = SimpleNamespace(wait=lambda _: True)
    query = SimpleNamespace(id="q", isActive=True, exception=lambda: None)
    runner = SimpleNamespace(hold=hold, lease=LeaseOf(look), covers=lambda _: True)
    run: Any = SimpleNamespace(
        check_session=lambda: None,
        query_id="q", query=query, spark=RUNNING,
        timeout_ms=1000, files=SimpleNamespace(spark_log=log), join=lambda: None,
        error_so_far=lambda: None,
        runner=runner, taker=taker_of(runner),
        state=RunState(cast("Any", query), ClassicSession(cast("Any", RUNNING))),
        last_epochs=SimpleNamespace(finish_begun=look),
    )  # fmt: skip
    assert RunStops(run).to_restart() == "the last epoch"
    assert has_turn == [False, True, True]  # it looks for newer drivers before the stop, too
