"""Rows that cannot be read again are never left out without a word.

A rollback, its undo and a fork go back over epochs. Spark's file source lists only files that
exist. So a file that an epoch has read and that is gone is named, and refused until it is allowed.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.spark import source_files
from tests.query.harness import (
    CHECKPOINT_DIR,
    INLINE,
    INTERVAL,
    RETAINED,
    Job,
    completed,
    refused,
)
from tests.query.restoring.numbered_job import NUMBERED, PARTITIONS, Numbered
from tests.query.session_conf import session_conf

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ALLOW = "spark.ckpt.execution.state-recovery.allow-missing-input"


@pytest.fixture(autouse=True)
def _two_subtasks(spark: SparkSession) -> Iterator[None]:
    with session_conf(spark, {PARTITIONS: "2"}):
        yield


@pytest.fixture
def job(job: Job) -> Job:
    """A job whose file number n has the one row of the key "k<n>", and is read by epoch n."""
    job = job.but(processor=Numbered, output=NUMBERED)
    return job.using({INLINE: "0b", INTERVAL: "1h", RETAINED: 100})


def add(job: Job, files: int = 1) -> None:
    job.feed.add(*([(f"k{number}", 0)] for number in range(job.feed.files, job.feed.files + files)))


def file_of(job: Job, number: int) -> Path:
    return job.feed.path / f"f{number:05}.parquet"


def epochs_of(job: Job, epochs: int) -> list[str]:
    """Run some epochs, with a checkpoint of each; return the names of the checkpoints."""
    names = []
    with job.running() as query:
        for _ in range(epochs):
            add(job)
            query.processAllAvailable()
            names.append(Path(query.triggerCheckpoint().path).name)
    return names


def keys_of(job: Job) -> list[str]:
    """Return the keys of the output, of which each has come once."""
    rows = job.result()
    assert all(n == 1 for _, n, _ in rows), rows
    return sorted(k for k, _, _ in rows)


def keys(*numbers: int) -> list[str]:
    return sorted(f"k{number}" for number in numbers)


def test_a_rollback_and_its_undo(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    names = epochs_of(job, 5)
    location = str(job.location_path)
    files = {number: file_of(job, number).read_bytes() for number in range(5)}
    for number in (0, 2, 4):  # the first is in the state of the checkpoint
        file_of(job, number).unlink()
    with refused(
        ckpt.errors.RestoreError, "2 input files", file_of(job, 2), file_of(job, 4),
        "cleanSource", "allowMissingInput=True", "--allow-missing-input", unchanged=job.base,
    ) as error:  # fmt: skip
        ckpt.location(location).rollback(names[0])
    assert str(file_of(job, 0)) not in str(error.value)
    with caplog.at_level(logging.WARNING, "pyspark_ckpt"):
        back = ckpt.location(location).rollback(names[0], allow_missing_input=True)
    assert "2 input files" in caplog.text
    assert "which is allowed" in caplog.text
    add(job)
    second = job.but(out="out2")
    second.run()
    assert keys_of(second) == keys(1, 3, 5)

    # What comes back has the rows of 2 and 4. It has no row of 5.
    file_of(job, 5).unlink()
    kept = Path(back.kept).name
    with refused(ckpt.errors.RestoreError, "1 input file", file_of(job, 5), unchanged=job.base):
        ckpt.location(location).rollback(kept)
    ckpt.location(location).rollback(kept, allow_missing_input=True)
    job.run()
    assert keys_of(job) == keys(0, 1, 2, 3, 4)
    for number in (2, 4):
        file_of(job, number).write_bytes(files[number])
    third = job.but(out="out3")
    ckpt.location(location).rollback(names[0])  # the files are back, so nothing is refused
    third.run()
    assert keys_of(third) == keys(1, 2, 3, 4)


def edited(path: str, directory: Path) -> str:
    """Return a savepoint that was made of one that was made of another."""
    once = ckpt.edit_state(path).save(str(directory / "edited"))
    renamed = ckpt.location(once.path).rename_uid({"op": "op"}, str(directory / "renamed"))
    return ckpt.edit_state(renamed.path).save(str(directory / "again")).path


@pytest.mark.slow
def test_a_fork(job: Job) -> None:
    """Of a checkpoint in the location, and of savepoints elsewhere, also edited ones."""
    with job.running() as query:
        add(job, 2)
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
        checkpoint = query.triggerCheckpoint().path
        add(job, 3)
        query.processAllAvailable()
    file_of(job, 3).unlink()
    fork = job.but(location="fork", out="out-fork")
    for number, path in enumerate((checkpoint, savepoint, edited(savepoint, job.base))):
        plan = ckpt.location(path).plan(fork.writer())
        assert [each.removeprefix("file://") for each in plan.missing_input] == [
            str(file_of(job, 3))
        ], number
        row = next(row for row in plan.states if row.state == "(input)")
        assert (row.operator, row.outcome) == ("(query)", "refused")
        assert "refused: 1 row" in repr(plan)
        with refused(ckpt.errors.RestoreError, "1 input file", file_of(job, 3), unchanged=job.base):
            fork.start(path)
        allowed = ckpt.location(path).plan(fork.writer(), allowMissingInput=True)
        allowed.check()
        assert [row.outcome for row in allowed.states if row.state == "(input)"] == ["dropped"]
    again = fork.using({ALLOW: "true"})
    again.run(savepoint)
    assert keys_of(fork) == keys(2, 4)
    again.using({ALLOW: "false"}).run()  # it continues, and restores nothing
    shutil.move(job.location_path, job.base / "elsewhere")  # nobody knows what it has read
    other = job.but(location="other", out="out-other")
    other.run(savepoint)
    assert keys_of(other) == keys(2, 4)
    moved = job.base / "elsewhere" / Path(checkpoint).relative_to(job.location_path)
    with refused(ckpt.errors.RestoreError, file_of(job, 3), unchanged=job.base):
        job.but(location="last", out="out-last").run(moved)


@pytest.mark.slow
def test_a_fork_after_a_rollback(job: Job) -> None:
    """What the void epochs have read counts, and what was read after the rollback."""
    names = epochs_of(job, 4)
    savepoint = ckpt.edit_state(str(job.checkpoint_path / names[1])).save(str(job.base / "sp")).path
    ckpt.location(str(job.location_path)).rollback(names[0])
    second = job.but(out="out2")
    add(job)
    query = second.run()
    newest = max(completed(query), key=lambda row: row.checkpoint_id).path
    for number in (1, 3, 4):
        file_of(job, number).unlink()
    fork = job.but(location="fork", out="out-fork")
    with refused(
        ckpt.errors.RestoreError, "2 input files", file_of(job, 4), unchanged=job.base
    ) as error:
        fork.run(savepoint)
    assert str(file_of(job, 3)) in str(error.value)
    fork.run(newest)  # its state has them all
    add(job)
    fork.run()
    assert keys_of(fork) == keys(5)


def test_a_file_that_was_written_again(job: Job) -> None:
    """Spark reads it again once it has forgotten the first one, which was of long ago."""
    with job.running() as query:
        add(job)
        query.processAllAvailable()
        to = Path(query.triggerCheckpoint().path).name
        add(job)
        file_of(job, 1).touch()  # so the file source forgets what is older than a week
        query.processAllAvailable()
        (job.base / "again").write_bytes(file_of(job, 0).read_bytes())
        (job.base / "again").rename(file_of(job, 0))
        query.processAllAvailable()
    assert [(k, n) for k, n, _ in job.result()] == [("k0", 1), ("k0", 2), ("k1", 1)]
    file_of(job, 0).unlink()
    with refused(ckpt.errors.RestoreError, "1 input file", file_of(job, 0), unchanged=job.base):
        ckpt.location(str(job.location_path)).rollback(to)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["delete", "archive"])
def test_a_source_that_cleans_up(job: Job, how: str) -> None:
    """``cleanSource`` deletes or moves a file as soon as the next epoch begins."""
    archive = job.base / "archive"

    def plan(job: Job) -> DataFrame:
        reader = job.spark.readStream.schema(job.feed.ddl).option("maxFilesPerTrigger", 1)
        reader = reader.option("cleanSource", how).option("sourceArchiveDir", str(archive))
        rows = reader.parquet(str(job.feed.path))
        return job.process(ckpt.key_by(rows, "k"))

    job = job.but(plan=plan)
    names = epochs_of(job, 5)
    gone = [number for number in range(5) if not file_of(job, number).exists()]
    assert 2 in gone
    with refused(ckpt.errors.RestoreError, file_of(job, 2), unchanged=job.base):
        ckpt.location(str(job.location_path)).rollback(names[1])
    second = job.but(out="out2")
    if how == "archive":
        for path in archive.rglob("f*.parquet"):
            shutil.move(path, job.feed.path)
        ckpt.location(str(job.location_path)).rollback(names[1])
        second.run()
        assert keys_of(second) == keys(2, 3, 4)
    else:
        ckpt.location(str(job.location_path)).rollback(names[1], allow_missing_input=True)
        second.run()
        assert keys_of(second) == keys(*{2, 3, 4}.difference(gone))


COMPACTED = {
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "0",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


@pytest.mark.slow
def test_a_log_that_is_compacted(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Spark has deleted the entries of the void epochs; the compaction has them."""
    with session_conf(job.spark, COMPACTED):
        names = epochs_of(job, 8)
    log = job.location_path / "sources" / "0"
    assert not (log / "3").exists()
    file_of(job, 3).unlink()
    with refused(ckpt.errors.RestoreError, "1 input file", file_of(job, 3), unchanged=job.base):
        ckpt.location(str(job.location_path)).rollback(names[0])
    # A rollback is the way to mend a damaged log, so it goes on with what can be read.
    for name in ("7", "6"):
        (log / name).write_text("v1\n{")
    with refused(ckpt.errors.RestoreError, "1 input file", file_of(job, 3), unchanged=job.base):
        ckpt.location(str(job.location_path)).rollback(names[0])
    assert "whether the input files that it names are gone is not known" in caplog.text
    ckpt.location(str(job.location_path)).rollback(names[0], allow_missing_input=True)
    second = job.but(out="out2")
    second.run()
    assert keys_of(second) == keys(1, 2, 4, 5, 6, 7)


