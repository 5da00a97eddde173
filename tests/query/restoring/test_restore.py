"""restoreFrom with other operators or other names; claim, plan and fallback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.query.start import QueryStart
from tests.query.harness import (
    INLINE,
    RETAINED,
    Feed,
    Job,
    completed,
    digests,
    drop_local_copies,
    flip_bit,
    newest_checkpoint,
    refused,
)
from tests.query.model import in_order
from tests.query.rows.test_several_operators import EPOCHS, SUM, in_pandas, side_by_side
from tests.query.session_conf import session_conf
from tests.query.state.test_schema_change import (
    KEYS,
    MIGRATIONS,
    NEW,
    NEW_EMITTED,
    OLD,
    WRITES,
    add,
    emitted,
    version,
)

RECOVERY = "spark.ckpt.execution.state-recovery."


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(plan=lambda job: side_by_side(job, "kv"), output=SUM).using({INLINE: "0b"})


def operators(job: Job, uids: str) -> Job:
    return job.but(plan=lambda job: side_by_side(job, uids))


def told_by(epochs: list[list[Row]], uid: str) -> list[Row]:
    """Return what an operator of `side_by_side` emits in all epochs."""
    by_parity = [[("odd" if v % 2 else "even", v) for _, v in file] for file in epochs]
    return in_pandas(epochs if uid == "k" else by_parity, 1)


def since(uid: str, first: int) -> list[Row]:
    """Return what it emits in the epochs from `first` on, with the state of earlier ones."""
    before = told_by(EPOCHS[:first], uid)
    return [row for row in told_by(EPOCHS[: first + 1], uid) if row not in before]


@pytest.mark.slow
@pytest.mark.everywhere
def test_operators_are_added_removed_and_renamed(job: Job) -> None:
    """Scenario 35: one is dropped if allowed, one is new, one is renamed; the plan shows all."""
    job.feed.add(*EPOCHS[:2])
    with job.running() as query:
        query.processAllAvailable()
        assert query.lastRestore is None
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    before = digests(Path(savepoint))
    job.feed.add(EPOCHS[2])
    one = operators(job.but(location="loc1", out="out1"), "v")
    with refused(ckpt.errors.RestoreError, "'k'", "allowNonRestoredState", unchanged=job.base):
        one.start(savepoint)
    plan = ckpt.location(savepoint).plan(one.writer())
    assert [row.outcome for row in plan.states if row.operator == "k"] == ["refused", "refused"]
    plan = ckpt.location(savepoint).plan(one.df(), allowNonRestoredState=True)
    assert not plan.refused
    assert re.search(r"k +sum +dropped", str(plan))
    assert re.search(r"v +sum +restored", str(plan))
    one = one.using({f"{RECOVERY}path": savepoint, f"{RECOVERY}ignore-unclaimed-state": "true"})
    restored = one.run().lastRestore
    assert restored is not None
    assert (restored.path, restored.epoch, restored.needs_original) == (savepoint, 1, False)
    assert one.result() == in_order(since("v", 2))
    renamed = ckpt.location(savepoint).rename_uid({"k": "other"}, str(job.base / "renamed")).path
    other = operators(job.but(location="loc2", out="out2"), "kv")
    plan = ckpt.location(renamed).plan(other.df(), allowNonRestoredState=True)
    assert {row.operator: row.outcome for row in plan.states if row.state == "(operator)"} == {
        "k": "new", "v": "restored", "other": "dropped",
    }  # fmt: skip
    other.writer(renamed).restoreFrom(renamed, allowNonRestoredState=True).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert other.result() == in_order(since("v", 2) + told_by([EPOCHS[2]], "k"))
    assert digests(Path(savepoint)) == before


@pytest.mark.soak
def test_claimed_and_fallen_back(job: Job) -> None:
    """Scenarios 10 and 34: a corrupt one is skipped; a claimed one goes after a checkpoint."""
    job = job.using({RETAINED: 10})
    for epoch in range(2):
        job.feed.add(EPOCHS[epoch])
        checkpoint = newest_checkpoint(job.run())
    with job.running() as query:
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
        (older, *_) = sorted(completed(query), key=lambda row: row.checkpoint_id)
    assert older.epoch == 0
    job.feed.add(EPOCHS[2])
    fork = job.but(location="loc1", out="out1")
    writer = fork.writer().restoreFrom(savepoint, claimMode="CLAIM").trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    assert completed(query)
    assert query.lastRestore.claim_mode == "CLAIM"
    assert list((job.base / "savepoints").iterdir()) == []
    assert drop_local_copies(job.spark)
    job.feed.add(EPOCHS[3])
    fork.run()
    both = [in_order(told_by(EPOCHS[:n], "k") + told_by(EPOCHS[:n], "v")) for n in (1, 2, 4)]
    assert in_order(fork.result() + both[1]) == both[2]
    flip_bit(Path(checkpoint) / "_metadata")
    back = job.but(location="loc2", out="out2")
    with refused(ckpt.errors.CorruptFileError, checkpoint, "fallback", unchanged=job.base):
        back.start(checkpoint)
    before = digests(job.location_path)
    query = back.using({f"{RECOVERY}fallback": "true"}).run(checkpoint)
    assert digests(job.location_path) == before
    assert query.lastRestore.epoch == 0
    assert len(query.lastRestore.skipped) >= 1
    assert checkpoint in query.lastRestore.skipped[0]
    assert in_order(back.result() + both[0]) == both[2]


@pytest.mark.slow
def test_a_claim_of_a_driver_that_died_is_given_up(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It died before it had a checkpoint, and the next start says NO_CLAIM."""

    class DriverDiedError(BaseException):
        pass

    def die(*_: object) -> None:
        raise DriverDiedError

    job.feed.add(EPOCHS[0])
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    fork = job.but(location="loc1", out="out1")
    with monkeypatch.context() as patch:
        patch.setattr(QueryStart, "_fence_others", die)
        with pytest.raises(DriverDiedError):
            fork.writer().restoreFrom(savepoint, claimMode="CLAIM").start()
    job.feed.add(EPOCHS[1])
    for mode in ("NO_CLAIM", None, "CLAIM"):  # the claim does not come back
        caplog.clear()
        writer = fork.writer() if mode is None else fork.writer().restoreFrom(savepoint, mode)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert completed(query)
        assert query.lastRestore.claim_mode == "NO_CLAIM"
        assert any("is not deleted" in text for text in caplog.messages) == (mode is not None)
    assert ckpt.location(savepoint).verify()


