"""The checks of a simulated history, made at each change, each checkpoint, and at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import checkpoint_id_of, state_file, written_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata, EpochContents, Origin
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.settings import ClaimMode, Settings
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.stores.open import find_store
from tests.simulation.application import Application
from tests.simulation.disk import Disk
from tests.simulation.location import SparkFiles
from tests.simulation.model import MAX_PARALLELISM, State, Timeline, check_handles, of_subtask
from tests.simulation.scheduler import Scheduler, current_actor
from tests.unit.memory_pointers import SharedPointers


class Checks:
    """What must hold in a world; the world fills it."""

    scheduler: Scheduler
    disk: Disk
    settings: Settings
    fails: float
    crashes: float

    def __init__(self) -> None:
        self.pointers: dict[str, SharedPointers] = {}
        self.timelines: dict[str, Timeline] = {}
        self.newest: dict[str, Application] = {}
        self.applications: list[Application] = []
        self.savepoints: dict[str, State] = {}
        self.checkpoints = 0
        self.restarts = 0
        self.promotions = 0
        self.rollbacks = 0
        self.may_crash = True
        self.changes = 0
        self._holds: list[tuple[str, frozenset[str]]] = []
        self._needed_at: dict[str, tuple[object, set[str]]] = {}
        self._known: dict[str, tuple[bytes, CheckpointMetadata]] = {}

    def before_change(self, path: str, kind: str) -> None:
        """Check a change of the durable storage before it happens."""
        actor = current_actor()
        if "/chk-" in path or "/stores/" in path:
            self.changes += 1
        if actor is None:
            return
        if kind != "create":
            self._check_not_needed(path)
        for application in self.applications:
            if actor.process is application.process:
                self._check_own(application, path, kind)
                break

    def _check_not_needed(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        above, _, part = directory.rpartition("/")
        if part not in ("shared", "taskowned") or written_path(name) != name:
            return
        for timeline in self.timelines.values():
            if timeline.directory == above and not timeline.is_moving:
                with self.scheduler.quiet():
                    needed = self._needed(timeline)
                assert f"{part}/{name}" not in needed, f"{path} is deleted, and is needed"

    def _needed(self, timeline: Timeline) -> set[str]:
        """Return the files that retained checkpoints, newest handles or savepoints refer to."""
        shared = self.pointers.get(f"/pyspark_ckpt/{timeline.query_id}")
        pointed = () if shared is None else tuple(shared.urls)
        version = (self.changes, pointed, tuple(self._holds))
        if (
            timeline.query_id in self._needed_at
            and self._needed_at[timeline.query_id][0] == version
        ):
            return self._needed_at[timeline.query_id][1]
        needed = self._look_for_needed(timeline)
        self._needed_at[timeline.query_id] = version, needed
        return needed

    def _look_for_needed(self, timeline: Timeline) -> set[str]:
        needed: set[str] = set()
        for number in self.complete_ids(timeline):
            metadata = self._metadata(timeline, number)
            needed |= {file.path for file in metadata.files()}
        application = self.newest.get(timeline.query_id)
        if application is not None:
            for holder, files in self._holds:  # the savepoint of a fenced driver may fail
                if holder == application.name:
                    needed |= files
            for handle in self._newest_handles(application):
                needed |= {file.path for file in handle.files()}
        return needed

    def _newest_handles(self, application: Application) -> Iterator[Handle]:
        spark = SparkFiles(self.disk, application.path)
        committed = spark.newest("commits")
        if committed is None:
            return
        for number in range(MAX_PARALLELISM):
            found = [spark.handle(number, committed + 1)]
            if not application.has_ended:
                found += [each.known.get((number, committed + 1)) for each in application.executors]
            yield from (
                handle
                for handle in found
                if handle is not None and handle.query_id == application.query_id
            )

    def _check_own(self, application: Application, path: str, kind: str) -> None:
        query_id = application.query_id or self._query_id_in(application.path)
        for timeline in self.timelines.values():
            if timeline.query_id == query_id:
                continue
            is_inside = path.startswith(f"{timeline.directory}/")
            is_claimed = application.claim is ClaimMode.CLAIM and "/chk-" in path
            is_own = path.startswith(f"{application.path}/")
            assert not is_inside or is_claimed or is_own, (
                f"{application.name} of query {query_id} makes a {kind} of {path}"
            )

    def _query_id_in(self, path: str) -> str | None:
        """Return what a driver finds that starts next to the one that made the id."""
        with self.scheduler.quiet():
            return SparkLog(open_storage(path)).query_id()

    def complete_ids(self, timeline: Timeline) -> list[int]:
        """Return the ids of a query's complete checkpoints."""
        with self.scheduler.quiet():
            store = find_store(open_storage(timeline.directory))
            return store.ids()

    def _metadata(self, timeline: Timeline, number: int) -> CheckpointMetadata:
        directory = f"{timeline.directory}/chk-{number}"
        storage = open_storage(directory)
        content = storage.read("_metadata")
        known = self._known.get(directory)
        if known is None:
            known = self._known[directory] = content, read_metadata(storage)
        assert known[0] == content, f"{directory}/_metadata has changed"
        return known[1]

    def know_query(self, query_id: str, directory: str, origin: Origin | None) -> None:
        """Note a query that starts, with the state that it must begin with."""
        if query_id in self.timelines:
            self.timelines[query_id].directory = directory
            return
        timeline = self.timelines[query_id] = Timeline(query_id, directory)
        if origin is not None:
            source = self.timelines[origin.query_id]
            timeline.first = origin.epoch
            timeline.states = [source.after(origin.epoch)]

    def note_committed(self, application: Application, epoch: int) -> None:
        """Note that Spark has committed an epoch."""
        self.changes += 1

    def note_handle(self) -> None:
        """Note that a task has written a handle."""
        self.changes += 1

    def note_claimed(self, path: str) -> None:
        """Note that a checkpoint or savepoint may be deleted by the query that claimed it."""
        self.savepoints.pop(path, None)
        directory, _, name = path.rpartition("/")
        number = checkpoint_id_of(name)
        for timeline in self.timelines.values():
            if timeline.directory == directory and number is not None:
                timeline.released.add(number)

    @contextmanager
    def held(self, contents: EpochContents, application: Application) -> Iterator[None]:
        """Note that a savepoint copies the files of an epoch."""
        hold = application.name, frozenset(file.path for file in contents.files())
        self._holds.append(hold)
        try:
            yield
        finally:
            with suppress(ValueError):
                self._holds.remove(hold)

    def check_start(
        self, application: Application, handle: Handle, epoch: int, state: State
    ) -> None:
        """Check the state that a task found when it began."""
        assert application.query_id is not None
        whole = self.timelines[application.query_id].after(epoch - 1)
        number = handle.subtask
        wanted = of_subtask(whole, number, handle.parallelism)
        assert state == wanted, (
            f"{application.name}, epoch {epoch}: subtask {number} starts with {state}, not {wanted}"
        )

    def check_completed(self, application: Application, number: int, epoch: int) -> None:
        """Check a checkpoint that was acknowledged to its caller."""
        assert application.query_id is not None
        timeline = self.timelines[application.query_id]
        self.checkpoints += 1
        before = timeline.acknowledged.setdefault(number, epoch)
        assert before == epoch, f"chk-{number} is of epochs {before} and {epoch}"
        with self.scheduler.quiet():
            if number not in self.complete_ids(timeline):
                self.check_acknowledged()
                return
            metadata = self._metadata(timeline, number)
            assert metadata.epoch == epoch
            where = f"{timeline.directory}/chk-{number}"
            storage = open_storage(timeline.directory)
            for operator in metadata.operators:
                check_handles(storage, operator.handles, timeline.after(epoch), where)
        self.check_acknowledged()

    def check_acknowledged(self) -> None:
        """Check that no acknowledged checkpoint is lost, unless enough newer ones are complete."""
        for timeline in self.timelines.values():
            if timeline.is_moving:
                continue
            complete = self.complete_ids(timeline)
            for number in timeline.acknowledged:
                newer = [each for each in {*complete, *timeline.released} if each > number]
                is_there = number in complete or len(newer) >= self.settings.num_retained
                assert is_there or number in timeline.released, (
                    f"{timeline.directory}: the acknowledged chk-{number} is lost; {complete} are "
                    "complete"
                )
            with self.scheduler.quiet():
                storage = open_storage(timeline.directory)
                for number in complete:
                    for file in self._metadata(timeline, number).files():
                        storage.verify_size(file)

    def check_savepoint(self, path: str, query_id: str, epoch: int) -> None:
        """Check a savepoint that was acknowledged to its caller."""
        self.savepoints[path] = self.timelines[query_id].after(epoch)
        self.check_savepoint_files(path)

    def check_savepoint_files(self, path: str) -> None:
        """Check that a savepoint has its state, in its own files."""
        with self.scheduler.quiet():
            storage = open_storage(path)
            metadata = read_metadata(storage)
            assert metadata.root == "."
            for operator in metadata.operators:
                check_handles(storage, operator.handles, self.savepoints[path], path)

    def check_may_fail(self, application: Application, error: BaseException) -> None:
        """Check that an application failed for a reason: a fault, or another driver."""
        # An older driver that restarts the query in place claims it again, if nobody else has yet.
        has_claimed = self.newest.get(application.query_id) in (None, application)
        is_newest = has_claimed and self.newest_at(application.path) is application
        has_faults = self.fails or self.crashes
        if isinstance(error, CkptError | OSError) and (has_faults or not is_newest):
            return
        if not self.may_crash:
            raise AssertionError(f"{application.name} failed without a fault") from error

    def check_nothing_left(self, timeline: Timeline) -> None:
        """Check that no file is left that nothing needs, after epochs without faults."""
        with self.scheduler.quiet():
            storage = open_storage(timeline.directory)
            needed = self._needed(timeline)
            complete = self.complete_ids(timeline)
            newest = self._metadata(timeline, complete[-1])
            kept = newest.kept_files()
            assert len(complete) <= self.settings.num_retained, f"{complete} are retained"
            for part in ("shared", "taskowned"):
                for name in storage.list(part):
                    path = f"{part}/{name}"
                    assert path in needed or path in kept or self._is_recent(name, newest), (
                        f"{timeline.directory}/{path} is left, and nothing needs it"
                    )

    def _is_recent(self, name: str, newest: CheckpointMetadata) -> bool:
        """Return whether the handles of the newest checkpoint say that a file may be needed."""
        file = state_file(name)
        if file is None:
            return False
        since = min(newest.kept_since().values(), default=0)
        return file.epoch >= since or file.snapshot_id in newest.pending_snapshots()

    def newest_at(self, path: str) -> Application:
        """Return the driver that was started last at a location."""
        return next(each for each in reversed(self.applications) if each.path == path)