NAMES = ["a b", "50%20", "ünï", "x[1]{2}", "y, z", "q?", "plus+", "a,b", "c", "d"]


def test_names_that_a_url_encodes(job: Job) -> None:
    """Of files, and of a directory that is gone as a whole; each way to look for them."""

    def plan(job: Job) -> DataFrame:
        reader = job.spark.readStream.schema(job.feed.ddl).option("recursiveFileLookup", "true")
        return job.process(ckpt.key_by(reader.parquet(str(job.feed.path)), "k"))

    job = job.but(plan=plan)
    below = job.feed.path / "dir, of [1] 50%20"
    below.mkdir()
    with job.running() as query:
        add(job)
        query.processAllAvailable()
        to = Path(query.triggerCheckpoint().path).name
        for directory, names in ((job.feed.path, NAMES), (below, NAMES[:2])):
            for name in names:
                add(job)
                file_of(job, job.feed.files - 1).rename(directory / name)
        query.processAllAvailable()
    (job.feed.path / "c").unlink()
    (job.feed.path / "50%20").unlink()
    shutil.rmtree(below)
    lost = [f"{job.feed.path}/50%20", f"{job.feed.path}/c", f"{below}/50%20", f"{below}/a b"]
    with refused(ckpt.errors.RestoreError, "4 input files", *lost, unchanged=job.base):
        ckpt.location(str(job.location_path)).rollback(to)
    conf = job.spark._jsparkSession.sessionState().newHadoopConf()
    for directory, there in ((job.feed.path, {*NAMES} - {"c", "50%20"}), (below, set())):
        url = directory.as_uri()
        for wanted in ({*NAMES}, {"a b", "c", "x[1]{2}"}):  # listed, or asked for one by one
            found = source_files._names_in_java(job.spark, conf, url, wanted)
            assert found & wanted == there & wanted
        assert source_files._names_at_server(job.spark, url) & {*NAMES} == there  # over Connect


