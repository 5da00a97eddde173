"""A stopped query's location is rolled back to a retained checkpoint, and forward again."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.restarting import rollback as rolling_back
from tests.query.harness import (
    CHECKPOINT_DIR,
    INLINE,
    RETAINED,
    Job,
    completed,
    digests,
    flip_bit,
    refused,
)
from tests.query.leftovers import metadata_json, paths_in
from tests.query.model import events_of, expected, expected_after


def test_rollback(job: Job) -> None:
    """A running query is refused. Afterwards state and offsets are the checkpoint's."""
    job = job.using({INLINE: "0b", RETAINED: 10})
    for epoch in range(3):
        job.feed.add(events_of(epoch))
        query = job.run()
    ids = sorted(row.checkpoint_id for row in completed(query) if row.epoch == 1)
    to, location = f"chk-{ids[0]}", str(job.location_path)
    highest = max(row.checkpoint_id for row in completed(query))
    with job.running() as query:
        with refused(ckpt.RestoreError, query.id, "stop", unchanged=job.base / "out"):
            ckpt.rollback(location, to)
    with refused(ckpt.CheckpointNotFoundError, "chk-99", unchanged=job.location_path / "offsets"):
        ckpt.rollback(location, "chk-99")
    before = digests(job.location_path)
    made = ckpt.rollback(location, to)
    kept = Path(made.kept)
    moved = {str(kept / Path(k).relative_to(job.location_path)): v for k, v in before.items()}
    claims = {str(path) for path in kept.glob("_exchange-*")}
    assert {k: v for k, v in digests(kept).items() if k not in claims} == moved
    with refused(ckpt.RestoreError, "out", "new path", unchanged=job.base):
        job.run()
    again = job.but(out="out2")
    query = again.run()
    assert again.result() == expected_after(job.feed.rows, 40)
    assert job.spark.read.load(str(job.base / "out2")).count() == 20
    assert query.lastRestore is not None
    assert min(row.checkpoint_id for row in completed(query)) > highest
    (job.location_path / "_rollback").write_text("{}")
    with refused(ckpt.RestoreError, "interrupted", "rollback", unchanged=job.base):
        again.run()
    (job.location_path / "_rollback").unlink()
    undone = ckpt.rollback(location, kept.name)
    assert Path(undone.kept) != kept
    assert not kept.exists()
    job.feed.add(events_of(3))
    job.run()
    assert job.result() == expected(job.feed.rows)
    flip_bit(job.checkpoint_path / to / "_metadata")
    with refused(ckpt.CorruptFileError, to, unchanged=job.location_path / "offsets"):
        ckpt.rollback(location, to)


def test_a_rollback_that_fails_leaves_nothing_behind(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is outside; the next rollback also removes what a killed one left."""
    outside = job.base / "outside"
    job = job.using({INLINE: "0b", RETAINED: 10, CHECKPOINT_DIR: outside})
    for epoch in range(2):
        job.feed.add(events_of(epoch))
        query = job.run()
    checkpoints = outside / str(query.id)
    of_epoch = {row.epoch: Path(row.path).name for row in completed(query)}
    newest = metadata_json(checkpoints / of_epoch[1])
    first = paths_in(metadata_json(checkpoints / of_epoch[0])["operators"])
    damaged = checkpoints / min(paths_in(newest["operators"]) - first)
    flip_bit(damaged)
    with refused(ckpt.CorruptFileError, damaged.name, unchanged=job.base):
        ckpt.rollback(str(job.location_path), of_epoch[1], str(outside))

    with monkeypatch.context() as patch:  # as if it were killed: nothing is cleared
        patch.setattr(rolling_back, "_clear_leftovers", lambda *_: None)
        with pytest.raises(ckpt.CorruptFileError, match=damaged.name):
            ckpt.rollback(str(job.location_path), of_epoch[1], str(outside))
    assert len(list(outside.iterdir())) == 2
    assert len(list(job.location_path.glob("_rolling_back-*"))) == 1
    ckpt.rollback(str(job.location_path), of_epoch[0], str(outside))
    assert not list(job.location_path.glob("_rolling_back-*"))
    assert len(list(outside.iterdir())) == 2
    again = job.but(out="out2")
    again.run()
    assert again.result() == expected_after(job.feed.rows, 20)
