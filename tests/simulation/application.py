"""One start of a query: a driver, two executors, and the threads that Spark and the library run.

Spark is simulated: its epochs, attempts of tasks, speculative twins, its memory of state stores.
The library's code is the real one: the start at a location, the restore, the epoch's local copy,
materialisation, upload, barrier, the runner of checkpoints with its cleaner, and savepoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.cleaning import CleaningHold
from pyspark_ckpt.checkpoint.contents import gather
from pyspark_ckpt.checkpoint.handles import checked_handles
from pyspark_ckpt.checkpoint.machine import Refusal, Subtask
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CkptError,
    FencedError,
    IncompatibleStateError,
)
from pyspark_ckpt.formats.handle import Handle, StateDescriptor, following
from pyspark_ckpt.formats.metadata import EpochContents
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.durable.local_snapshots import BackgroundUploads
from pyspark_ckpt.operator.durable.materialization import EpochStart, Materializer
from pyspark_ckpt.operator.run.barrier import make_segment
from pyspark_ckpt.operator.table.writes import in_frames
from pyspark_ckpt.restarting.staging import change_in_place, put_back
from pyspark_ckpt.restore.claim import ClaimedSource
from pyspark_ckpt.restore.location.facts import bound_parallelism
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.restore.location.swap import finish_restart
from pyspark_ckpt.restore.plan import RestoreRequest, plan_of
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.savepoint.dispose import dispose_savepoint
from pyspark_ckpt.savepoint.savepoint import NewSavepoint, run_copies_here
from pyspark_ckpt.savepoint.taker import SavepointAttempt
from pyspark_ckpt.settings import ClaimMode
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stored.savepoint_copy import SubtaskCopy
from pyspark_ckpt.stores.open import claim_store
from state_backends import StateBackendError
from tests.faults.starts import NO_SPARK, filled
from tests.simulation.location import SparkFiles
from tests.simulation.model import MAX_PARALLELISM, SUBTASKS, keys_of, written
from tests.simulation.scheduler import Actor, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

KEY_SCHEMA = (
    '{"fields":[{"metadata":{},"name":"k","nullable":true,"type":"string"}],"type":"struct"}'
)
_STATES = (StateDescriptor("last", "value", KEY_SCHEMA),)


def descriptor_of(parallelism: int) -> OperatorDescriptor:
    """Return the operator with so many subtasks."""
    return OperatorDescriptor(
        uid="count",
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        key_schema=KEY_SCHEMA,
    )


ATTEMPTS = 4
"""How often Spark runs a task before its query fails."""

FAILURES = (OSError, CkptError, StateBackendError)
"""What a fault may raise; anything else is a bug of the library or of the simulation."""


class Executor:
    """A process that runs tasks, with its disk and its memory of state stores."""

    def __init__(self, name: str, directory: Path) -> None:
        self.process = Process(name)
        self.directory = directory
        self.known: dict[tuple[int, int], Handle] = {}
        self.uploads = BackgroundUploads()


class Application:
    """A driver with two executors at one location.

    Parameters
    ----------
    world
        What it runs in.
    path
        The ``checkpointLocation``.
    restore
        What it is restored from, if the location is fresh.
    claim
        Who owns what it is restored from.
    """

    def __init__(
        self,
        world: World,
        path: str,
        restore: str | None = None,
        claim: ClaimMode = ClaimMode.NO_CLAIM,
    ) -> None:
        self.world = world
        self.path = path
        self.restore = restore
        self.claim = claim
        self.name = world.new_name("driver")
        self.process = Process(self.name)
        self.executors = [self._new_executor() for _ in range(2)]
        self.query_id: str | None = None
        self.storage: Storage | None = None
        self.runner: CheckpointRunner | None = None
        self.is_stopping = False
        self.is_restarting = self.is_changing = self.is_promoting = False
        self.parallelism = SUBTASKS
        self.wanted_parallelism: int | None = None
        """What a restart in place is to give it."""
        self.is_running = False
        self.epochs = 0
        self.failure: BaseException | None = None
        self.spark = SparkFiles(world.disk, path)
        self.run_id = world.new_name("run")

    def start(self) -> None:
        """Let the driver begin; it may fail or be killed at any step."""
        self.is_running = True
        self.world.scheduler.spawn(self.process, "start", self._guarded)

    @property
    def has_ended(self) -> bool:
        """Whether it runs no longer."""
        return not self.is_running or not self.process.is_alive

    def kill(self) -> None:
        """Kill the driver and its executors."""
        self.world.scheduler.kill(self.process)
        for executor in self.executors:
            self.world.scheduler.kill(executor.process)

    def pause(self, time_ms: int) -> None:
        """Let nothing of the application run for a time."""
        until_ms = self.world.scheduler.now_ms + time_ms
        for process in (self.process, *(each.process for each in self.executors)):
            process.paused_until_ms = until_ms

    def replace_executor(self, number: int) -> None:
        """Kill an executor; Spark starts another one."""
        self.world.scheduler.kill(self.executors[number].process)
        self.executors[number] = self._new_executor()

    def _new_executor(self) -> Executor:
        name = self.world.new_name("executor")
        return Executor(name, self.world.scratch / name)

    def _guarded(self) -> None:
        try:
            self._run()
        except FAILURES as exc:
            self.failure = exc
            self.world.scheduler.note(f"ended: {type(exc).__name__}: {exc}")
            self.world.check_may_fail(self, exc)
        finally:
            self.is_running = False
        self.kill()  # what it left ends with it

    def _begin_run(self) -> None:
        """Begin another run of the query in the same driver, with other state stores of Spark's."""
        self.run_id = self.world.new_name("run")
        for executor in self.executors:
            executor.known = {}
        self._run()

    def _run(self) -> None:
        world = self.world
        storage = open_storage(self.path)
        finish_restart(storage)
        # The writer has the program built for what the location has by now.
        self.parallelism = bound_parallelism(storage) or SUBTASKS
        operators = StatefulOperators.of([descriptor_of(self.parallelism)])
        location = StartLocation(storage, world.checkpoints_directory, operators)
        request = None
        if self.restore is not None:
            request = RestoreRequest(
                path=self.restore, claim_mode=self.claim, backend_type="heap", source_ids=(0,)
            )
        query_id = filled(location, request)
        self.query_id = query_id
        self.storage = location.checkpoints(query_id)
        self._fence_others(location, query_id)
        origin = read_origin(self.storage)
        world.know_query(query_id, self.storage.url, origin)
        self.spark.write_source_log()
        epochs = world.scheduler.spawn(self.process, "epochs", self._epochs)
        log = SparkLog(RetryingStorage(storage))
        retrying = RetryingStorage(self.storage)
        files = QueryFiles(
            checkpoint_location=self.path,
            spark_log=log,
            storage=self.storage,
            query_id=query_id,
            query_name=None,
            backend_type="heap",
            operators=operators,
            source_ids=(0,),
        )
        self.files = files.through(retrying)
        self.runner = CheckpointRunner(
            query_id,
            frozenset(Subtask("count", number) for number in range(self.parallelism)),
            retrying,
            world.settings,
            self._gather,
            renew_copies=files.copy_names.renew,
            hold=hold_after(self.runner),
        )
        world.newest[query_id] = self
        if origin is not None and origin.claim_mode is ClaimMode.CLAIM:
            world.note_claimed(origin.path)
            self.runner.listeners.add_own(ClaimedSource(origin))
        self._coordinate(log, epochs)

    def _fence_others(self, location: StartLocation, query_id: str) -> None:
        """Let no driver before this one swap the content under Spark's query, as a start does."""
        if SparkLog(location.storage).begun_epoch() is None:
            return
        with closing(claim_store(location.checkpoints(query_id), self.world.settings, query_id)):
            location.check_unchanged(query_id)

    def _coordinate(self, log: SparkLog, epochs: Actor) -> None:
        """Take checkpoints until Spark's query has ended, then a last one."""
        world, runner = self.world, self.runner
        assert runner is not None
        while True:
            is_last = epochs.is_over
            try:
                taken = runner.take(log.committed_epoch, periodic=False)
            except CheckpointAbortedError as exc:
                world.scheduler.note(f"aborted: {exc.reason}: {exc}")
                if exc.reason is AbortReason.FENCED:
                    raise FencedError("fenced") from exc
            else:
                if not isinstance(taken, Refusal):
                    world.check_completed(self, taken.checkpoint_id, taken.epoch)
            if is_last:
                break
            world.scheduler.sleep(world.chance.randrange(1, 12))
        if self.failure is not None:
            raise self.failure
        runner.close()
        if self.is_restarting and not self.is_stopping:
            self.is_changing = True
            self._change_in_place(runner, log)
            self.is_restarting = self.is_changing = self.is_promoting = False
            self._begin_run()

    def _change_in_place(self, runner: CheckpointRunner, log: SparkLog) -> None:
        """Swap the content of the location as a restart in place does; perhaps put it back.

        The query gets another number of subtasks. What fails is finished and put back, and the
        query runs as before. A promotion takes a savepoint first, and deletes it if it fails.
        """
        world, newest = self.world, runner.newest()
        if not runner.hold.wait(world.settings.timeout_ms / 1000):
            return  # a savepoint takes longer than a restart waits
        if newest is None or newest.epoch != log.committed_epoch():
            return  # its last checkpoint has failed
        if log.begun_epoch() != newest.epoch:
            return  # another driver runs, and has begun an epoch
        metadata = runner.metadata_of(newest.checkpoint_id)
        assert metadata is not None
        source = RestoreSource.of_metadata(newest.path, encode_metadata(metadata))
        request = RestoreRequest(
            path=newest.path, claim_mode=ClaimMode.NO_CLAIM, backend_type="heap", source_ids=(0,)
        )
        storage = open_storage(self.path)
        saved = self.take_savepoint(SavepointFormat.NATIVE) if self.is_promoting else None
        if self.is_promoting and saved is None:
            return  # the query runs as before
        wanted = descriptor_of(self.wanted_parallelism or self.parallelism)
        plan = plan_of(source, StatefulOperators.of([wanted]), request)
        done = None
        try:
            runner.lease.check()
            done = change_in_place(NO_SPARK, storage, plan, runner.lease)
        except FencedError:
            raise
        except FAILURES as exc:
            world.scheduler.note(f"the restart in place fails: {type(exc).__name__}: {exc}")
            done = finish_restart(storage)
            runner.lease.check()  # as before a query starts as it was
        else:
            if world.chance.random() < 0.7:
                world.restarts += not self.is_promoting
                world.promotions += self.is_promoting
                return
        if done is not None:
            put_back(storage, done, runner.lease)
        if saved is not None:
            world.note_claimed(saved)
            with suppress(CkptError, OSError):  # it stays; the library logs that
                dispose_savepoint(saved)

    def _gather(self, epoch: int) -> EpochContents:
        def handles_of(operator_id: int) -> tuple[Handle, ...]:
            self.world.scheduler.point("read the handles")
            numbers = range(self.parallelism)
            if not all(self.spark.has_version(number, epoch + 1) for number in numbers):
                raise OSError(f"Spark's state store has no version {epoch + 1}")  # it is so late
            found = (self.spark.handle(number, epoch + 1) for number in numbers)
            present = [handle for handle in found if handle is not None]
            return checked_handles(self.files, epoch, operator_id, present)

        return gather(self.files, epoch, "4.1.0", handles_of)

    def take_savepoint(self, savepoint_format: SavepointFormat) -> str | None:
        """Take a savepoint as a user's thread does; return its path, ``None`` if it failed."""
        runner = self.runner
        if runner is None or self.storage is None:
            return None
        attempt = SavepointAttempt("savepoint", runner.hold, self.world.settings.timeout_ms)
        storage = self.storage
        taken: list[str] = []

        def take() -> object:
            with attempt.holding():
                epoch = self.files.spark_log.committed_epoch()
                if epoch is None:
                    return None
                new = NewSavepoint(self.files.query_id, self.world.savepoints_directory, "run")
                try:
                    contents = self._gather(epoch)
                    with self.world.held(contents, self):
                        savepoint = new.write(
                            contents, storage, savepoint_format, self._copy_slowly, attempt.check
                        )
                except FAILURES:
                    new.discard()
                    raise
                self.world.check_savepoint(savepoint.path, self.files.query_id, epoch)
                taken.append(savepoint.path)
                return None

        try:
            attempt.run(take)  # type: ignore[arg-type]
        except FAILURES as exc:
            self.world.scheduler.note(f"no savepoint: {type(exc).__name__}: {exc}")
        return taken[0] if taken else None

    def _copy_slowly(self, copies: Sequence[SubtaskCopy]) -> list[Handle]:
        """Copy subtasks as slowly as a large state is copied."""
        handles = []
        for copy in copies:
            self.world.scheduler.sleep(self.world.chance.choice([1, 50, 300]))
            handles += run_copies_here([copy])
        return handles

    # Spark's side

    def _epochs(self) -> None:
        try:
            self._run_epochs()
        except FAILURES as exc:
            self.world.scheduler.note(f"the epochs end: {type(exc).__name__}: {exc}")
            self.failure = exc

    def _run_epochs(self) -> None:
        """Run epochs, one after the other, until the query is stopped or fails."""
        world = self.world
        assert self.query_id is not None
        timeline = world.timelines[self.query_id]
        committed = self.spark.newest("commits")
        begun = self.spark.newest("offsets")
        epoch = 0 if committed is None else committed + 1
        while not self.is_stopping:
            if self.is_restarting and (begun is None or begun < epoch):
                return  # what has begun is finished first, as `LastEpochs.finish_begun` does
            world.scheduler.point("begin an epoch")
            if begun is None or begun < epoch:
                value = world.new_value()
                if not self.spark.write_offsets(epoch, value, self.parallelism):
                    raise_concurrent()
                timeline.begin(epoch, value)
                begun = epoch
            value = self.spark.input_of(epoch)
            if value is None and epoch not in timeline.inputs:
                timeline.begin(epoch, None)
            self._run_tasks(epoch, value)
            world.scheduler.point("commit an epoch")
            if not self.spark.commit(epoch):
                raise_concurrent()
            world.note_committed(self, epoch)
            self.epochs += 1
            epoch += 1
            if world.chance.random() < 0.6:
                world.scheduler.sleep(world.chance.randrange(1, 30))

    def _run_tasks(self, epoch: int, value: int | None) -> None:
        world, parallelism = self.world, self.parallelism
        errors: dict[int, list[BaseException]] = {number: [] for number in range(parallelism)}
        done: set[int] = set()

        def attempt(number: int, executor: Executor) -> None:
            try:
                self._task(executor, number, parallelism, epoch, value)
                done.add(number)
            except FAILURES as exc:
                world.scheduler.note(f"a task failed: {type(exc).__name__}: {exc}")
                errors[number].append(exc)

        def launch(number: int) -> None:
            executor = world.chance.choice(self.executors)
            if world.chance.random() < 0.8:
                executor = self.executors[number % len(self.executors)]
            actor = world.scheduler.spawn(
                executor.process, f"task {epoch}/{number}", lambda: attempt(number, executor)
            )
            launched.append((number, actor))

        launched: list[tuple[int, Actor]] = []
        for number in range(parallelism):
            launch(number)
            if world.chance.random() < world.twins:
                launch(number)
        while len(done) < parallelism:
            world.scheduler.wait(lambda: self._needs_attention(done, launched))
            for number in range(parallelism):
                alive = [each for each, actor in launched if each == number and not actor.is_over]
                if number in done or alive:
                    continue
                if len(errors[number]) >= ATTEMPTS:
                    raise errors[number][-1]
                launch(number)

    def _needs_attention(self, done: set[int], launched: list[tuple[int, Actor]]) -> bool:
        if len(done) == self.parallelism:
            return True
        alive = {number for number, actor in launched if not actor.is_over}
        return any(number not in done and number not in alive for number in range(self.parallelism))

    def _task(
        self, executor: Executor, number: int, parallelism: int, epoch: int, value: int | None
    ) -> None:
        """Run one attempt at a subtask's epoch, with the library's code from copy to barrier.

        In an epoch without input Spark does not call the subtask, and its handle stays.
        """
        world = self.world
        assert self.query_id is not None
        assert self.storage is not None
        world.scheduler.point("begin a task")
        known = executor.known  # of this run, also if the task goes on in the next one
        old = known.get((number, epoch)) or self.spark.handle(number, epoch)
        if old is None and epoch > 0 and not self.spark.has_version(number, epoch):
            raise OSError(f"Spark's state store has no version {epoch}")  # a zombie is so late
        if value is None:
            self.spark.write_version(number, epoch + 1, old)
            if old is not None:
                known[number, epoch + 1] = old
            return
        storage = open_storage(self.storage.url)
        directory = executor.directory / self.query_id / str(number)
        with open_local_copy(directory, "heap", storage, old) as copy:
            handle = old or self._first(number, parallelism, epoch)
            if handle.parallelism != parallelism:
                raise IncompatibleStateError(f"{number} of {handle.parallelism}, not {parallelism}")
            background = executor.uploads.start if world.uploads_in_background else None
            materializer = Materializer(copy, storage, world.settings.materialization, background)
            start = EpochStart(epoch, world.scheduler.now_ms, self.run_id)
            handle = materializer.advance(handle, start)
            state = dict(copy.backend.scan())
            world.check_start(self, handle, epoch, state)
            writes = written(value, keys_of(number, parallelism), state)
            with closing(in_frames(iter(sorted(writes.items())))) as changes:
                segment = make_segment(
                    storage, handle, changes, epoch, world.settings.inline_threshold_bytes
                )
        segments = handle.segments if segment is None else (*handle.segments, segment)
        made = msgspec.structs.replace(handle, epoch=epoch, segments=segments)
        made = following(made, old)
        world.scheduler.point("write the handle")
        known[number, epoch + 1] = made
        known.pop((number, epoch - 3), None)
        self.spark.write_handle(number, epoch + 1, made)
        world.note_handle()

    def _first(self, number: int, parallelism: int, epoch: int) -> Handle:
        assert self.query_id is not None
        first = descriptor_of(parallelism).first_handle(self.query_id, number, epoch)
        return msgspec.structs.replace(first, states=_STATES)


def hold_after(former: CheckpointRunner | None) -> CleaningHold | None:
    """Return the hold of a run, which is that of the driver's run before it."""
    return None if former is None else former.hold


def raise_concurrent() -> None:
    """Raise what Spark raises if another driver has written the same entry of a log."""
    raise OSError("concurrent update to the log: multiple streaming jobs detected")