def test_an_outside_directory(job: Job) -> None:
    """The record of the directory's owner leads to the location."""
    outside = job.base / "outside"
    job = job.using({CHECKPOINT_DIR: outside})
    names = epochs_of(job, 2)
    (checkpoints,) = outside.iterdir()
    file_of(job, 1).unlink()
    with refused(ckpt.errors.RestoreError, "1 input file", file_of(job, 1), unchanged=job.base):
        ckpt.location(str(job.location_path)).rollback(names[0], str(outside))
    shutil.move(job.location_path, job.base / "moved")
    moved = job.but(location="moved")
    moved.run()  # which is then the owner's place
    fork = job.but(location="fork", out="out-fork")
    with refused(ckpt.errors.RestoreError, "1 input file", file_of(job, 1), unchanged=job.base):
        fork.start(checkpoints / names[0])
    fork.writer(checkpoints / names[0]).restoreFrom(
        str(checkpoints / names[0]), allowMissingInput=True
    ).trigger(availableNow=True).start().awaitTermination()
    assert keys_of(fork) == []


def test_a_directory_that_cannot_be_listed(job: Job) -> None:
    """Nobody knows then what is gone. It is refused, until it is allowed."""
    names = epochs_of(job, 2)
    log = job.location_path / "sources" / "0" / "1"
    log.write_text(log.read_text().replace("file:///", "hdfs://127.0.0.1:1/"))
    with refused(ckpt.errors.RestoreError, "cannot be listed", "hdfs://127.0.0.1:1", "--conf",
                 unchanged=job.base):  # fmt: skip
        ckpt.location(str(job.location_path)).rollback(names[0])
    ckpt.location(str(job.location_path)).rollback(names[0], allow_missing_input=True)


