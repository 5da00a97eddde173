"""A candidate takes a running query over: no row is lost or written twice, and there is a way back.

The command line does it too: from another process, for a shadow in the driver.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.api import shadowing
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import BACKEND, INLINE, INTERVAL, SAVEPOINT_DIR, Job, until
from tests.query.leftovers import metadata_json
from tests.query.life.test_commands import command
from tests.query.restoring.numbered_job import (
    KEYS,
    NUMBERED,
    PARTITIONS,
    Mended,
    Numbered,
    epoch_of,
)
from tests.query.session_conf import session_conf
from tests.recovery.processes import kill_all

pytestmark = pytest.mark.slow

IGNORED = ["output.what"]
RETAINED = "spark.sql.streaming.minBatchesToRetain"


class Late(Numbered):
    """Is wrong from its third epoch on."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(k=row.k, n=row.n + (row.n == 3), what=row.what)


@pytest.fixture
def job(job: Job) -> Job:
    job = job.but(processor=Numbered, output=NUMBERED)
    return job.using({INLINE: "0b", INTERVAL: "1h", SAVEPOINT_DIR: str(job.base / "savepoints")})


class Sink:
    """One of the sinks, and the rows in it."""

    def __init__(self, kind: str, job: Job) -> None:
        self.kind, self.job = kind, job
        self.table = f"promoted_{job.base.name.replace('-', '_')}"
        self.epochs: dict[int, list[Row]] = {}

    def start(self, program: Callable[[], DataFrame]) -> ckpt.CheckpointedQuery:
        writer = ckpt.write_stream(program)
        writer = writer.option("checkpointLocation", str(self.job.location_path))
        for key, value in self.job.options.items():
            writer = writer.option(key, value)
        if self.kind == "table":
            return writer.toTable(self.table)
        if self.kind == "batch":
            return writer.foreachBatch(self.keep).start()
        return writer.format("parquet").start(str(self.job.base / self.job.out))

    def keep(self, df: DataFrame, epoch: int) -> None:
        assert epoch == ckpt.current_epoch().number
        assert epoch not in self.epochs
        self.epochs[epoch] = df.collect()

    def rows(self) -> list[Any]:
        if self.kind == "batch":
            return [row for rows in self.epochs.values() for row in rows]
        if self.kind == "table":
            return self.job.spark.table(self.table).collect()
        return self.job.result()

    def check(self, whats: str) -> None:
        """Each key has 1, 2, 3..., written by these programs."""
        found = sorted((row[0], row[1], row[2]) for row in self.rows())
        assert found == sorted((k, n, what) for k in KEYS for n, what in enumerate(whats, 1))


def compared(shadow: ckpt.Shadow, epochs: int) -> None:
    until(lambda: shadow.report.epochs >= epochs or not shadow.isActive, "no comparison")
    assert shadow.exception() is None


def proven(shadow: ckpt.Shadow, query: ckpt.CheckpointedQuery) -> None:
    query.processAllAvailable()
    compared(shadow, 1)
    assert shadow.report.is_equal, shadow.report


@pytest.mark.parametrize(
    "kind", ["file", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("table", "batch"))]
)
def test_the_candidate_takes_over(job: Job, kind: str) -> None:
    """With another parallelism and backend; the savepoint is of the old program."""
    sink = Sink(kind, job)
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = sink.start(job.df)
        query.processAllAvailable()
        run, query_id = query.runId, query.id
        shadow = ckpt.shadow(
            query,
            job.but(processor=Mended).df,
            ignore=IGNORED,
            parallelism=3,
            options={BACKEND: "heap"},
        )
        epoch_of(job)
        proven(shadow, query)
        promotion = shadow.promote()
        assert (query.id, promotion.restart.parallelism) == (query_id, 3)
        assert query.runId != run
        assert promotion.savepoint.epoch == promotion.restart.epoch == 1
        epoch_of(job)
        query.processAllAvailable()
        sink.check("aab")
        (entry,) = query.checkpoints().where("kind = 'restart'").collect()
        assert entry.reason == "promote"
        newest = metadata_json(query.triggerCheckpoint().path)
        assert {operator["backend"] for operator in newest["operators"]} == {"heap"}
        query.rescale(2)  # the new program stays
        epoch_of(job)
        query.processAllAvailable()
        sink.check("aabb")
        query.stop()
        assert not list(job.location_path.glob("_shadow-*"))

        back = job.but(location="back", out="out-back")
        old = back.start(promotion.savepoint.path)
        old.processAllAvailable()
        assert {(n, what) for _, n, what in back.result()} == {(3, "a"), (4, "a")}
        old.stop()


