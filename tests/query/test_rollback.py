"""A stopped query's own location goes back to a retained checkpoint, and forward again."""

from __future__ import annotations

from pathlib import Path

import pyspark_ckpt as ckpt
from tests.query.harness import INLINE, RETAINED, Job, completed, digests, flip_bit, refused
from tests.query.model import events_of, expected, expected_after


def test_rollback(job: Job) -> None:
    """Refused while it runs; then state and offsets are the checkpoint's, in a new sink path."""
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
    assert digests(kept) == moved
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
