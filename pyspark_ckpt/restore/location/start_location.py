"""Prepares the ``checkpointLocation`` that a query starts at: continues, seeds or refuses it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.handles import read_handles
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import (
    CkptError,
    CorruptFileError,
    FencedError,
    IncompatibleStateError,
    PlanError,
    RestoreError,
)
from pyspark_ckpt.formats.handle import newest_initial_time_ms, write_initial_handles
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    PLACES,
    ROLLBACK_MARKER,
    place_path,
    store_note_path,
)
from pyspark_ckpt.formats.location_files import read_place, write_place
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.formats.origin import give_up_claim, read_origin, write_origin
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.descriptor import Runtime
from pyspark_ckpt.operator.plan.initial_state import handles_of, initial_state_of
from pyspark_ckpt.operator.plan.operator import MIN, POLICY
from pyspark_ckpt.operator.plan.parallelism import parallelism_key, set_parallelism
from pyspark_ckpt.restore.location.seedings import (
    begin_seeding,
    is_half_seeded,
    settle_seedings,
)
from pyspark_ckpt.restore.location.sink_path import (
    Continued,
    check_fresh,
    check_path,
    continued_at,
    note_path,
    prepare_path,
)
from pyspark_ckpt.restore.location.swap import finish_restart
from pyspark_ckpt.restore.location.way_back import (
    damaged_location,
    lost_metadata,
    lost_operator,
    query_id_at,
)
from pyspark_ckpt.restore.operators import check_stored_operators, unread_state
from pyspark_ckpt.restore.plan import RestoreRequest, plan_of_request
from pyspark_ckpt.restore.seeding import seed, write_query_id
from pyspark_ckpt.settings import PARALLELISM, ClaimMode, HighAvailability, Settings
from pyspark_ckpt.spark.damage import (
    Damage,
    damaged_file,
    damaged_log,
    damaged_metadata,
    orphaned_checksums,
)
from pyspark_ckpt.spark.jobs import JOB_ERRORS, collected
from pyspark_ckpt.spark.log import Sources, SparkLog
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.spark.sink import FileSinkLog, TableSink
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.claims import Claims
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stores.owner import check_owner, claim_directory, resolved_path
from pyspark_ckpt.stores.place import (
    RUN_AGAIN,
    CheckpointsPlace,
    check_not_behind,
    decide,
    inspect,
    recorded_place,
)

logger = library_logger(__name__)

_UNFINISHED_OFFSETS = re.compile(r"\.{1,2}[0-9]+\.[0-9a-f-]{36}\.tmp(?:\.crc)?")
"""What Spark's file is called until it is whole, and the checksum that Hadoop keeps next to it."""


