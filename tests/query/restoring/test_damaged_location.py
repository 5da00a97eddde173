"""Spark's own files in a location are lost or damaged: the error says how the query goes on.

Oracle: each key's rows are numbered without a gap or a repeat, as if nothing had happened.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from tests.query.harness import (
    CHECKPOINT_DIR,
    INLINE,
    RETAINED,
    Feed,
    Job,
    completed,
    digests,
    drop_local_copies,
    files_below,
    flip_bit,
    gist,
)
from tests.query.model import (
    counted_after,
    events_of,
    expected,
    expected_after,
    in_order,
    sequences,
)
from tests.query.session_conf import session_conf

EPOCHS = 6
ROWS = 20
SHORT_LOGS = {
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
    "spark.sql.streaming.fileSink.log.compactInterval": "3",
}
ADVICE = re.compile(
    r"pyspark_ckpt\.location\('([^']+)'\)"
    r"\.rollback\('([^']+)'(?:, checkpoints_directory='([^']+)')?\)"
)


@dataclass(frozen=True)
class BatchJob(Job):
    """The same program with a ``foreachBatch`` function that writes each epoch once."""

    def writer(self, restore: str | Path | None = None) -> ckpt.CheckpointedStreamWriter:
        directory = self.base / self.out
        directory.mkdir(exist_ok=True)

        def write(df: DataFrame, _: int) -> None:
            epoch = ckpt.current_epoch()
            for void in epoch.rolled_back:
                for path in directory.glob(f"{void.query_id}_*.json"):
                    if int(path.stem.rpartition("_")[2]) > void.after:
                        path.unlink()
            path = directory / f"{epoch.query_id}_{epoch.number}.json"
            path.write_text(json.dumps([list(row) for row in df.collect()]))

        writer = ckpt.write_stream(self.df()).outputMode("append").foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self.location_path))
        for key, value in self.options.items():
            writer = writer.option(key, value)
        return writer if restore is None else writer.restoreFrom(str(restore))

    def result(self) -> list[Any]:
        paths = (self.base / self.out).glob("*.json")
        return in_order(row for path in paths for row in json.loads(path.read_text()))


@dataclass
class Stopped:
    """A stopped query with a checkpoint of each epoch; each test gets its files as they were.

    The one with ``foreachBatch`` began as a fork, so its state begins with a snapshot of Spark's.
    """

    job: Job
    first: int = 0
    epochs: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> Path:
        return self.job.base.with_name("kept")

    def run(self, restore: str | None = None) -> Stopped:
        self.job.base.mkdir()
        with session_conf(self.job.spark, SHORT_LOGS), self.job.running(restore) as query:
            for epoch in range(self.first, EPOCHS):
                self.job.feed.add(events_of(epoch))
                query.processAllAvailable()
                query.triggerCheckpoint()
            self.epochs = {Path(row.path).name: row.epoch for row in completed(query)}
        assert self.job.result() == self.expected()
        self.job.base.rename(self.kept)
        self.job.feed.add(events_of(EPOCHS))
        return self

    def again(self) -> Job:
        """Put the files back as they were when the query had stopped."""
        shutil.rmtree(self.job.base, ignore_errors=True)
        shutil.copytree(self.kept, self.job.base)
        drop_local_copies(self.job.spark)
        return self.job

    def expected(self, after: int | None = None) -> list[Any]:
        return expected_after(self.job.feed.rows, (self.first if after is None else after) * ROWS)


def stopped_in(spark: SparkSession, base: Path, sink: str, **options: Any) -> Stopped:
    feed = Feed(base / "in")
    options = {INLINE: "0b", RETAINED: 10, **options}
    if sink == "file sink":
        return Stopped(Job(spark, base / "live", feed, options=options)).run()
    stopped = Stopped(BatchJob(spark, base / "live", feed, options=options), first=2)
    original = stopped.job.but(base=base / "original")
    original.base.mkdir()
    with session_conf(spark, SHORT_LOGS), original.running() as query:
        feed.add(*map(events_of, range(2)))
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(base / "savepoints"))
    return stopped.run(savepoint.path)


@pytest.fixture(scope="module")
def stopped(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Stopped]:
    made: dict[str, Stopped] = {}

    def of(sink: str) -> Stopped:
        if sink not in made:
            made[sink] = stopped_in(spark, tmp_path_factory.mktemp("stopped"), sink)
        return made[sink]

    return of


@pytest.fixture(autouse=True)
def short_logs(spark: SparkSession) -> Iterator[None]:
    with session_conf(spark, SHORT_LOGS):
        yield


def checksums_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def leave_checksums(path: Path) -> None:
    """Delete as a person does, who does not see the hidden file."""
    path.unlink()


def delete(path: Path) -> None:
    path.unlink()
    checksums_of(path).unlink(missing_ok=True)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")
    checksums_of(path).unlink(missing_ok=True)


def garbage(path: Path) -> None:
    path.write_bytes(b"\x93no such\x00\xfffile\n" * 7)
    checksums_of(path).unlink(missing_ok=True)


def zeros(path: Path) -> None:
    """Fill with zeros, as a power loss leaves a file whose size was written and not its bytes."""
    path.write_bytes(bytes(path.stat().st_size))
    checksums_of(path).unlink(missing_ok=True)


GONE = {"deleted": delete, "without its checksums": leave_checksums}
DAMAGES = {
    **GONE, "truncated": truncate, "empty": empty, "garbage": garbage, "zeros": zeros
}  # fmt: skip


def numbered(directory: Path, place: int, ending: str = "") -> Path:
    """Return a file of those whose names are numbers, by its place among them."""
    found = [path for path in directory.iterdir() if re.fullmatch(rf"\d+{ending}", path.name)]
    return sorted(found, key=lambda path: int(path.name.partition(".")[0]))[place]


CONTINUES, ROLLBACK, PUT_BACK = "continues", "rollback", "put back"
LOG = r"(\.compact)?"
STORE = r"\.(delta|snapshot)"
FILES: dict[str, tuple[Callable[[Path], list[Path]], str, str]] = {
    "metadata": (lambda at: [at / "loc/metadata"], ROLLBACK, ROLLBACK),
    "offsets": (lambda at: [numbered(at / "loc/offsets", -1)], ROLLBACK, ROLLBACK),
    "offsets before": (lambda at: [numbered(at / "loc/offsets", -2)], ROLLBACK, ROLLBACK),
    "oldest offsets": (lambda at: [numbered(at / "loc/offsets", 0)], CONTINUES, CONTINUES),
    "commit": (lambda at: [numbered(at / "loc/commits", -1)], CONTINUES, ROLLBACK),
    "commit before": (lambda at: [numbered(at / "loc/commits", -2)], CONTINUES, CONTINUES),
    "oldest commit": (lambda at: [numbered(at / "loc/commits", 0)], CONTINUES, CONTINUES),
    "state": (lambda at: [numbered(at / "loc/state/0/0", -1, STORE)], ROLLBACK, ROLLBACK),
    "state before": (lambda at: [numbered(at / "loc/state/0/1", -2, STORE)], ROLLBACK, ROLLBACK),
    "oldest state": (lambda at: [numbered(at / "loc/state/0/0", 0, STORE)], ROLLBACK, ROLLBACK),
    "operator": (lambda at: [at / "loc/state/0/_metadata/metadata"], CONTINUES, ROLLBACK),
    "schema": (lambda at: [at / "loc/state/0/0/_metadata/schema"], ROLLBACK, ROLLBACK),
    "source": (lambda at: [numbered(at / "loc/sources/0", -1, LOG)], ROLLBACK, ROLLBACK),
    "oldest source": (lambda at: [numbered(at / "loc/sources/0", 0, LOG)], CONTINUES, CONTINUES),
    "two commits": (
        lambda at: [numbered(at / "loc/commits", place) for place in (-1, -2)], CONTINUES, ROLLBACK
    ),
    "two offsets": (
        lambda at: [numbered(at / "loc/offsets", place) for place in (-1, -2)], ROLLBACK, ROLLBACK
    ),
    "epoch": (
        lambda at: [numbered(at / "loc" / each, -1) for each in ("offsets", "commits")],
        CONTINUES, ROLLBACK,
    ),
    "sink": (lambda at: [numbered(at / "out/_spark_metadata", -1, LOG)], PUT_BACK, PUT_BACK),
}  # fmt: skip
"""What is damaged, and what follows if it is gone, and if its content is damaged."""

DIRECTORIES = {
    "offsets": ROLLBACK,
    "commits": CONTINUES,
    "state": ROLLBACK,
    "state/0": ROLLBACK,
    "state/0/1": ROLLBACK,
    "state/0/_metadata": CONTINUES,
    "state/0/0/_metadata": ROLLBACK,
    "sources": ROLLBACK,
    "sources/0": ROLLBACK,
}
DEFAULT = [
    ("metadata", "zeros"),
    ("offsets", "deleted"),
    ("commit", "without its checksums"),
    ("state", "truncated"),
    ("source", "garbage"),
    ("epoch", "deleted"),
    ("sink", "zeros"),
]
FURTHER = [("commit", "truncated"), ("schema", "zeros"), ("oldest state", "deleted")]


def variants() -> list[Any]:
    found = []
    for sink, name, damage in product(("file sink", "foreachBatch"), FILES, DAMAGES):
        if (sink, name) == ("foreachBatch", "sink"):
            continue
        marks = [pytest.mark.soak]
        if (name, damage) in DEFAULT and sink == "file sink":
            marks = []
        elif (name, damage) in (FURTHER if sink == "file sink" else DEFAULT):
            marks = [pytest.mark.slow]
        found.append(pytest.param(sink, name, damage, marks=marks))
    return found


def error_of(job: Job) -> ckpt.errors.CkptError | None:
    """Run the query; return the error that it ends with, which has to be one of the library."""
    found = None
    try:
        job.run()
    except ckpt.errors.CkptError as error:
        print(gist(error))
        found = error
    assert "\tat " not in str(found)  # of a Java stack
    return found


def content(location: Path) -> dict[str, str]:
    """Return the digests of the files that a rollback swaps, by their paths."""
    found = {Path(name).relative_to(location): each for name, each in digests(location).items()}
    return {str(path): each for path, each in found.items() if path.parts[0] != "_seedings"}


def follow(job: Job, error: ckpt.errors.CkptError) -> str:
    """Do what the error says; return the name of the checkpoint that it named."""
    location, name, directory = ADVICE.search(str(error)).groups()  # type: ignore[union-attr]
    before = content(job.location_path)
    back = ckpt.location(location).rollback(name, directory)
    assert before.items() <= content(Path(back.kept)).items()
    return name


@pytest.mark.parametrize(("sink", "name", "damage"), variants())
def test_file(stopped: Callable[[str], Stopped], sink: str, name: str, damage: str) -> None:
    """A file that nobody needs is not missed; else the error names it, and the way back."""
    of = stopped(sink)
    job = of.again()
    paths, if_gone, if_damaged = FILES[name]
    broken = paths(job.base)
    for path in broken:
        DAMAGES[damage](path)
    outcome = if_gone if damage in GONE else if_damaged
    is_behind = (sink, name, outcome) == ("file sink", "epoch", CONTINUES)
    if is_behind:  # the output of the epoch is there, and Spark's sink would skip its number
        outcome = ROLLBACK
    error = error_of(job)
    assert (outcome == CONTINUES) == (error is None)
    if error is not None:
        named = [job.base / "out"] if is_behind or outcome == PUT_BACK else broken
        # Of a file that is not a stream of bytes of a state store, only the directory is known.
        names = [str(place) for path in named for place in (path, path.parent)]
        assert any(each.removesuffix(".compact") in str(error) for each in names)
    if outcome == ROLLBACK:
        assert error is not None
        assert of.epochs[follow(job, error)] == EPOCHS - 1
    elif outcome == PUT_BACK:
        shutil.copytree(of.kept / "out", job.base / "out", dirs_exist_ok=True)
    if outcome != CONTINUES:
        job.run()
    assert job.result() == of.expected()


@pytest.mark.parametrize("sink", ["file sink", "foreachBatch"])
@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.soak
def test_directory(stopped: Callable[[str], Stopped], directory: str, sink: str) -> None:
    of = stopped(sink)
    job = of.again()
    shutil.rmtree(job.location_path / directory)
    error = error_of(job)
    assert (error is None) == (DIRECTORIES[directory] == CONTINUES)
    if error is not None:
        assert str((job.location_path / directory).parent) in str(error)
        follow(job, error)
        job.run()
    assert job.result() == of.expected()


@pytest.mark.slow
def test_an_earlier_checkpoint_is_named_if_the_newest_is_damaged_too(
    stopped: Callable[[str], Stopped],
) -> None:
    """Its later epochs run again, so the file sink needs a new path."""
    of = stopped("file sink")
    job = of.again()
    truncate(numbered(job.location_path / "offsets", -1))
    newest = max(of.epochs, key=lambda name: of.epochs[name])
    flip_bit(job.checkpoint_path / newest / "_metadata")
    error = error_of(job)
    assert error is not None
    assert "new path" in str(error)
    epoch = of.epochs[follow(job, error)]
    assert epoch == EPOCHS - 2
    with pytest.raises(ckpt.errors.RestoreError, match="new path"):
        job.run()
    again = job.but(out="out2")
    again.run()
    assert again.result() == of.expected(epoch + 1)


@pytest.mark.slow
def test_without_a_checkpoint_the_error_says_that_there_is_none(
    stopped: Callable[[str], Stopped],
) -> None:
    of = stopped("file sink")
    job = of.again()
    for path in job.checkpoint_path.glob("chk-*"):
        shutil.rmtree(path)
    path = numbered(job.location_path / "offsets", -1)
    empty(path)
    error = error_of(job)
    assert str(path) in str(error)
    assert "no complete checkpoint" in str(error)
    shutil.copytree(of.kept / "loc" / "offsets", path.parent, dirs_exist_ok=True)
    job.run()
    assert job.result() == of.expected()


@pytest.mark.slow
def test_the_id_is_lost_and_the_checkpoints_are_elsewhere(job: Job) -> None:
    """They lie in a directory with the query's id, which says that it belongs to the location."""
    job = job.using({INLINE: "0b", CHECKPOINT_DIR: job.base / "outside"})
    job.feed.add(*map(events_of, range(2)))
    job.run()
    job.but(location="other", out="other").run()  # its checkpoints lie there, too
    delete(job.location_path / "metadata")
    error = error_of(job)
    assert error is not None
    follow(job, error)
    job.feed.add(events_of(2))
    job.run()
    assert job.result() == expected(job.feed.rows)


def without_repeats(job: Job) -> DataFrame:
    rows = job.stream().dropDuplicates(["k", "v"])
    return job.process(ckpt.key_by(rows, *job.keys))


@pytest.mark.slow
def test_state_of_an_operator_of_spark(job: Job) -> None:
    """Spark finds it in the epoch, when the query has started."""
    job = job.but(plan=without_repeats).using({INLINE: "0b"})
    job.feed.add(*map(events_of, range(2)))
    job.run()
    (of_spark,) = [
        path.parents[1]
        for path in files_below(job.location_path / "state")
        if path.name == "metadata" and b"dedupe" in path.read_bytes()
    ]
    broken = numbered(of_spark / "0", -1, r"\.delta")
    truncate(broken)
    job.feed.add(events_of(2))
    error = error_of(job)
    assert isinstance(error, ckpt.errors.CorruptFileError)
    assert isinstance(error, StreamingQueryException)
    assert str(broken) in str(error)
    follow(job, error)
    again = job.but(out="out2")
    again.run()
    assert sequences(again.result()) == counted_after(job.feed.rows, 2 * ROWS)
