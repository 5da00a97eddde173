"""An attribute that a processor changes outside of state is warned of once per run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row

from pyspark_ckpt.errors import ProcessorError
from pyspark_ckpt.testing import ProcessorHarness
from tests.query.harness import OFTEN, Job
from tests.query.model import Count


class Forgetful(Count):
    """A processor that counts in an attribute, which the next epoch does not have."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.seen[key[0]] = self.seen.get(key[0], 0) + 1
        yield from super().handleInputRows(key, rows, timerValues)


def warned(job: Job, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pyspark_ckpt"), job.running() as query:
        for _ in range(3):
            job.feed.add([("a", 1), ("b", 1), ("c", 1)])
            query.processAllAvailable()
            query.triggerCheckpoint()
    return [text for text in caplog.messages if "processor changed" in text]


@pytest.mark.soak
def test_once_in_each_run(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job = job.but(processor=Forgetful, output="k string, n long").using(OFTEN)
    for _ in range(2):
        (text,) = warned(job, caplog)
        assert "operator 'op': the processor changed 'seen' outside of init" in text
    assert warned(job.but(processor=Count), caplog) == []


def test_an_error_in_the_harness() -> None:
    harness = ProcessorHarness(Forgetful(), failOnLostAttributes=True)
    with pytest.raises(ProcessorError, match="'seen' outside of init"):
        harness.test("a", [Row(v=1)])
    assert harness.peekValueState("count", "a") is None
    assert ProcessorHarness(Forgetful()).test("a", [Row(v=1)]) == [Row(k="a", n=1)]
    assert ProcessorHarness(Count(), failOnLostAttributes=True).test("a", [Row(v=1)])
