"""A query whose executors never keep its state says so once, with advice."""

from __future__ import annotations

import logging

import pytest

from pyspark_ckpt.checkpoint.contents import PATIENCE_EPOCHS, RebuildNotice
from pyspark_ckpt.formats.counters import EpochMetrics
from pyspark_ckpt.formats.handle import Handle
from tests.query.harness import INLINE, INTERVAL, Job, drop_local_copies
from tests.query.model import events_of, expected

ADVICE = "spark.dynamicAllocation.executorIdleTimeout"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if ADVICE in text]


@pytest.mark.slow
def test_state_that_is_rebuilt_in_every_epoch(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Local copies go between two epochs, as with executors that are given back."""
    job = job.using({INTERVAL: "1h", INLINE: "0b"})
    with caplog.at_level(logging.WARNING, "pyspark_ckpt"), job.running() as query:
        for number in range(PATIENCE_EPOCHS + 2):
            assert number >= PATIENCE_EPOCHS or not warnings(caplog)
            job.feed.add(events_of(number))
            query.processAllAvailable()
            query.triggerCheckpoint()
            drop_local_copies(job.spark)
        assert len(warnings(caplog)) == 1
    assert job.result() == expected(job.feed.rows)


def test_copies_that_stay_and_subtasks_without_rows_are_no_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handles(epoch: int, *rebuilds: int | None) -> list[Handle]:
        return [
            Handle(
                query_id="q", uid="op", subtask=number, parallelism=len(rebuilds),
                max_parallelism=128, epoch=epoch if each is not None else 0, key_schema="{}",
                metrics=EpochMetrics(rebuilds=each or 0),
            )
            for number, each in enumerate(rebuilds)
        ]  # fmt: skip

    notice = RebuildNotice("q")
    rebuilt, idle, kept = (1, 1), (None, None), (1, 0)
    epochs = [rebuilt, rebuilt, kept, rebuilt, idle, rebuilt]
    with caplog.at_level(logging.WARNING, "pyspark_ckpt"):
        for epoch, rebuilds in enumerate(epochs, 1):
            for _ in range(2):  # a checkpoint and a savepoint of one epoch
                notice.look_at("op", epoch, handles(epoch, *rebuilds))
        assert not warnings(caplog)
        notice.look_at("op", 7, handles(7, 1, None))
        notice.look_at("op", 8, handles(8, 1, 1))
    assert len(warnings(caplog)) == 1
