"""Another parallelism, max_parallelism and backend on restore give what one run gives, per key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.restore import rescale
from pyspark_ckpt.stored.rewrite import StateRewrite
from tests.query.harness import (
    BACKEND,
    INLINE,
    OFTEN,
    RETAINED,
    Feed,
    Job,
    digests,
    drop_local_copies,
    files_below,
    flip_bit,
    refused,
)
from tests.query.model import in_order
from tests.query.session_conf import session_conf
from tests.query.stored import handles_of
from tests.query.timed import ORIGIN_MS, at, timed_feed

SOON = {
    "spark.ckpt.internal.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.internal.state.changelog.materialize.max-segments": "1",
}
KEYS = [f"k{i}" for i in range(12)]
OUTPUT = "k string, what string, v long, n long, recent string"


class Everything(StatefulProcessor):
    """Count rows, keep the last for 15 seconds of event time, set timers; emit all of it."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n long")
        lasting = ckpt.StateTtlConfig(15_000, time="event")
        self.recent = handle.getListState("recent", "v long", lasting)
        self.due = handle.getMapState("due", "at long", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = (self.n.get() or (0,))[0] + 1
            self.n.update((n,))
            recent = [item[0] for item in self.recent.get()]
            self.recent.appendValue((row.v,))
            at_ms = ORIGIN_MS + row.v * 1000
            self.due.updateValue((at_ms,), (row.v,))
            self.handle.registerTimer(at_ms)
            yield Row(k=key[0], what="row", v=row.v, n=n, recent=str(recent))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        (v,) = self.due.getValue((at_ms,))
        self.due.removeKey((at_ms,))
        yield Row(k=key[0], what="timer", v=v, n=None, recent=None)

    def close(self) -> None:
        pass


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return timed_feed(tmp_path / "in")


@pytest.fixture
def job(job: Job) -> Job:
    job = job.but(processor=Everything, output=OUTPUT, time_mode="EventTime", watermark="ts")
    return job.using({INLINE: "0b"})


def file_of(epoch: int) -> list[Any]:
    """Some keys have rows in every epoch, some in every other, some once."""
    second = 10 * epoch
    keys = KEYS[: (4, 12, 8)[epoch % 3]] if epoch else KEYS
    return [(k, second + 5 + 7 * (i % 4), at(second)) for i, k in enumerate(keys)]


def with_max(maximum: int) -> Any:
    def plan(job: Job) -> DataFrame:
        return job.process(ckpt.key_by(job.stream(), "k", max_parallelism=maximum))

    return plan


def run_at(job: Job, parallelism: int, restore: str | None = None, kind: str = "CANONICAL") -> str:
    """Take all input at a parallelism; return a savepoint of the end."""
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": str(parallelism)}):
        with job.running(restore) as query:
            query.processAllAvailable()
            return query.triggerSavepoint(str(job.base / "savepoints"), kind).path


@pytest.mark.soak
@pytest.mark.everywhere
def test_up_down_and_another_number_of_key_groups(job: Job) -> None:
    """Scenario 36: 3 subtasks, 5 on the other backend, 2 with 77 key groups; then more input.

    The first change begins with the files of a RocksDB database.
    """
    stages = [
        (job.but(location="loc0", out="out0").using(SOON), 3),
        (job.but(location="loc1", out="out1").using({BACKEND: "heap"}), 5),
        (job.but(location="loc2", out="out2", plan=with_max(77)), 2),
    ]
    savepoint, before = None, {}
    for number, (stage, parallelism) in enumerate(stages):
        files = range(4) if number == 0 else range(2 * number + 2, 2 * number + 4)
        job.feed.add(*map(file_of, files))
        savepoint = run_at(stage, parallelism, savepoint, "CANONICAL" if number else "NATIVE")
        if number == 0:
            bases = [handle.base for handle in handles_of(savepoint)]
            assert {"rocksdb"} == {base.format for base in bases if base is not None}
        assert {h.parallelism for h in handles_of(savepoint)} == {parallelism}
        before.update(digests(Path(savepoint)))
    assert digests(job.base / "savepoints") == before
    assert {h.max_parallelism for h in handles_of(savepoint)} == {77}
    assert drop_local_copies(job.spark)
    job.feed.add(file_of(8))
    last, parallelism = stages[-1]
    run_at(last, parallelism)
    emitted = [row for stage, _ in stages for row in stage.result()]
    assert len({row[0] for row in emitted if row[1] == "timer"}) == len(KEYS)
    reference = job.but(location="loc-all", out="out-all")
    run_at(reference, 2)
    assert in_order(emitted) == reference.result()


def no_entries_move(*_: Any) -> Any:
    raise AssertionError("entries were moved one by one")


@pytest.mark.soak
def test_key_groups_are_taken_over_without_a_shuffle(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 subtasks become 4, then 8, of which some stay empty, then 3 on the other backend.

    Every new subtask keeps the files of an old one; of 3, some add entries of others. Checkpoints
    and cleaning continue, and local copies are lost, so files that new subtasks share are
    read and kept again and again.
    """
    made: list[list[Handle]] = []
    divided = rescale._divided

    def noted(*args: Any, **more: Any) -> list[Handle]:
        made.append(divided(*args, **more))
        return made[-1]

    job = job.using({**SOON, **OFTEN, RETAINED: 1})
    stages = [
        (job.but(location="loc0", out="out0"), 2),
        (job.but(location="loc1", out="out1"), 4),
        (job.but(location="loc2", out="out2"), 8),
        (job.but(location="loc3", out="out3").using({BACKEND: "heap"}), 3),
    ]
    savepoint, epoch = None, 0
    for number, (stage, parallelism) in enumerate(stages):
        with monkeypatch.context() as patch:
            patch.setattr(rescale, "_divided", noted)
            if number > 0:
                patch.setattr(StateRewrite, "run", no_entries_move)
            for start in (savepoint, None):
                for _ in range(2):
                    job.feed.add(file_of(epoch))
                    epoch += 1
                savepoint = run_at(stage, parallelism, start, "NATIVE")
                assert drop_local_copies(job.spark)
        bases = [handle.base for handle in handles_of(savepoint)]
        if number < 2:
            assert {"rocksdb"} == {None if base is None else base.format for base in bases}
    assert len(made) == 3
    taken_over = [handle.base for handles in made for handle in handles]
    assert {"rocksdb"} == {None if base is None else base.format for base in taken_over}
    emitted = [row for stage, _ in stages for row in stage.result()]
    reference = job.but(location="loc-all", out="out-all")
    run_at(reference, 2)
    assert in_order(emitted) == reference.result()


@pytest.mark.soak
def test_refused_and_cut_off(job: Job) -> None:
    """Scenarios 38 and 39: refused before any task runs; a failed move starts again, with 4."""
    job.feed.add(file_of(0))
    savepoint = run_at(job, 3)
    fork = job.but(location="loc2", out="out2")
    files = files_below(Path(savepoint) / "shared")
    broken = next(path for path in files if not path.name.startswith("source-"))
    whole = broken.read_bytes()
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": "5"}):
        with refused(ckpt.errors.PlanError, "max_parallelism", unchanged=job.base):
            fork.but(plan=with_max(4)).start(savepoint)
        with refused(ckpt.errors.RestoreError, "keyed by", unchanged=job.base):
            fork.but(keys=("v",)).start(savepoint)
        flip_bit(broken)
        with refused(ckpt.errors.CorruptFileError, broken.name, unchanged=Path(savepoint)):
            fork.start(savepoint)
        with refused(ckpt.errors.RestoreError, "has not ended", unchanged=fork.location_path):
            fork.start()
        broken.write_bytes(whole)
    job.feed.add(file_of(1))
    run_at(fork, 4, savepoint)
    emitted = [row for row in fork.result() if row[1] == "row"]
    assert sorted((k, n) for k, _, _, n, _ in emitted) == sorted((k, 2) for k in KEYS)