class StartLocation:
    """The location at which a query is about to start.

    If `checkpoints_directory` is ``None``, the checkpoints lie inside the location.
    `has_store_elsewhere` says whether a store outside of the directory knows which checkpoints are
    complete.
    """

    def __init__(
        self,
        storage: Storage,
        checkpoints_directory: str | None,
        operators: StatefulOperators,
        *,
        has_store_elsewhere: bool = False,
    ) -> None:
        self.storage = storage
        self._has_store_elsewhere = has_store_elsewhere
        self._checkpoints_directory = checkpoints_directory
        self.operators = operators
        self._log = SparkLog(storage)
        self._found_offsets: tuple[str, str] | None = None
        self._found_half_seeded: bool | None = None
        self._place = CheckpointsPlace.of_setting(storage, checkpoints_directory)
        self._place_number: int | None = None
        self._is_place_new = False
        self._noted_late: Continued | None = None

    @classmethod
    def of(
        cls, storage: Storage, settings: Settings, operators: StatefulOperators
    ) -> StartLocation:
        """Return the location of a query with its settings."""
        return cls(
            storage,
            settings.checkpoints_directory,
            operators,
            has_store_elsewhere=settings.high_availability_type != HighAvailability.NONE,
        )

    @property
    def checkpoints_root(self) -> str:
        """The checkpoints directory, without the query's own subdirectory."""
        root = self._place.root
        return self.storage.url_of(CHECKPOINTS_DIRECTORY) if root is None else root.url

    def checkpoints(self, query_id: str) -> Storage:
        """Return the query's checkpoints directory."""
        return self._place.checkpoints(query_id)

    def check_place(self, spark: SparkSession) -> None:
        """Check that the query's checkpoints are where the location has them; writes nothing.

        Reads Spark's state store if nothing shows that the directory is the location's.
        """
        query_id = self._log.query_id()
        if query_id is None:
            self._place_number, self._is_place_new = read_place(self.storage)[0], True
            return
        has_epochs = not self._is_half_seeded and (
            self._log.begun_epoch() is not None or self._committed_epoch is not None
        )
        needed = partial(self._needed_files, spark)
        facts = inspect(self._place, query_id, needed, has_epochs=has_epochs)
        decision = decide(facts)
        if decision.refusal is not None:
            raise RestoreError(decision.refusal)
        self._place_number, self._is_place_new = facts.record_number, decision.is_new
        if decision.is_new and has_epochs and facts.recorded is not None:
            logger.warning(
                "%s: its checkpoints were in %s, which is gone, and are in %s now",
                self.storage.url,
                facts.recorded.url,
                facts.requested.url,
            )

    def _needed_files(self, spark: SparkSession) -> set[str]:
        """Return the files that the state of the newest committed epoch needs."""
        epoch = self._committed_epoch
        if epoch is None:
            return set()
        try:
            return {
                file.path
                for operator_id in self._log.operator_ids()
                if operator_id in self.operators.ours
                for handle in read_handles(spark, self._log, epoch, operator_id, None)
                for file in handle.files()
            }
        except JOB_ERRORS as exc:
            if isinstance(exc, CkptError):
                raise
            checkpoints = self._known_checkpoints()
            raise self._of_state(spark, epoch, checkpoints, Sources(()), exc) from None

    def _record_place(self) -> None:
        """Record where the checkpoints are, unless the location says so; durable on return.

        ``FencedError`` is raised if another driver records another place at the same time.
        """
        if self._place_number is None:  # nobody has looked, because the location is new
            self._place_number, recorded = read_place(RetryingStorage(self.storage))
            self._is_place_new = recorded is None
        if self._is_place_new:
            wanted = self._place.record()
            is_first = write_place(self.storage, self._place_number + 1, wanted)
            if not is_first and read_place(self.storage)[1] != wanted:
                raise self._has_other_place()
            self._place_number += 1
            self._is_place_new = False
        self.storage.make_durable(PLACES)  # its writer may have been killed before

    def _has_other_place(self) -> FencedError:
        return FencedError(
            f"{self.storage.url}: another driver has started the query with another "
            "spark.ckpt.execution.checkpointing.dir while this one was starting. Run a query once "
            "at a time: let that driver run it, or start it again"
        )

    def check_owner(self) -> None:
        """Check that what copies of this location would share belongs to it; writes nothing.

        That is a checkpoints directory elsewhere, or a store of completed checkpoints elsewhere.
        Both are found by the query's id, which a copy has, too.

        ``RestoreError`` is raised also if the checkpoints are of epochs that this location lacks.
        """
        query_id = self._log.query_id()
        if query_id is None or not self._would_be_shared(query_id):
            return
        checkpoints = self.checkpoints(query_id)
        check_owner(self.storage, checkpoints)
        if self._checkpoints_directory is not None:
            check_not_behind(self.storage, self._committed_epoch, checkpoints)

    def _would_be_shared(self, query_id: str) -> bool:
        """Return whether copies of this location would share checkpoints, or their store."""
        if self._checkpoints_directory is not None or self._has_store_elsewhere:
            return True
        notes = Claims(RetryingStorage(self.checkpoints(query_id)), store_note_path)
        return notes.newest() > 0

    def check_not_emptied(self) -> None:
        """Check that a location has kept an epoch; writes nothing.

        Without an epoch, Spark would begin at epoch 0 without state, below the epochs of the
        checkpoints inside.

        The first two epochs may be missing, because a power loss may have taken them; they run
        again.
        """
        if self._is_half_seeded:
            return
        query_id, begun = self._log.query_id(), self._log.begun_epoch()
        newest = begun if begun is not None else self._log.committed_epoch()
        if query_id is not None and newest is None and self._checkpoints_directory is None:
            check_not_behind(self.storage, None, self.checkpoints(query_id), RUN_AGAIN)

    def check_metadata(self) -> None:
        """Check that Spark's file with the id of the location's query is there and whole.

        With another id, sinks would take its epochs for those of another query, and the query
        would replace the checkpoints inside, or not find those outside.
        """
        if self._is_half_seeded:
            return
        damage = damaged_metadata(self._log)
        if damage is None and self._log.query_id() is None:
            damage = lost_metadata(self.storage)
        self._refuse(damage)

    def check_logs(self, sources: Sources) -> None:
        """Check the logs that Spark reads before it begins an epoch; nothing was started."""
        if not self._is_half_seeded:
            self._refuse(damaged_log(self._log, sources))

    def clear_orphaned_checksums(self) -> None:
        """Delete the checksums of files that are gone and that Spark is about to write.

        Somebody has deleted the files by hand, for example to let an epoch run again. Spark could
        not write them, and would say that another query uses the location.
        """
        self.storage.delete(orphaned_checksums(self._log, self._log.operator_ids()))

    def _refuse(self, damage: Damage | None) -> None:
        if damage is not None:
            raise damaged_location(self.storage, self._known_checkpoints(), damage)

    def _known_checkpoints(self) -> Storage | None:
        """Return the query's checkpoints directory, also if Spark's file with its id is lost."""
        try:
            place = recorded_place(self.storage) or self._place
            query_id = query_id_at(self.storage, place.root)
        except (CkptError, OSError):
            return None
        return None if query_id is None else place.checkpoints(query_id)

    def claim_directory(self) -> None:
        """Make the location the owner of what copies of it would share, if it has a query.

        The location records where it is.

        ``FencedError`` is raised if another driver starts the query with another directory at the
        same time.
        """
        query_id = self._log.query_id()
        if query_id is None:
            return
        if self._would_be_shared(query_id):
            claim_directory(self.storage, self.checkpoints(query_id))
        self._record_place()

    def check_parallelism(self, spark: SparkSession, option: int | None = None) -> None:
        """Check that the query's parallelism is that of the session and of the location.

        The parameters and errors are those of
        :func:`~pyspark_ckpt.restore.location.start_location.check_parallelism`.
        """
        check_parallelism(self.storage, self.operators, spark, option)

    def check_watermark_policy(self, spark: SparkSession) -> None:
        """Check that Spark uses the watermark policy for which the operators were built.

        Called when the location is filled. With the policy ``max`` every row would be late.

        The policy of the session counts only if no epoch has begun in the location.
        """
        passing = [each.uid for each in self.operators.descriptors if each.passes_watermark]
        begun = self._log.begun_epoch()
        stored = None if begun is None else self._log.offsets_entry(begun).watermark_policy
        policy = stored or str(spark.conf.get(POLICY, MIN)).lower()
        if passing and policy != MIN:
            raise PlanError(
                f"operator {passing[0]!r} was built with {POLICY}={MIN}, the query would run with "
                f"{policy} at {self.storage.url}: set it to {policy} and build the query again"
            )

    def check_states(self, spark: SparkSession, sources: Sources) -> None:
        """Check that the states of the last committed epoch fit what the processors ask for.

        Reads Spark's state store if there is a committed epoch.
        """
        epoch, query_id = self._committed_epoch, self._log.query_id()
        if epoch is None or query_id is None:
            return
        checkpoints = self.checkpoints(query_id)
        try:
            check_stored_operators(spark, self._log, epoch, self.operators, checkpoints)
        except IncompatibleStateError:
            self._refuse(lost_operator(self.storage, checkpoints))
            raise
        except (CorruptFileError, *JOB_ERRORS) as exc:
            if isinstance(exc, CkptError) and not isinstance(exc, CorruptFileError):
                raise  # some are PySpark's errors too
            raise self._of_state(spark, epoch, checkpoints, sources, exc) from None

    def _of_state(
        self,
        spark: SparkSession,
        epoch: int,
        checkpoints: Storage | None,
        sources: Sources,
        error: Exception,
    ) -> Exception:
        """Return the error of a file for which the state cannot be read, else the one that came."""
        parallelisms = self.operators.parallelisms
        found = damaged_file(self._log, sources, parallelisms)
        if found is None and isinstance(error, CorruptFileError):
            return damaged_location(self.storage, checkpoints, str(error))
        found = found or unread_state(spark, self._log, epoch, parallelisms)
        return error if found is None else damaged_location(self.storage, checkpoints, found)

    def check_not_half_rolled_back(self) -> None:
        """Check that no rollback was interrupted in the location; finish a restart in place."""
        finish_restart(self.storage)
        settle_seedings(self.storage)
        self._found_half_seeded = None
        if self.storage.exists(ROLLBACK_MARKER):
            raise RestoreError(
                f"{self.storage.url}: a rollback of this location was interrupted; call "
                "pyspark_ckpt.rollback again, which finishes it"
            )
        self.note_content()

    def note_content(self) -> None:
        """Note the newest offsets, by which :meth:`check_not_swapped` knows the content again.

        Nobody replaces the offsets of an epoch but a swap, and a drain that this start
        finishes, after which it notes them again.
        """
        begun = None if self._is_half_seeded else self._log.begun_epoch()
        if begun is None:
            self._found_offsets = None
            return
        path = f"offsets/{begun}"
        self._found_offsets = path, self.storage.fingerprint(path)

    def check_not_swapped(self, query_id: str | None = None) -> None:
        """Check that no driver has swapped the content since it was found whole.

        After this driver has fenced those before it, none of them begins a swap. What one of
        them began before is seen here.

        `query_id` is the id of the query that is about to begin, because a restore by another
        driver changes the id. ``FencedError`` is raised if another driver swaps or fills the
        location, or has done so.
        """
        if query_id is not None and (
            is_half_seeded(self.storage) or self._log.query_id() != query_id
        ):
            raise FencedError(
                f"{self.storage.url}: another driver has restored a query into this location while "
                "this one was starting. Run a query once at a time: let that driver run it, or "
                "start it again"
            )
        if self._place_number is not None and self.storage.exists(
            place_path(self._place_number + 1)
        ):
            raise self._has_other_place()
        swapped = self.storage.exists(ROLLBACK_MARKER)
        if not swapped and self._found_offsets is not None:
            path, found = self._found_offsets
            try:
                swapped = self.storage.fingerprint(path) != found
            except FileNotFoundError:
                swapped = True
        if swapped:
            raise FencedError(
                f"{self.storage.url}: another driver has restarted the query in place, or rolled "
                "it back, while this one was starting. Run a query once at a time: let that driver "
                "run it, or start it again"
            )

    def check_not_half_seeded(self) -> None:
        """Check that each restore into the location has ended."""
        if self._is_half_seeded:
            raise RestoreError(
                f"{self.storage.url}: a restore into this location has not ended. If no driver is "
                "doing it, start the query with restoreFrom again; to begin without it, give a "
                "fresh checkpointLocation"
            )

    def clear_interrupted_offsets(self) -> None:
        """Delete what a driver left that ended while it wrote the first epoch's offsets.

        Spark 4.3 begins its first epoch only in a location without any file of an epoch. Its own
        temporary files count, so that such a location could never start again. They say nothing:
        Spark gives a file its name once it is whole.
        """
        if self._log.begun_epoch() is None:
            names = filter(_UNFINISHED_OFFSETS.fullmatch, self.storage.list("offsets"))
            self.storage.delete(f"offsets/{name}" for name in names)

    def restore(
        self,
        spark: SparkSession,
        request: RestoreRequest,
        file_sink: FileSinkLog | None,
        table: TableSink | None = None,
    ) -> None:
        """Seed the location from a checkpoint or savepoint, unless it has committed epochs.

        A new table is created after all checks, because the sink's log lies in its directory.

        ``FencedError`` is raised if another driver fills the location, or has filled it.
        """
        if self._committed_epoch is not None:
            query_id = self._log.query_id()
            assert query_id is not None  # check_not_emptied has refused it
            note_not_restored(self.storage, self.checkpoints(query_id), request)
            return
        plan = plan_of_request(request, self.operators)
        plan.check()
        self._check_outside(plan.path)
        logger.info("%s", plan)
        if file_sink is not None:
            check_fresh(file_sink, plan.epoch, self.storage)
        seeding = begin_seeding(self.storage)
        try:
            seeding.clear(self._checkpoints_directory)
            if table is not None:
                table.make()
            query_id = seeding.name_query()
            self.claim_directory()
            checkpoints = self.checkpoints(query_id)
            location = FencedStorage(self.storage, seeding)
            seed(spark, location, checkpoints, query_id, plan)
            write_origin(FencedStorage(checkpoints, seeding), plan.origin)
        except (OSError, CkptError):
            seeding.check()  # a driver that has taken it over removes what this one needs
            raise
        seeding.end()
        self._found_half_seeded = False
        logger.info(
            "seeded %s from %s, which query %s no longer needs: it has all files itself",
            self.storage.url,
            plan.path,
            query_id,
        )

    def _check_outside(self, path: str) -> None:
        """Refuse a source in the location, which the restore clears if one before it has begun."""
        directory = resolved_path(open_storage(path))
        if f"{directory}/".startswith(f"{resolved_path(self.storage)}/"):
            raise RestoreError(
                f"{path} is inside the location {self.storage.url}, which a restore clears and "
                "fills: move it elsewhere, or give the query a fresh checkpointLocation"
            )

    def make_initial_states(self, runtime_of: Callable[[str], Runtime]) -> FileReference | None:
        """Make the operators' initial states, unless an epoch is committed; durable on return.

        Until epoch 0 is committed, each start makes them anew, as Spark does. The processor sees
        one processing time in all starts after epoch 0 has begun.

        The result has the handles that epoch 0 starts from, or is ``None`` if epoch 0 starts empty
        or is committed. ``RestoreError`` means that epoch 0 began with an initial state and the
        query is built without one now, or that a restore has not ended. ``FencedError`` is raised
        if another driver fills the location, or has filled it.
        """
        all_states = [initial_state_of(operator) for operator in self.operators.descriptors]
        states = [state for state in all_states if state is not None]
        if self._committed_epoch is not None:
            if states:
                logger.info("%s has committed epochs: no initial state is made", self.storage.url)
            return None
        if not states:
            self.check_not_half_seeded()
            self._check_began_without_initial_state()
            return None
        self.check_not_half_seeded()  # a restore is not for an initial state to replace
        query_id = self.make_query_id()
        runtime, checkpoints = runtime_of(query_id), self.checkpoints(query_id)
        time_ms = self._initial_time_ms(checkpoints) or now_ms()
        handles = []
        for state in states:
            what = f"initial state of query {query_id}"
            handles += handles_of(collected(state.job(runtime, time_ms), what))
        return write_initial_handles(checkpoints, handles, time_ms)

    def _initial_time_ms(self, checkpoints: Storage) -> int | None:
        """Return the time of the initial states that an epoch 0 in the location began with."""
        begun = self._log.begun_epoch()
        return None if begun is None else newest_initial_time_ms(checkpoints)

    def _check_began_without_initial_state(self) -> None:
        query_id = self._log.query_id()
        if query_id is not None and self._initial_time_ms(self.checkpoints(query_id)) is not None:
            raise RestoreError(
                f"{self.storage.url}: epoch 0 began with an initialState and is not committed; "
                "build the query with initialState again, or give it a fresh checkpointLocation"
            )

    def make_query_id(self) -> str:
        """Return the id of the query, durable in the location; a fresh location gets one.

        Spark would choose it while the query starts, which is too late for the tasks' settings.
        """
        query_id = self._log.query_id()
        if query_id is None:
            with suppress(FileExistsError):  # another driver starts here at the same time
                write_query_id(self.storage)
            query_id = self._log.query_id()
            assert query_id is not None  # it was just written
            self.claim_directory()
        return query_id

    def check_sink(self, file_sink: FileSinkLog | None) -> None:
        """Check that the query may write to the path of its file sink; writes nothing.

        A query that is about to be restored has its own check (:meth:`restore`). The errors are
        those of :func:`~pyspark_ckpt.restore.location.sink_path.check_path`.
        """
        if file_sink is not None and not self._is_half_seeded:
            query_id = self._log.query_id()
            checkpoints = None if query_id is None else self.checkpoints(query_id)
            check_path(self.storage, checkpoints, file_sink)

    def prepare_sink(self, file_sink: FileSinkLog | None, table: TableSink | None = None) -> None:
        """Claim and fill the path of the file sink, and note where the query's epochs go.

        The errors are those of :func:`~pyspark_ckpt.restore.location.sink_path.prepare_path`.
        """
        self._noted_late = None
        if file_sink is not None:
            query_id = self.make_query_id()
            prepare_path(self.storage, self.checkpoints(query_id), file_sink, table)
            return
        query = continued_at(self.storage, None)
        if query.used or query.begun >= 0:
            note_path(self.storage, query, None)
        else:
            self._noted_late = query

    def note_sink(self) -> None:
        """Note that the first epochs go to another sink than a file sink, once they may begin.

        A start that Spark refuses leaves a fresh location fresh.
        """
        if self._noted_late is not None:
            query = replace(self._noted_late, query_id=self._log.query_id())
            note_path(self.storage, query, None)

    @property
    def _is_half_seeded(self) -> bool:
        """As this start found it. A driver that fills the location looks again first."""
        if self._found_half_seeded is None:
            self._found_half_seeded = is_half_seeded(self.storage)
        return self._found_half_seeded

    @property
    def _committed_epoch(self) -> int | None:
        """The epoch to continue from; a half seeded location has none."""
        return None if self._is_half_seeded else self._log.committed_epoch()