@pytest.mark.soak
def test_a_candidate_that_differs_in_the_epoch_in_progress_is_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing differed when the promotion was asked for."""
    has_begun, may_go_on = threading.Event(), threading.Event()
    real_epoch, real_stop = ckpt.Shadow._epoch, ckpt.Shadow.stop

    def epoch(*arguments: Any) -> None:
        has_begun.set()
        assert may_go_on.wait(60)
        real_epoch(*arguments)

    def stop(shadow: ckpt.Shadow) -> None:
        may_go_on.set()
        real_stop(shadow)

    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = job.start()
        query.processAllAvailable()
        run = query.runId
        shadow = ckpt.shadow(query, job.but(processor=Late).df)
        epoch_of(job)
        proven(shadow, query)
        monkeypatch.setattr(ckpt.Shadow, "_epoch", epoch)
        monkeypatch.setattr(ckpt.Shadow, "stop", stop)
        epoch_of(job)
        query.processAllAvailable()
        assert has_begun.wait(60)
        with pytest.raises(ckpt.errors.ConfigurationError, match="differs from the original"):
            shadow.promote()
        assert shadow.report.differences == len(KEYS)
        assert query.isActive
        assert query.runId == run
        shadow.discard()
        query.stop()


class Widened(Mended):
    """Has a column and a state that the old program does not have."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.last = handle.getValueState("last", "at long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            self.last.update((row.n,))
            yield Row(**row.asDict(), double=2 * row.n)


@pytest.mark.soak
def test_what_cannot_be_compared_is_not_proven(job: Job) -> None:
    """A column and a state of the candidate only: it takes over once they are named."""
    uid = job.uid
    wide = job.but(processor=Widened, output=f"{NUMBERED}, double long").df
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = job.start()
        query.processAllAvailable()
        with ckpt.shadow(query, wide, ignore=IGNORED, states_every=2) as shadow:
            epoch_of(job)
            query.processAllAvailable()
            compared(shadow, 1)
            with pytest.raises(ckpt.errors.ConfigurationError, match="no state was compared"):
                shadow.promote()
            epoch_of(job)
            query.processAllAvailable()
            compared(shadow, 2)
            report = shadow.report
            assert report.differences == 0
            assert not report.is_equal
            assert len(report.skipped) == 2, report
            assert "output: only one program has double" in report.skipped
            with pytest.raises(ckpt.errors.ConfigurationError, match=rf"{uid}\.last: not compared"):
                shadow.promote()
        named = [*IGNORED, "output.double", f"{uid}.last"]
        shadow = ckpt.shadow(query, wide, ignore=named)
        epoch_of(job)
        proven(shadow, query)
        shadow.promote()
        epoch_of(job)
        query.processAllAvailable()
        query.stop()
    found = sorted(row[:3] for row in job.result())
    assert found == sorted((k, n, what) for k in KEYS for n, what in enumerate("aaaab", 1))


@pytest.mark.soak
@pytest.mark.parametrize("stays", [False, True])
def test_a_candidate_that_cannot_start(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stays: bool
) -> None:
    """The query runs as before, and nothing is left but a savepoint that cannot be removed."""
    sink = Sink("file", job)
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = sink.start(job.df)
        query.processAllAvailable()
        shadow = ckpt.shadow(query, job.but(processor=Mended).df, parallelism=3)
        real, runs = QueryStart.run, []

        def fails_once(self: QueryStart, *arguments: Any) -> Any:
            runs.append(self)
            if len(runs) == 1:
                assert list((job.base / "savepoints").glob("savepoint-*/_metadata"))
                msg = "no start"
                raise OSError(msg)
            return real(self, *arguments)

        def is_read(path: str) -> None:
            msg = f"{path} is being read"
            raise ckpt.errors.RestoreError(msg)

        monkeypatch.setattr(QueryStart, "run", fails_once)
        if stays:
            monkeypatch.setattr(shadowing, "dispose_savepoint", is_read)
        with pytest.raises(OSError, match="no start"):
            shadow.promote(accept_differences=True)
        assert len(runs) == 2
        assert query.isActive
        assert query.exception() is None
        assert "runs as before" in caplog.text
        assert "could not be started" not in caplog.text
        assert bool(list((job.base / "savepoints").glob("savepoint-*"))) == stays
        assert ("is being read" in caplog.text) == stays
        shadow.discard()
        epoch_of(job)
        query.processAllAvailable()
        sink.check("aa")
        query.stop()


@pytest.mark.soak
def test_a_promotion_whose_shadow_cannot_be_deleted_is_done(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink("file", job)
    real = LocalStorage.delete_directory

    def is_busy(storage: LocalStorage, name: str) -> None:
        if name.startswith("_shadow-"):
            raise OSError(name)
        real(storage, name)

    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = sink.start(job.df)
        query.processAllAvailable()
        shadow = ckpt.shadow(query, job.but(processor=Mended).df)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "delete_directory", is_busy)
            promotion = shadow.promote(accept_differences=True)
        assert promotion.restart.reason == "promote"
        assert f"files of its shadow stay: {shadow.directory} cannot be deleted" in caplog.text
        with pytest.raises(ckpt.errors.ConfigurationError, match="it was promoted or discarded"):
            shadow.promote(accept_differences=True)
        assert len(list((job.base / "savepoints").glob("savepoint-*"))) == 1
        shadow.discard()
        assert not list(job.location_path.glob("_shadow-*"))
        epoch_of(job)
        query.processAllAvailable()
        sink.check("ab")
        query.stop()


