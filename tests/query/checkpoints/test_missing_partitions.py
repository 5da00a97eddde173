"""A listing of Spark's state that lacks a subtask is not a state without the subtask's keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.checkpoint import handles
from pyspark_ckpt.spark import state_reader
from tests.query.harness import INLINE, INTERVAL, Job, digests
from tests.query.model import events_of, expected


@pytest.fixture(params=["by name", "by the driver", "by a job"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who finds out; Spark's own listing may lack what the library's has."""
    if request.param == "by a job":
        monkeypatch.setattr(state_reader, "FEW_PARTITIONS", 1)
    if request.param != "by name":
        monkeypatch.setattr(handles, "_check_names", lambda *_: None)
    monkeypatch.setattr(handles, "_has_changes", lambda *_: False)
    return str(request.param)


@pytest.mark.soak_variants
def test_no_checkpoint_savepoint_or_start_is_without_a_subtask(
    job: Job, reader: str, tmp_path: Path
) -> None:
    """The cleaner would then take the live files of the subtask for ones that nothing needs."""
    job = job.using({INLINE: "0b", INTERVAL: "1h"})
    job.feed.add(events_of(0))
    # In the middle a gap is left, which Spark's reader sees.
    partition = "0" if reader == "by name" else "1"
    hidden, there = tmp_path / "hidden", job.location_path / "state" / "0" / partition
    with job.running() as query:
        query.processAllAvailable()
        query.triggerCheckpoint()
        job.feed.add(events_of(1))
        query.processAllAvailable()
        there.rename(hidden)
        before = digests(job.checkpoint_path / "taskowned")
        _refused(query.triggerCheckpoint)
        _refused(query.triggerSavepoint, str(tmp_path / "savepoints"))
        assert digests(job.checkpoint_path / "taskowned") == before
        hidden.rename(there)
        query.triggerCheckpoint()
    with job.running() as query:  # it knows no handles of the run before
        query.processAllAvailable()
        there.rename(hidden)
    _refused(query.stopWithSavepoint, str(tmp_path / "savepoints"))
    _refused(job.run)
    assert not list(tmp_path.glob("savepoints/*/_metadata"))
    hidden.rename(there)
    job.feed.add(events_of(2))
    job.run()
    assert job.result() == expected(job.feed.rows)


def _refused(call: Any, *arguments: Any) -> None:
    with pytest.raises(
        (ckpt.errors.CheckpointAbortedError, ckpt.errors.CorruptFileError)
    ) as caught:
        call(*arguments)
    assert "/state/0" in str(caught.value)
    assert re.search(r"put (?:them|it) back", str(caught.value), re.IGNORECASE)
