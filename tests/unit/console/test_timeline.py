"""The time of an epoch by phase."""

from __future__ import annotations

import pytest

from pyspark_ckpt.console.data.timeline import phases_of
from pyspark_ckpt.history.run_record import EpochRecord, OperatorEpoch

EPOCH = EpochRecord(
    epoch=7, began_at_ms=0, duration_ms=1000, rows=1,
    phases_ms={
        "latestOffset": 20, "getBatch": 1, "walCommit": 30, "queryPlanning": 40, "addBatch": 800,
        "commitOffsets": 50,
    },
)  # fmt: skip


def done(began_ms: int, **phases: int) -> OperatorEpoch:
    found = dict.fromkeys(("open_ms", "read_ms", "user_ms", "write_ms", "barrier_ms"), 0) | phases
    return OperatorEpoch(uid="op", epoch=7, began_ms=began_ms, **found)


def test_the_time_of_an_epoch_is_divided_without_a_gap() -> None:
    operators = [
        done(171, open_ms=10, read_ms=20, user_ms=300, write_ms=40, barrier_ms=50),
        done(400, user_ms=100),
    ]
    found = phases_of(EPOCH, operators)
    assert found == {
        "plan": 61, "shuffle": 100, "open state": 10, "read": 20, "user code": 400, "write": 40,
        "barrier": 50, "sink": 180, "tasks and sink": 0, "Spark's logs": 80, "other": 59,
    }  # fmt: skip
    assert sum(found.values()) == EPOCH.duration_ms


def test_an_epoch_whose_operators_are_not_known_is_not_divided() -> None:
    found = phases_of(EPOCH, [])
    assert found["tasks and sink"] == 800
    assert (found["user code"], found["sink"], found["shuffle"]) == (0, 0, 0)
    assert sum(found.values()) == EPOCH.duration_ms


@pytest.mark.parametrize(("began_ms", "shuffle"), [(-5_000, 0), (10**9, 500)])
def test_a_host_whose_clock_is_wrong_does_not_make_a_phase_longer_than_its_epoch(
    began_ms: int, shuffle: int
) -> None:
    found = phases_of(EPOCH, [done(began_ms, user_ms=300)])
    assert (found["shuffle"], found["sink"]) == (shuffle, 500 - shuffle)
    assert sum(found.values()) == EPOCH.duration_ms
