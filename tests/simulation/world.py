"""A simulated history: applications, their faults, and the checks after every step.

The seed chooses the storage, the settings and the faults. A script of fates then starts, kills,
pauses and replaces drivers and executors, takes savepoints, forks, rescales in place, promotes,
rolls back and cuts the power. At the end all faults stop, every query runs on for a while, and
nothing unneeded may be left.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

from pyspark_ckpt.formats.layout import ROLLBACK_MARKER
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.restarting.rollback import rollback
from pyspark_ckpt.restore.location.seedings import is_half_seeded
from pyspark_ckpt.settings import ClaimMode, HighAvailability, Settings
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import open_storage
from tests.simulation.application import FAILURES, Application
from tests.simulation.bucket import Bucket
from tests.simulation.checks import Checks
from tests.simulation.disk import Disk
from tests.simulation.scheduler import Actor, Process, Scheduler
from tests.simulation.seams import simulated

HOST = "/host"
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"


class World(Checks):
    """One history.

    Parameters
    ----------
    seed
        Determines everything.
    fates
        How many things happen; the shrinker gives fewer than the seed would have.
    """

    def __init__(self, seed: int, fates: int | None = None) -> None:
        super().__init__()
        self.scheduler = Scheduler(seed)
        self.chance = self.scheduler.chance
        chance = self.chance
        self.disk = Disk(self.scheduler)
        self.bucket = Bucket(self.scheduler)
        self.scheduler.at_point = self._at_point
        self.disk.before_change = self.bucket.before_change = self.before_change
        self.scratch = Path(_MEMORY) / f"pyspark_ckpt-simulation-{os.getpid()}"
        self.is_remote = chance.random() < 0.4
        is_apart = self.is_remote or chance.random() < 0.5
        root = "s3://bucket-1/ckpt" if self.is_remote else f"{HOST}/checkpoints"
        self.checkpoints_directory = root if is_apart else None
        self.savepoints_directory = "s3://bucket-1/sp" if self.is_remote else f"{HOST}/savepoints"
        self.settings = Settings(
            backend_type="heap",
            interval_ms=1,
            timeout_ms=chance.choice([30_000, 600_000]),
            num_retained=chance.choice([1, 1, 2, 3]),
            inline_threshold_bytes=chance.choice([0, 60]),
            materialize_interval_ms=10**15,
            materialize_min_bytes=chance.choice([0, 10**15]),
            materialize_max_segments=chance.choice([2, 3, 6]),
            high_availability_type=chance.choice(
                [HighAvailability.NONE, HighAvailability.ZOOKEEPER]
            ),
            zookeeper_quorum="zk:2181",
        )
        self.twins = chance.choice([0.0, 0.2])
        self.uploads_in_background = chance.random() < 0.7
        self.crashes = chance.choice([0.0, 0.0005, 0.003])
        self.fails = chance.choice([0.0, 0.002, 0.02])
        wanted = chance.randrange(3, 12)
        self.fates = wanted if fates is None else fates
        self.locations: list[str] = []
        # By a chance of its own: other histories stay as they are.
        self.restarts_in_place = Random(f"restarts {seed}").random() < 0.5
        self.stops_in_swaps = Random(f"swaps {seed}").random() < 0.5
        self.restarts_beside = Random(f"beside {seed}").random() < 0.3
        self._names = 0

    def run(self) -> None:
        """Live the whole history.

        Raises
        ------
        AssertionError
            If a promise was broken.
        """
        self.scratch.mkdir(exist_ok=True)
        os.environ["SPARK_LOCAL_DIRS"] = str(self.scratch)
        try:
            with simulated(self.scheduler, self.disk, self.bucket, self.pointers):
                self.disk.root.names["host"] = self.disk.root.durable["host"] = (
                    self.disk.new_directory()
                )
                self.scheduler.run(Process("world"), self._live)
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def new_name(self, what: str) -> str:
        """Return a name that nothing else has."""
        self._names += 1
        return f"{what}-{self._names}"

    def new_value(self) -> int:
        """Return an input that no other epoch has."""
        self._names += 1
        return self._names

    # What happens

    def _live(self) -> None:
        chance, scheduler = self.chance, self.scheduler
        self.disk.fails = 0.0 if self.is_remote else self.fails / 10
        self.bucket.fails = self.fails
        self._begin(None)
        for _ in range(self.fates):
            scheduler.sleep(chance.randrange(1, 400))
            fate = chance.choice([
                self._kill_a_driver, self._kill_a_driver, self._pause_a_driver,
                self._start_two_drivers, self._kill_a_start, self._kill_an_executor,
                self._cut_the_power, self._take_a_savepoint, self._fork, self._roll_back,
                *[self._restart_in_place] * (3 if self.restarts_in_place else 0),
                *[self._restart_beside_another] * (3 if self.restarts_beside else 0),
            ])  # fmt: skip
            scheduler.note(f"fate: {fate.__name__.strip('_')}")
            fate()
            self._restart_what_ended()
            self.check_acknowledged()
        self._end()

    def _begin(self, restore: str | None, claim: ClaimMode = ClaimMode.NO_CLAIM) -> None:
        path = f"{HOST}/{self.new_name('location')}"
        self.locations.append(path)
        self._start(path, restore, claim)

    def _start(
        self, path: str, restore: str | None = None, claim: ClaimMode = ClaimMode.NO_CLAIM
    ) -> Application:
        application = Application(self, path, restore, claim)
        self.applications.append(application)
        application.start()
        return application

    def _restart_what_ended(self) -> None:
        for path in list(self.locations):
            last = self.newest_at(path)
            if self._has_nothing_to_start_from(last):
                self.locations.remove(path)
            elif last.has_ended:
                self._start(path, last.restore, last.claim)

    def _has_nothing_to_start_from(self, last: Application) -> bool:
        """Return whether what a query was to be restored from was subsumed or claimed before."""
        if last.restore is None:
            return False
        with self.scheduler.quiet():
            location = open_storage(last.path)
            is_filled = SparkLog(location).committed_epoch() is not None
            if is_filled and not is_half_seeded(location):
                return False
            return not open_storage(last.restore).exists("_metadata")

    def _any(self) -> Application:
        return self.newest_at(self.chance.choice(self.locations))

    def _kill_a_driver(self) -> None:
        self._any().kill()

    def _pause_a_driver(self) -> None:
        """Another driver starts next to one that seems dead and wakes up later."""
        self._pause(self._any())

    def _pause(self, last: Application) -> None:
        last.pause(self.chance.randrange(50, 3_000))
        if self.chance.random() < 0.8:
            self._start(last.path, last.restore, last.claim)

    def _start_two_drivers(self) -> None:
        """Two drivers take over from a killed one at once, as if a job was started twice."""
        last = self._any()
        last.kill()
        for _ in range(2):
            self._start(last.path, last.restore, last.claim)

    def _kill_a_start(self) -> None:
        """A driver is killed while it starts, perhaps by a power cut."""
        last = self._any()
        last.kill()
        started = self._start(last.path, last.restore, last.claim)
        self._let_steps_pass(self.chance.randrange(5, 150))
        started.kill()
        if self.chance.random() < 0.3:
            self._cut_the_power()

    def _let_steps_pass(self, steps: int) -> None:
        began = self.scheduler.steps
        self.scheduler.wait(lambda: self.scheduler.steps > began + steps, 100)

    def _kill_an_executor(self) -> None:
        self._any().replace_executor(self.chance.randrange(2))

    def _cut_the_power(self) -> None:
        for application in self.applications:
            application.kill()
        self.disk.lose_power()

    def _take_a_savepoint(self) -> None:
        self._take_a_savepoint_of(self._any())

    def _take_a_savepoint_of(self, application: Application) -> None:
        if application.has_ended:
            return
        kind = self.chance.choice([SavepointFormat.CANONICAL, SavepointFormat.NATIVE])
        self.scheduler.spawn(
            application.process, "savepoint", lambda: application.take_savepoint(kind)
        )

    def _fork(self) -> None:
        if len(self.locations) >= 3:
            return
        sources = list(self.savepoints)
        for timeline in self.timelines.values():
            sources += [
                f"{timeline.directory}/chk-{number}"
                for number in self.complete_ids(timeline)
                if number in timeline.acknowledged
            ]
        if sources:
            claim = self.chance.choice([*ClaimMode])
            self._begin(self.chance.choice(sources), claim)
            if self.chance.random() < 0.4:  # in the middle of its restore
                self._let_steps_pass(self.chance.randrange(20, 150))
                self.newest_at(self.locations[-1]).kill()

    def _restart_in_place(self) -> None:
        """A driver stops its query between two epochs, and starts it with another content."""
        application = self._any()
        application.wanted_parallelism = self.chance.choice([1, 2, 2, 3, 4])
        application.is_promoting = self.chance.random() < 0.3
        application.is_restarting = True
        if self.chance.random() < 0.3:  # also during it
            self.scheduler.sleep(self.chance.randrange(1, 60))
            self._take_a_savepoint_of(application)
        if self.chance.random() < 0.5:  # in the middle of it
            self.scheduler.wait(lambda: application.is_changing or application.has_ended, 300)
            if self.stops_in_swaps:
                path = application.path
                self.scheduler.wait(lambda: self._is_swapped(path) or application.has_ended, 300)
                self._let_steps_pass(self.chance.randrange(1, 20))
            else:
                self._let_steps_pass(self.chance.randrange(1, 60))
            self.chance.choice([application.kill, lambda: self._pause(application)])()

    def _restart_beside_another(self) -> None:
        """A paused driver wakes up in the midst of the restart in place of the next one."""
        last = self._any()
        last.pause(5_000)
        started = self._start(last.path, last.restore, last.claim)
        # At once: the epoch that is next for both has not begun.
        started.wanted_parallelism = self.chance.choice([1, 2, 3])
        started.is_restarting = True
        self.scheduler.wait(lambda: started.is_changing or started.has_ended, 300)
        self._let_steps_pass(self.chance.randrange(1, 150))
        last.pause(0)

    def _roll_back(self) -> None:
        """Stop a query and put its location back to one of its checkpoints."""
        path = self.chance.choice(self.locations)
        for application in self.applications:
            if application.path == path:
                application.kill()
        self.changes += 1
        self.scheduler.sleep(1)  # what was killed ends
        query_id = self.newest_at(path).query_id
        if query_id not in self.timelines:
            return
        assert query_id is not None
        timeline = self.timelines[query_id]
        complete = list(self.complete_ids(timeline))
        if not complete:
            return
        to = f"chk-{self.chance.choice(complete)}"
        process = Process(self.new_name("rollback"))
        timeline.is_moving = True

        def roll_back() -> None:
            try:
                rollback(path, to, self.checkpoints_directory)
                self.rollbacks += 1
            except FAILURES as exc:
                self.scheduler.note(f"no rollback: {type(exc).__name__}: {exc}")

        actor = self.scheduler.spawn(process, "rollback", roll_back)
        if self.chance.random() < 0.3:
            self.scheduler.sleep(self.chance.randrange(1, 30))
            self.scheduler.kill(process)
        self.scheduler.wait(lambda: actor.is_over)
        self._finish_rollback(path, to)
        self._find_moved(path)
        timeline.is_moving = False
        for application in self.applications:
            if application.path == path:
                application.restore = None

    def _is_swapped(self, path: str) -> bool:
        with self.scheduler.quiet():
            return open_storage(path).exists(ROLLBACK_MARKER)

    def _finish_rollback(self, path: str, to: str) -> None:
        if self._is_swapped(path):
            with self.scheduler.quiet():
                rollback(path, to, self.checkpoints_directory)

    def _find_moved(self, path: str) -> None:
        """Note where the checkpoints of earlier queries of a location are now."""
        if self.checkpoints_directory is not None:
            return
        with self.scheduler.quiet():
            location = open_storage(path)
            for name in location.list():
                if name.startswith("_before_rollback-"):
                    kept = location.child(name)
                    query_id = SparkLog(kept).query_id()
                    if query_id in self.timelines:
                        self.timelines[query_id].directory = kept.url_of("pyspark_ckpt")

    def _end(self) -> None:
        """Stop all faults, let every query run on, stop it, and look at what is left."""
        self.may_crash = False
        self.disk.fails = self.bucket.fails = 0.0
        self.twins = 0.0
        for application in self.applications:
            if application.process.paused_until_ms <= self.scheduler.now_ms:
                application.kill()
        self.scheduler.sleep(4_000)  # zombies wake up
        for application in self.applications:
            application.kill()
        self.scheduler.sleep(30_000)  # late requests arrive
        self.scheduler.sleep(1)
        self.check_acknowledged()
        for path in self.locations:
            last = self.newest_at(path)
            if self._has_nothing_to_start_from(last):
                continue
            self._run_without_faults(self._start(path, last.restore, last.claim))
        for path in self.savepoints:
            self.check_savepoint_files(path)

    def _run_without_faults(self, application: Application) -> None:
        wait = self.scheduler.wait
        wait(lambda: application.epochs >= 6 or application.has_ended, 10**7)
        application.is_stopping = True
        wait(lambda: application.has_ended, 10**7)
        failure = application.failure
        assert failure is None, f"{application.path} does not run without faults: {failure!r}"
        assert application.query_id is not None
        self.check_nothing_left(self.timelines[application.query_id])

    def _at_point(self, actor: Actor, what: str) -> None:
        if self.crashes and self.may_crash and self.chance.random() < self.crashes:
            for application in self.applications:
                if actor.process is application.process:
                    application.kill()
                for number, executor in enumerate(application.executors):
                    if actor.process is executor.process:
                        application.replace_executor(number)
