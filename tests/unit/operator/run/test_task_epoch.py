"""The epoch of a task comes from Spark or ``foreachBatch``, or an error is raised."""

from __future__ import annotations

import msgspec
import pytest

from pyspark_ckpt.errors import FencedError, UnknownEpochError
from pyspark_ckpt.operator.descriptor import AnnouncedEpoch, Drain, Runtime, encode_announced
from pyspark_ckpt.operator.run.task_epoch import epoch_of_task
from pyspark_ckpt.settings import EPOCH_KEY, Materialization

RUNTIME = Runtime(
    query_id="q",
    run="r",
    checkpoint_location="/loc",
    announces_epochs=False,
    rolled_back=(),
    checkpoints_directory="/loc/c",
    query_subdirectory=False,
    backend_type="rocksdb",
    inline_threshold_bytes=0,
    memory_limit_bytes=1,
    materialization=Materialization(1, 1, 1),
)
SPARKS = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}
ANNOUNCED = {EPOCH_KEY: encode_announced(AnnouncedEpoch(8, 1000))}


def epoch(properties: dict[str, str], *, announces: bool, drain: Drain | None = None) -> int:
    runtime = msgspec.structs.replace(RUNTIME, announces_epochs=announces, drain=drain)
    return epoch_of_task(properties.get, runtime, 1000, "operator 'op', subtask 1")


def test_what_is_said() -> None:
    assert epoch(SPARKS, announces=False) == 7
    assert epoch({**SPARKS, "sql.streaming.queryId": "another"} | ANNOUNCED, announces=True) == 8


@pytest.mark.parametrize(
    ("properties", "announces"),
    [
        ({}, False),
        ({"sql.streaming.queryId": "q"}, False),
        ({"streaming.sql.batchId": "7"}, False),
        ({**SPARKS, "sql.streaming.queryId": "another"}, False),
        (SPARKS, True),  # it may be inherited from an earlier epoch
        ({EPOCH_KEY: encode_announced(AnnouncedEpoch(8, 999))}, True),
    ],
)
def test_nothing_is_a_default(properties: dict[str, str], *, announces: bool) -> None:
    with pytest.raises(UnknownEpochError, match="query q, operator 'op', subtask 1"):
        epoch(properties, announces=announces)


@pytest.mark.parametrize(("number", "announces"), [(7, False), (8, True)])
def test_a_run_that_drains_runs_no_other_epoch(number: int, *, announces: bool) -> None:
    """Another driver may commit the epoch that drains, and Spark then begins the next one."""
    properties = SPARKS | ANNOUNCED
    assert epoch(properties, announces=announces, drain=Drain(number, 5)) == number
    with pytest.raises(FencedError, match=f"for epoch {number - 1} only.*not for epoch {number}:"):
        epoch(properties, announces=announces, drain=Drain(number - 1, 5))