def note_not_restored(location: Storage, checkpoints: Storage, request: RestoreRequest) -> None:
    """Log that a path is ignored; as a warning, unless the location was restored from it.

    A claim is given up, durably, if this start names the same path with ``NO_CLAIM``. The driver
    that claimed it may have died before the query had a checkpoint.
    """
    path, origin = request.path, read_origin(checkpoints)
    if origin is not None and _is_or_replaces(origin, path):
        logger.info("%s has committed epochs: not restored from %s", location.url, path)
        _compare_claims(checkpoints, origin, request.claim_mode)
        return
    before = "was never restored" if origin is None else f"was restored from {origin.path}"
    logger.warning(
        "restoreFrom(%r) is ignored: %s has committed epochs, which the query continues (it "
        "%s); to start from that path, give a fresh checkpointLocation or call "
        "pyspark_ckpt.rollback",
        path,
        location.url,
        before,
    )


def _compare_claims(checkpoints: Storage, origin: Origin, claim_mode: ClaimMode) -> None:
    if claim_mode is origin.claim_mode:
        return
    if origin.claim_mode is ClaimMode.CLAIM:
        give_up_claim(checkpoints)
    logger.warning(
        "%s is not deleted: the query was restored from it with %s, and this start gives %s. "
        "Dispose of it yourself if nobody needs it",
        origin.path,
        origin.claim_mode,
        claim_mode,
    )


