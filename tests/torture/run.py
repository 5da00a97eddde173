"""Tortures queries with kills and other faults: ``make prove WHAT=torture ARGS="1000 --seed 7"``.

A query on two executors has timers, ageing state and two operators. A fault comes at a random
moment after a checkpoint has completed since the fault before; only such a fault counts. After some
faults the query takes a savepoint and finishes, and a fork of it is tortured next: perhaps on the
other backend, with other subtasks, with its checkpoints on S3. The output of each query is exact
for each key, and a query that was forked is not changed by its fork. The number that is asked for
is one of faults; the figures also count kills and pauses. 125 faults took half an hour on two busy
cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec

from pyspark_ckpt import location
from tests import conftest  # noqa: F401  it sets what lets JVMs start soon
from tests.external.front import Front
from tests.faults.confined import MOUNT, NAMESPACE, may_mount
from tests.servers.s3 import BUCKET, s3_server
from tests.torture.faults import FAULTS, Scene, choose
from tests.torture.figures import Figures, add_run, shown, table_of
from tests.torture.life import EndedError, Life
from tests.torture.oracle import Input, committed_output, epochs_with_files
from tests.torture.screen import Screen
from tools.measured_commit import measured_commit

DISK = "CKPT_TORTURE_DISK"
DISK_BYTES = 1 << 30
FAULTS_OF_A_QUERY = 25
LONGEST_WAIT_S = 0.8
BACKLOG = 2
FEED_EVERY_S = 0.1
MOST_STARTS = 30


class Torture:
    """A torture below a directory; the seed decides all that does not depend on time."""

    def __init__(
        self,
        work: Path,
        disk: Path | None,
        kills: int,
        seed: int,
        minutes: float,
        results: Path | None,
    ) -> None:
        self._work = work
        self._disk = disk
        self._kills = kills
        self._chance = random.Random(seed)
        self.figures = Figures(seed)
        self.input = Input(work / "input", random.Random(seed))
        self._spec: dict[str, Any] = {}
        self._epochs: dict[int, range] = {}
        self._watermarks: dict[int, int] = {}
        self._screen = Screen(seed, kills)
        self._life: Life | None = None
        self._fed_at = 0.0
        self._results = results
        self._last_fault_by = time.monotonic() + minutes * 60

    def run(self) -> Figures:
        """Torture queries until there were enough faults; check each.

        Raises
        ------
        AssertionError
            If an output is not exact, or an error says that something stored was lost.
        """
        began = time.monotonic()
        savepoint: str | None = None
        origin: Path | None = None
        digests: dict[str, str] = {}
        try:
            with ExitStack() as stack, self._screen:
                environment = stack.enter_context(s3_server())
                os.environ.update(environment)
                fsspec.filesystem("s3", use_listings_cache=False).mkdir(BUCKET)
                self._front = Front(environment["AWS_ENDPOINT_URL"])
                stack.callback(self._front.kill)
                while not self._is_enough():
                    self._spec = self._new_query(savepoint)
                    savepoint = self._torture_query()
                    self.figures.seconds = round(time.monotonic() - began, 1)
                    _write(self.figures, self._results)
                    if origin is not None and origin.exists():
                        if digests != _digests(origin):
                            raise AssertionError(f"a fork has changed its origin {origin}")
                        shutil.rmtree(origin)
                    origin = Path(self._spec["directory"])
                    digests = _digests(origin)
                    if self._chance.random() < 0.5:
                        shutil.rmtree(origin)  # a savepoint needs nothing of it
        finally:
            if self._life is not None:
                self._life.kill()
            self.figures.seconds = round(time.monotonic() - began, 1)
        return self.figures

    def _is_enough(self) -> bool:
        return self.figures.faults.total() >= self._kills or time.monotonic() > self._last_fault_by

    def _new_query(self, savepoint: str | None) -> dict[str, Any]:
        number = self.figures.queries
        self.figures.queries += 1
        self.figures.forks += savepoint is not None
        directory = (self._disk or self._work) / f"query-{number}"
        directory.mkdir()
        on_s3 = number % 4 == 3
        checkpoints = f"s3://{BUCKET}/query-{number}" if on_s3 else None
        conf = {
            "spark.ckpt.state.backend.type": ("rocksdb", "heap")[number % 3 == 1],
            "spark.sql.shuffle.partitions": str(self._chance.choice((2, 2, 3))),
            "spark.local.dir": str((self._disk or self._work) / "local"),
        }
        if checkpoints is not None:
            conf["spark.ckpt.execution.checkpointing.dir"] = checkpoints
        self._screen.state.update(
            query=number, backend=conf["spark.ckpt.state.backend.type"],
            subtasks=conf["spark.sql.shuffle.partitions"], checkpoints="S3" if on_s3 else "disk",
        )  # fmt: skip
        return {
            "directory": str(directory),
            "input": str(self._work / "input"),
            "output": str(directory / "output"),
            "location": str(directory / "location"),
            "checkpoints": checkpoints,
            "restore": savepoint,
            "conf": conf,
        }

    def _torture_query(self) -> str | None:
        """Inject faults, then end the query; return a savepoint from its midst."""
        faults = min(FAULTS_OF_A_QUERY, self._kills - self.figures.faults.total())
        savepoint_after = self._chance.randrange(faults)
        savepoint = None
        for number in range(faults):
            if self._is_enough():
                break
            self._one_fault()
            if number == savepoint_after:
                savepoint = self._take_savepoint(
                    ("CANONICAL", "NATIVE")[self._chance.random() < 0.5]
                )
        if self._chance.random() < 0.5:
            self._kill_everything()
        self._finish()
        output = committed_output(Path(self._spec["output"]))
        before, epochs, marks_ms = epochs_with_files(Path(self._spec["location"]))
        epochs |= {file: files for file, files in self._epochs.items() if file <= before}
        marks_ms |= {file: each for file, each in self._watermarks.items() if file <= before}
        self._epochs, self._watermarks = epochs, marks_ms
        checked = self.input.check(output, is_whole=True, epochs=epochs, watermarks=marks_ms)
        self.figures.rows += checked.rows
        self.figures.timers += checked.timers
        self._screen.tell(
            f"query {self.figures.queries - 1} is exact: files {checked.first} to {checked.last}, "
            f"{checked.rows} rows, {checked.timers} timers"
        )
        return savepoint

    def _one_fault(self) -> None:
        """Wait for a checkpoint and a random moment, then inject a fault."""
        while True:
            life = self._living()
            try:
                self._screen.state["checkpoint"] = life.await_checkpoint(self._feed)
                self.figures.checkpoints += 1
                scene = Scene(life, self._chance, self._disk, self._s3_front(), self._feed)
                scene.wait(self._chance.uniform(0.0, LONGEST_WAIT_S))
                if life.process.poll() is not None:
                    raise EndedError(life.last_words())
                fault = choose(self._chance, scene)
                if FAULTS[fault][1](scene):
                    self.figures.faults[fault] += 1
                    self._screen.count(fault)
                    return
            except EndedError as exc:
                self._note_end(exc)

    def _take_savepoint(self, kind: str) -> str:
        directory = str((self._disk or self._work) / "savepoints")
        while True:
            try:
                path = self._living().await_savepoint(directory, kind, self._feed)
            except EndedError as exc:
                self._note_end(exc)
                continue
            location(path).verify()
            self._screen.tell(f"a {kind.lower()} savepoint: {Path(path).name}")
            return path

    def _finish(self) -> None:
        for _ in range(MOST_STARTS):
            try:
                self._living().finish()
            except EndedError as exc:
                self._note_end(exc)
                continue
            self._life = None
            return
        raise AssertionError(f"the query failed {MOST_STARTS} times without a fault")

    def _living(self) -> Life:
        """Return the driver; start it if it is dead."""
        if self._life is not None and self._life.process.poll() is not None:
            self._note_end(EndedError(self._life.last_words()))
        if self._life is None:
            front = self._s3_front()
            variables = {} if front is None else {"AWS_ENDPOINT_URL": front.url}
            shutil.rmtree(self._spec["conf"]["spark.local.dir"], ignore_errors=True)
            self._life = Life(self._work / "life", self._spec, variables)
        return self._life

    def _s3_front(self) -> Front | None:
        return self._front if self._spec["checkpoints"] else None

    def _kill_everything(self) -> None:
        if self._life is not None:
            self._life.last_words()  # it may have an error that no fault explains
            self._life.kill()
            self._life = None

    def _note_end(self, error: EndedError) -> None:
        """Count a driver that has ended by itself; the next start continues its query."""
        lines = [line for line in str(error).splitlines() if "Error" in line or "Exception" in line]
        said = (lines or [""])[-1].strip()[:160]
        if self._life is not None and not self._life.was_killed:
            self.figures.ended_by_themselves += 1
            self.figures.last_words[said] += 1
            self._screen.tell(f"the driver has ended: {said}")
        self._kill_everything()

    def _feed(self) -> None:
        """Add a file if the query is near the end of its input."""
        if time.monotonic() - self._fed_at < FEED_EVERY_S:
            return
        self._fed_at = time.monotonic()
        log = Path(self._spec["location"]) / "sources" / "0"  # an entry for each file
        names = os.listdir(log) if log.exists() else []  # noqa: PTH208  there may be thousands
        seen = max(
            (int(found[0]) for name in names if (found := re.match("[0-9]+", name))), default=-1
        )
        if len(self.input.files) - seen - 1 < BACKLOG:
            self.figures.files = self.input.add() + 1
        self._screen.state["file"] = f"{seen} of {len(self.input.files)}"


def _digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def main() -> None:
    """Run a torture; print its figures as JSON."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("kills", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no fault after that")
    parser.add_argument("--results", type=Path, help="a file to add the figures to")
    parser.add_argument("--no-disk", action="store_true", help="no disk of its own to fill")
    parser.add_argument("--table", type=Path, help="only print a table of this file with figures")
    arguments = parser.parse_args()
    if arguments.table:
        print(table_of(json.loads(arguments.table.read_text())))
        return
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    if DISK not in os.environ and not arguments.no_disk and may_mount():
        sys.exit(_again_with_a_disk(seed, arguments))
    disk = Path(os.environ[DISK]) if DISK in os.environ else None
    print(f"SEED={seed} COMMIT={measured_commit()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="torture-") as work:
        torture = Torture(
            Path(work), disk, arguments.kills, seed, arguments.minutes, arguments.results
        )
        try:
            figures = torture.run()
        except BaseException:
            kept = Path(tempfile.mkdtemp(prefix="torture-failed-"))
            shutil.copytree(work, kept / "work", symlinks=True, dirs_exist_ok=True)
            if disk is not None:
                shutil.copytree(disk, kept / "disk", symlinks=True)
            print(f"SEED={seed} failed; its files: {kept}", file=sys.stderr, flush=True)
            raise
        finally:
            _write(torture.figures, arguments.results)
    print(json.dumps(shown(figures)))


def _again_with_a_disk(seed: int, arguments: argparse.Namespace) -> int:
    """Run this program again in a namespace with its own small disk."""
    disk = tempfile.mkdtemp(prefix="torture-disk-")
    command = [*NAMESPACE, MOUNT, "sh", str(DISK_BYTES), disk]
    program = [sys.executable, "-m", "tests.torture.run", str(arguments.kills)]
    program += ["--seed", str(seed), "--minutes", str(arguments.minutes)]
    program += ["--results", str(arguments.results)] if arguments.results else []
    environment = {**os.environ, DISK: disk}
    return subprocess.run([*command, *program], env=environment, check=False).returncode


def _write(figures: Figures, results: Path | None) -> None:
    if results is not None:
        add_run(shown(figures), results)


if __name__ == "__main__":
    main()