@pytest.mark.slow
def test_an_unfinished_epoch_of_spark(job: Job) -> None:
    """An import may leave it out; its input would be read again."""
    location = job.base / "native"
    keyed = job.stream().groupBy("k")

    def fails(df: DataFrame, epoch: int) -> None:
        df.collect()
        if epoch == 1:
            raise RuntimeError

    with session_conf(job.spark, {PROVIDER: ROCKSDB}):
        df = keyed.transformWithState(Numbered(), NUMBERED, "Append", "None")
        query = df.writeStream.foreachBatch(fails).option("checkpointLocation", str(location))
        query = query.start()
        add(job, 2)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
    imported = ckpt.location(location).import_checkpoint(
        str(job.base / "imported"), processor=Numbered(), uid="op",
        discard_uncommitted=True,
    )  # fmt: skip
    file_of(job, 1).unlink()
    with refused(ckpt.errors.RestoreError, "1 input file", file_of(job, 1), unchanged=job.base):
        job.start(imported.path)


def command(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Run a command as a user does; return its exit code and what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_ckpt", *map(str, arguments), "--json"],
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.own_jvm
def test_the_commands(job: Job) -> None:
    names = epochs_of(job, 3)
    path = job.checkpoint_path / names[0]
    program = job.base / "program.py"
    program.write_text(PROGRAM.format(source=str(job.feed.path)))
    file_of(job, 2).unlink()
    code, plan = command("plan", path, f"{program}:build", "--conf", f"{PARTITIONS}=2")
    assert (code, plan["can_start"]) == (1, False)
    assert plan["missing_input"] == [file_of(job, 2).as_uri()]
    code, plan = command(
        "plan", path, f"{program}:build", "--conf", f"{PARTITIONS}=2", "--allow-missing-input"
    )
    assert (code, plan["can_start"]) == (0, True)
    code, said = command("rollback", job.location_path, names[0])
    assert code
    assert "--allow-missing-input" in str(said)
    code, said = command("rollback", job.location_path, names[0], "--allow-missing-input")
    assert (code, said["to"]) == (0, names[0])


PROGRAM = """
import pyspark_ckpt as ckpt
from pyspark.sql.streaming import StatefulProcessor


class Numbered(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        yield (key[0], 1, "a")

    def close(self): ...


def build(spark):
    rows = spark.readStream.schema("k string, v long").parquet({source!r})
    return ckpt.key_by(rows, "k").transformWithState(
        Numbered(), "k string, n long, what string", "Append", "None", uid="op"
    )
"""
