"""A restart that does not get as far as its stop is not to answer for a run that has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.query.stopping.stops import RunStops


def test_a_savepoint_that_holds_a_restart_up_while_somebody_stops_the_run() -> None:
    """An earlier restart could not stop the run, which went on."""
    holds = iter([True, False])

    def out_of_reach() -> None:
        msg = "store: connection reset"
        raise OSError(msg)

    runner = SimpleNamespace(
        hold=SimpleNamespace(wait=lambda _: next(holds)), check_not_fenced=out_of_reach
    )
    query = SimpleNamespace(isActive=True)
    run: Any = SimpleNamespace(query_id="q", query=query, timeout_ms=1000, runner=runner)
    stops = RunStops(run)
    with pytest.raises(OSError, match="connection reset"):
        stops.to_restart()
    assert not stops.is_for_restart
    query.isActive = False
    with pytest.raises(CheckpointAbortedError, match="a savepoint takes longer"):
        stops.to_restart()
    assert not stops.may_start_again()
