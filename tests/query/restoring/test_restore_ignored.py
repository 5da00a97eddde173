"""restoreFrom into a location with committed epochs is ignored, with a visible warning."""

from __future__ import annotations

import logging

import pytest

import pyspark_ckpt as ckpt
from tests.query.harness import OFTEN, Job, newest_checkpoint
from tests.query.model import Count

OUTPUT = "k string, n long"


def warnings_of(
    job: Job, path: str | None, caplog: pytest.LogCaptureFixture
) -> tuple[ckpt.CheckpointedQuery, list[str]]:
    """Run a job, by default without a path, and return what it warns of a restore."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pyspark_ckpt"):
        query = job.run(path)
    return query, [text for text in caplog.messages if "restoreFrom" in text]


@pytest.mark.soak
def test_another_path_is_warned_of(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job = job.but(processor=Count, output=OUTPUT).using(OFTEN)
    job.feed.add([("a", 1)])
    first = newest_checkpoint(job.run())
    fork = job.but(location="fork", out="fork-out")
    assert warnings_of(fork, first, caplog)[1] == []
    job.feed.add([("a", 1)])
    query, shown = warnings_of(fork, f"{first}/", caplog)  # every restart has the path
    assert shown == []
    assert query.lastRestore is not None
    second = newest_checkpoint(job.run())
    nowhere = str(job.base / "nowhere")
    for path in (second, nowhere):
        query, (shown,) = warnings_of(fork, path, caplog)
        assert query.lastRestore is not None
        assert query.lastRestore.path == first
        words = (path, "is ignored", str(fork.location_path), first, "fresh checkpointLocation")
        assert all(word in shown for word in words), shown
    assert "was never restored" in warnings_of(job, second, caplog)[1][0]
    assert fork.result() == [("a", 2)]