def _is_or_replaces(origin: Origin, path: str) -> bool:
    """Return whether a location was restored from a path, or by fallback from one before it."""
    url = open_storage(path).url
    if origin.path == url:
        return True
    return bool(origin.skipped) and open_storage(path).parent().url == (
        open_storage(origin.path).parent().url
    )


def bound_parallelism(location: Storage) -> int | None:
    """Return the parallelism of Spark's next epoch, ``None`` in a fresh location.

    Spark takes it from the newest offsets, also of an epoch that was never committed.
    """
    begun = _begun_epoch(location)
    return None if begun is None else _parallelism_of(location, begun)


def check_parallelism(
    location: Storage,
    operators: StatefulOperators,
    spark: SparkSession,
    option: int | None = None,
) -> None:
    """Check that the query's parallelism is that of the session and of the location.

    `option` is the writer's option, which has no effect on a query that is built. PlanError is also
    raised if Spark has distributed the state to another number of partitions by itself.
    """
    begun, bound = _begun_epoch(location), None
    if begun is not None:
        bound = _parallelism_of(location, begun)
        _check_not_repartitioned(location, begun, bound)
    key = parallelism_key(spark)
    session = option or set_parallelism(spark)
    if session is None:  # the number of cores may have changed
        session = operators.descriptors[0].parallelism
    for operator in operators.descriptors:
        if operator.parallelism != session:
            if option is not None:
                by = "by default" if set_parallelism(spark) is None else key
                raise PlanError(
                    f"operator {operator.uid!r} was built with parallelism {operator.parallelism} "
                    f"({by}): the writer's option {PARALLELISM} = {option} comes too late. Set it "
                    "in the session before key_by"
                )
            raise PlanError(
                f"operator {operator.uid!r} was built with {key} = {operator.parallelism}, it "
                f"is {session} now: set it in the session and build the query again"
            )
        if bound is not None and operator.parallelism != bound:
            raise PlanError(
                f"operator {operator.uid!r} has parallelism {operator.parallelism} ({key}), "
                f"Spark bound the location {location.url} to {bound} with its first "
                f"epoch: set {key} to {bound} before building the query, or "
                f"{_way_to_another_parallelism(location)}"
            )


def _check_not_repartitioned(location: Storage, begun: int, now: int | None) -> None:
    """Refuse state that Spark distributed to another number of partitions by itself.

    Spark moves the rows of its state store by their hash. The handles in them are of subtasks of
    the old parallelism.
    """
    before = SparkLog(location).parallelism_before(begun)
    if before is not None and before != now:
        raise PlanError(
            f"{location.url}: epoch {begun} is a repartitioning of Spark's state from "
            f"{before} to {now} partitions, which does not move the state of this library. To "
            f"change the parallelism, {_way_to_another_parallelism(location)}"
        )


def _way_to_another_parallelism(location: Storage) -> str:
    if SparkLog(location).committed_epoch() is None:
        return "start it at a fresh checkpointLocation (no epoch is committed here)"
    return (
        "start it at a fresh checkpointLocation with restoreFrom(the newest savepoint or "
        "chk-N of this query), which moves the state to the new parallelism"
    )


def _parallelism_of(location: Storage, epoch: int) -> int | None:
    return SparkLog(location).offsets_entry(epoch).parallelism


def _begun_epoch(location: Storage) -> int | None:
    return None if is_half_seeded(location) else SparkLog(location).begun_epoch()