@pytest.mark.soak
def test_on_the_command_line(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """The driver has the shadow; the commands only ask for it."""
    sink = Sink("file", job)
    location = str(job.location_path)

    def ran(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        query = sink.start(job.df)
        query.processAllAvailable()
        code, printed = ran("promote", location)
        assert code == 1
        assert "has no shadow" in printed["error"]["message"]
        mended = job.but(processor=Mended).df
        ckpt.shadow(query, mended)
        code, printed = ran("promote", location)
        assert code == 1
        assert "no epoch was compared" in printed["error"]["message"]
        assert ran("discard", location)[0] == 0
        assert not list(job.location_path.glob("_shadow-*"))
        ckpt.shadow(query, mended)
        code, printed = ran("promote", location, "--accept-differences")
        assert (code, printed["epoch"]) == (0, 0)
        assert Path(printed["path"]).parent == job.base / "savepoints"
        until(lambda: not list(job.location_path.glob("_shadow-*")), "the shadow stays")
        epoch_of(job)
        query.processAllAvailable()
        sink.check("ab")
        query.stop()


PROGRAM = """
import pyspark_ckpt as ckpt
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Numbered(StatefulProcessor):
    planted = None

    def init(self, handle):
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        for _ in rows:
            n = (self.n.get() or (0,))[0] + 1 + (key[0] == self.planted)
            self.n.update((n,))
            yield Row(k=key[0], n=n, what="a")

    def close(self): ...


class Planted(Numbered):
    planted = "k7"


def program(spark, processor):
    events = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    df = ckpt.key_by(events.parquet({source!r}), "k").transformWithState(
        processor, "k string, n long, what string", "Append", "None", uid="op"
    )
    return ckpt.write_stream(df)


def build(spark):
    return program(spark, Numbered())


def planted(spark):
    return program(spark, Planted())
"""


@contextmanager
def proving(job: Job) -> Iterator[tuple[ckpt.CheckpointedQuery, list[str]]]:
    """Run a query whose input arrives every second; yields what compares a candidate with it."""
    program = job.base / "program.py"
    program.write_text(PROGRAM.format(source=str(job.feed.path)))
    # The offsets since the only checkpoint stay, however many epochs a slow machine runs.
    with session_conf(job.spark, {PARTITIONS: "2", RETAINED: "100000"}):
        epoch_of(job)
        query = Sink("file", job).start(job.df)
        query.processAllAvailable()
        query.triggerCheckpoint()
        ended = threading.Event()

        def add() -> None:
            while not ended.wait(1):
                epoch_of(job)

        feeder = threading.Thread(target=add)
        feeder.start()
        arguments = [str(job.location_path), f"{program}:build", f"{program}:planted"]
        try:
            yield query, ["shadow", *arguments, "--epochs", "1"]
        finally:
            ended.set()
            feeder.join()
        query.processAllAvailable()
        query.stop()


def check_planted(code: int, printed: dict[str, Any]) -> None:
    assert code == 1
    assert printed["stopped"] == "1 epochs were compared"
    places = {(each["place"], each["key"]["k"]) for each in printed["samples"]}
    assert places == {("output", "k7"), ("op.n", "k7")}


@pytest.mark.own_jvm
@pytest.mark.soak
def test_a_proof_by_another_process(job: Job) -> None:
    html = job.base / "report.html"
    with proving(job) as (_, prove):
        check_planted(*command(*prove, "--html", str(html)))
    assert "k7" in html.read_text()


@pytest.mark.own_jvm
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_proof_that_is_killed(job: Job) -> None:
    """It leaves nothing at the location, the query continues, and the next proof is whole."""
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    kills = int(os.environ.get("CKPT_TEST_KILLS") or 5)
    print(f"CKPT_TEST_SEED={seed}")
    chance = random.Random(seed)
    with proving(job) as (query, prove):
        names = names_at(job)
        while kills:
            prover = subprocess.Popen(
                [sys.executable, "-m", "pyspark_ckpt", *prove, "--json"],
                env={**os.environ, "PYTHONPATH": str(Path(ckpt.__file__).parents[1])},
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                start_new_session=True,
            )  # fmt: skip
            timer = threading.Timer(chance.uniform(2, 30), kill_all, (prover,))
            timer.start()
            printed, _ = prover.communicate()
            timer.cancel()
            if prover.returncode == -signal.SIGKILL:
                kills -= 1
            else:  # it was faster
                check_planted(prover.returncode, json.loads(printed))
            assert query.isActive
            assert names_at(job) == names
        check_planted(*command(*prove))
    found = sorted((k, n) for k, n, _ in job.result())
    epochs = len(job.feed.rows) // len(KEYS)
    assert found == sorted((key, n + 1) for key in KEYS for n in range(epochs))


def names_at(job: Job) -> set[str]:
    """Return what is at the location except checkpoints and pins of readers, which expire."""
    places = (job.location_path, job.checkpoint_path)
    found = (path.name for place in places for path in place.iterdir())
    return {name for name in found if not name.startswith(("chk-", "_reader-", "."))}
