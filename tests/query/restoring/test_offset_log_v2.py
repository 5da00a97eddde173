"""Spark 4.3's offset log v2 and named sources: checkpoints, restart, restore and fork."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt
from tests.query.harness import RETAINED, Feed, Job, refused
from tests.query.model import Count, counted_after, events_of, sequences
from tests.query.session_conf import session_conf

V2 = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
NAMED = {**V2, "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}

pytestmark = pytest.mark.skipif(
    tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 3),
    reason="Spark has offset log v2 since 4.3",
)


class TwoFeeds:
    """A job that counts the rows of two directories, whose sources have names or not."""

    def __init__(self, job: Job) -> None:
        self.left = job.feed
        self.right = Feed(job.base / "right")
        self.rows: list[tuple[str, int]] = []
        self.names: tuple[str, ...] = ()
        self.base = job.but(
            processor=Count, output="k string, n long", plan=lambda each: self.plan(each)
        )

    def add(self, number: int) -> None:
        for feed, rows in ((self.left, events_of(number)), (self.right, events_of(number + 50))):
            feed.add(rows)
            self.rows += rows

    def plan(self, job: Job) -> DataFrame:
        reads = {"left": self.left, "right": self.right}
        order = self.names or tuple(reads)
        streams = []
        for name in order:
            reader = job.spark.readStream.schema("k string, v long")
            if self.names:
                reader = reader.name(name)
            streams.append(reader.parquet(str(reads[name].path)))
        return job.process(ckpt.key_by(streams[0].union(streams[1]), "k"))


@pytest.fixture
def feeds(job: Job) -> TwoFeeds:
    return TwoFeeds(job)


def run(feeds: TwoFeeds, job: Job, restore: str | None = None) -> str:
    """Take all input that is there, with a checkpoint; return the path of a savepoint."""
    with job.running(restore) as query:
        query.processAllAvailable()
        assert query.triggerCheckpoint() is not None
        return query.triggerSavepoint(str(job.base / "savepoints")).path


def check(feeds: TwoFeeds, job: Job, before: int = 0) -> None:
    assert sequences(job.result()) == counted_after(feeds.rows, before)


def newest_checkpoint(job: Job) -> str:
    """Return the name of the newest checkpoint, whose query has ended."""
    found = [path.name for path in job.checkpoint_path.glob("chk-*") if any(path.iterdir())]
    return max(found, key=lambda name: int(name.removeprefix("chk-")))


def version_of(job: Job) -> str:
    newest = max(map(int, (p.name for p in (job.location_path / "offsets").glob("[0-9]*"))))
    return (job.location_path / "offsets" / str(newest)).read_text().split("\n")[0]


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("conf", [V2, NAMED], ids=["numbered", "named"])
def test_a_query_is_restarted_forked_and_drained(feeds: TwoFeeds, conf: dict[str, str]) -> None:
    """Sources with names may change their order in a fork."""
    job = feeds.base
    if conf is NAMED:
        feeds.names = ("left", "right")
    with session_conf(job.spark, conf):
        feeds.add(0)
        run(feeds, job)
        feeds.add(1)
        savepoint = run(feeds, job)
        assert version_of(job) == "v2"
        check(feeds, job)
        before = len(feeds.rows)
        feeds.add(2)
        if conf is NAMED:
            feeds.names = ("right", "left")
        fork = job.but(location="loc2", out="out2")
        query = fork.start(savepoint)
        query.processAllAvailable()
        stopped = query.stopWithSavepoint(str(job.base / "savepoints"), drain=True)
        assert version_of(fork) == "v2"
        check(feeds, fork, before)
        logs = {path.name for path in (fork.location_path / "sources").iterdir()}
        assert logs == ({"left", "right"} if conf is NAMED else {"0", "1"})
        feeds.add(3)
        again = job.but(location="loc3", out="out3")
        run(feeds, again, stopped.path)
        check(feeds, again, len(feeds.rows) - len(events_of(3)) - len(events_of(53)))


@pytest.mark.slow
@pytest.mark.parametrize("conf", [V2, NAMED], ids=["numbered", "named"])
def test_a_rollback_keeps_the_offsets_of_all_sources(feeds: TwoFeeds, conf: dict[str, str]) -> None:
    job = feeds.base.using({RETAINED: 5})
    if conf is NAMED:
        feeds.names = ("right", "left")
    with session_conf(job.spark, conf):
        feeds.add(0)
        run(feeds, job)
        before, first = len(feeds.rows), newest_checkpoint(job)
        feeds.add(1)
        run(feeds, job)
        ckpt.location(str(job.location_path)).rollback(first)
        again = job.but(out="out2")
        run(feeds, again)
    check(feeds, again, before)


@pytest.mark.soak
def test_sources_get_names_by_a_restore_and_keep_them(feeds: TwoFeeds) -> None:
    job = feeds.base
    feeds.add(0)
    savepoint = run(feeds, job)
    assert version_of(job) == "v1"
    before = len(feeds.rows)
    feeds.add(1)
    feeds.names = ("left", "right")
    named, refusing = job.but(location="loc2", out="out2"), job.but(location="loc3", out="out3")
    with session_conf(job.spark, NAMED):
        savepoint = run(feeds, named, savepoint)
        assert version_of(named) == "v2"
        check(feeds, named, before)
    feeds.names = ()
    with refused(ckpt.errors.RestoreError, "left, right", ".name()", unchanged=job.base / "loc2"):
        refusing.start(savepoint)
    assert not refusing.location_path.exists()


@pytest.mark.slow
def test_a_source_that_is_read_twice_has_one_offset(feeds: TwoFeeds) -> None:
    """Spark keeps the offset of such a source under the number of its last place."""

    def plan(job: Job) -> DataFrame:
        left = job.feed.stream(job.spark)
        right = feeds.right.stream(job.spark)
        return job.process(ckpt.key_by(left.union(right).union(left), "k"))

    job = feeds.base.but(plan=plan)
    with session_conf(job.spark, V2):
        feeds.add(0)
        savepoint = run(feeds, job)
        fork = job.but(location="loc2", out="out2")
        feeds.right.add(events_of(9))
        run(feeds, fork, savepoint)
    assert sum(map(len, sequences(fork.result()).values())) == len(events_of(9))