@pytest.mark.slow
def test_sources_and_arguments_that_do_not_fit(job: Job) -> None:
    """Another number of sources, an unknown claim mode and unknown migrations are refused."""
    job.feed.add(EPOCHS[0])
    checkpoint = newest_checkpoint(job.run())
    fork = job.but(location="loc1", out="out1")
    other = Feed(job.base / "in2")
    rows = job.but(feed=other).stream().selectExpr("k", "v", "v")
    more = fork.but(plan=lambda job: side_by_side(job, "kv").union(rows))
    with refused(ckpt.errors.RestoreError, "1 sources", "reads 2", unchanged=job.base):
        more.start(checkpoint)
    with refused(ckpt.errors.ConfigurationError, "claimMode", "NO_CLAIM", unchanged=job.base):
        fork.writer().restoreFrom(checkpoint, claimMode="TAKE")
    migrations = {"gone": {"sum": ckpt.Migration(renamed_from="x")}}
    with refused(ckpt.errors.PlanError, "'gone'", unchanged=job.base):
        fork.writer().restoreFrom(checkpoint, migrations=migrations).start()


@pytest.mark.slow
def test_migrations_of_a_restore(job: Job) -> None:
    """They run during the restore, also at another parallelism; the query needs none."""
    job = version(job.but(plan=None, output="k string, run long, emitted string"), OLD, WRITES)
    add(job, 0)
    checkpoint = newest_checkpoint(job.run())
    add(job, 1)
    before = digests(job.location_path)
    fork = version(job.but(location="loc1", out="out1"), NEW)
    migrations = {"op": MIGRATIONS}
    for parallelism in (2, 3):
        fork = fork.but(location=f"loc{parallelism}", out=f"out{parallelism}")
        with session_conf(job.spark, {"spark.sql.shuffle.partitions": str(parallelism)}):
            plan = ckpt.location(checkpoint).plan(fork.df(), migrations=migrations)
            assert ("fruits", "migrated") in {(row.state, row.outcome) for row in plan.states}
            writer = fork.writer().restoreFrom(checkpoint, migrations=migrations)
            of_writer = ckpt.location(checkpoint).plan(writer)
            assert of_writer.states == plan.states
            without = ckpt.location(checkpoint).plan(writer, migrations={})
            assert ("fruits", "new") in {(row.state, row.outcome) for row in without.states}
            writer.trigger(availableNow=True).start().awaitTermination()
        assert emitted(fork, 1) == dict.fromkeys(KEYS, NEW_EMITTED)
    assert digests(job.location_path) == before
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": "3"}):
        add(job, 2)
        fork.run()
    assert emitted(fork, 2) == dict.fromkeys(KEYS, NEW_EMITTED)
