"""One start of a query: check its location, restore, start Spark and the coordinator."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.query_runner import runner_of
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.formats.layout import ROLLBACK_MARKER
from pyspark_ckpt.formats.location_files import read_rolled_back
from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.origin import RestoredFrom, read_origin
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.metrics.reporters import check_reporters
from pyspark_ckpt.operator.capture.orders import CaptureFiles
from pyspark_ckpt.operator.descriptor import (
    Captures,
    Drain,
    OnError,
    QuarantineLimits,
    Runtime,
    encode_runtime,
)
from pyspark_ckpt.operator.plan.operator import MIN, POLICY
from pyspark_ckpt.operator.plan.parallelism import (
    parallelism_key,
    report_parallelism,
    set_parallelism,
)
from pyspark_ckpt.operator.plan.streaming_row import plan_error
from pyspark_ckpt.operator.quarantine.releases import BEFORE_ALL, Release, ReleaseFiles
from pyspark_ckpt.query.attaching import (
    StartedQuery,
    check_name,
    check_no_copy_runs,
    former_run,
    remember,
)
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.query import CheckpointedQuery, Restarter
from pyspark_ckpt.query.stopping.drain import LastEpochs
from pyspark_ckpt.query.stopping.failure import library_errors
from pyspark_ckpt.restarting.turn import end_former_runs, note_run, turn_of
from pyspark_ckpt.restore.claim import ClaimedSource, check_claim_at_temporary
from pyspark_ckpt.restore.location.decision import (
    Continue,
    Finish,
    Fresh,
    Half,
    Refuse,
    decide,
    needs_states,
)
from pyspark_ckpt.restore.location.facts import (
    Draining,
    Swapping,
    Wanted,
    inspect,
    with_states,
)
from pyspark_ckpt.restore.location.sink_path import Continued
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.restore.location.swap import finish_restart
from pyspark_ckpt.restore.location.way_back import readable_query_id
from pyspark_ckpt.restore.plan import RestoreMigrations, RestorePlan, RestoreRequest, plan_of
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import HAND_OVER, RUNTIME_KEY, ClaimMode, HandOver, Settings
from pyspark_ckpt.spark.callback_thread import end_callback_thread
from pyspark_ckpt.spark.log import Sources, SparkLog
from pyspark_ckpt.spark.own_session import (
    conf_of_start,
    in_another_thread,
    not_stopped,
    start_in_session,
    start_with_conf,
)
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.plan import given_names, names_sources, source_ids, source_names
from pyspark_ckpt.spark.session import reading_session
from pyspark_ckpt.spark.sink import FileSinkLog, TableSink
from pyspark_ckpt.spark.state_reader import check_state_can_be_read
from pyspark_ckpt.spark.temporary_location import FORCED, delete_when_ended
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.open import claim_store

logger = library_logger(__name__)


@dataclass(frozen=True, slots=True)
class StartOfSpark:
    """How Spark's own query is started.

    `start` uses the trigger that the writer was given, and `start_once` runs one epoch only, into
    the same sink. `ends_by_itself` holds for the trigger of `start`. `session` is the query's
    session over Spark Connect, ``None`` if the query starts in the user's session.
    """

    start: Callable[[], StreamingQuery]
    start_once: Callable[[], StreamingQuery]
    ends_by_itself: bool
    location_is_temporary: bool
    announces_epochs: bool
    session: SparkSession | None = None
    name: str | None = None


class QueryStart:
    """Starts one query at its location."""

    def __init__(
        self,
        stream: DataFrame,
        settings: Settings,
        migrations: RestoreMigrations,
        location: StartLocation,
        sink_log: FileSinkLog | None,
        table: TableSink | None,
        spark_query: StartOfSpark,
        restarter: Restarter | None = None,
    ) -> None:
        self._stream = stream
        self._spark: SparkSession = stream.sparkSession
        self._settings = settings
        self._migrations = migrations
        self._location = location
        self._sink_log = sink_log
        self._table = table
        self._spark_query = spark_query
        self._restarter = restarter
        self._continued: CheckpointedQuery | None = None
        self._initial_handles: FileReference | None = None
        self._continues = False
        self._noted_late: Continued | None = None
        self._last_epochs = LastEpochs(SparkLog(location.storage), self._run_one_epoch)

    @property
    def spark(self) -> SparkSession:
        """The session that the query is started from."""
        return self._spark

    @property
    def session(self) -> SparkSession | None:
        """The query's own session over Spark Connect."""
        return self._spark_query.session

    @property
    def location(self) -> StartLocation:
        """The query's location, with its operators."""
        return self._location

    @property
    def location_is_temporary(self) -> bool:
        """Whether the location is deleted when the query ends."""
        return self._spark_query.location_is_temporary

    @property
    def timeout_ms(self) -> int:
        """How long a step of a checkpoint may take, in milliseconds."""
        return self._settings.timeout_ms

    def plan_from(self, path: str, metadata: CheckpointMetadata) -> RestorePlan:
        """Return what becomes of the state of a checkpoint of the same location, stored or not."""
        request = replace(
            restore_request(self._stream, self._settings, path, self._migrations),
            claim_mode=ClaimMode.NO_CLAIM,
            spark=None,  # no epoch is void
        )
        source = RestoreSource.of_metadata(path, encode_metadata(metadata))
        return plan_of(source, self._location.operators, request)

    def run(self, continued: CheckpointedQuery | None = None) -> CheckpointedQuery:
        """Start the query; on an error nothing was started or deleted.

        `continued` is the query of the last run at this location, and becomes this run.
        """
        self._continued = continued
        end_former_runs(self._location.storage)
        with self.alone():
            return self._run()

    def alone(self) -> AbstractContextManager[object]:
        """Return a context in which nothing else of this process starts at the location."""
        return turn_of(self._location.storage.url)

    def fill(self) -> None:
        """Fill the fresh location from what the query is restored from; start nothing."""
        end_former_runs(self._location.storage)
        with self.alone():
            # The shadow gets the epochs of the original, so it lacks no input.
            wanted = self._wanted(looks_for_input=False)
            self._fill(self._decide(wanted), wanted)

    def run_due_epoch(self) -> None:
        """Run the epoch whose offsets are written at the location and not committed."""
        self._run_one_epoch(None)

    def runner(self) -> CheckpointRunner:
        """Return a runner that checkpoints the location, for epochs of :meth:`run_due_epoch`."""
        files = self._files_of(self._location.make_query_id(), None)
        spark = reading_session(self._spark)
        return runner_of(spark, files, RetryingStorage(files.storage), self._settings)

    def _run(self) -> CheckpointedQuery:
        self._check_request()
        wanted = self._wanted()
        decision = self._decide(wanted)
        operators = self._location.operators.descriptors
        report_parallelism(self._spark, operators[0].parallelism)
        self._report_hand_over()
        self._fill(decision, wanted)
        self._continues = isinstance(decision, Continue) or decision.plan is not None
        self._release_quarantined_keys()
        if not self.location_is_temporary:  # which no file sink has
            self._noted_late = self._location.prepare_sink(self._sink_log, self._table)
        origin = self._read_origin()  # before Spark's query begins
        query_id = self._location.make_query_id()
        self._fence_others(query_id)
        query = self._start_spark(
            self._spark_query.start,
            self._runtime(query_id),
            ends_by_itself=self._spark_query.ends_by_itself,
        )
        return self._with_coordinator(query, origin)

    def _check_request(self) -> None:
        """Refuse settings that no location takes, and a query that this process runs already."""
        storage = self._location.storage
        known_id = readable_query_id(storage)
        check_name(self._spark, self._spark_query.name, known_id)
        if self._continued is None:
            check_no_copy_runs(storage, known_id)
        self._check_storages()
        check_reporters(self._settings)
        self._check_hand_over()

    def _decide(self, wanted: Wanted) -> Fresh | Continue:
        """Look at the location until nothing is half done there; raise what refuses the start."""
        location = self._location
        while True:
            facts = inspect(location.storage, wanted, self._last_epochs.found(), self._spark)
            decision = decide(facts, wanted)
            if needs_states(decision, facts):
                facts = with_states(location.storage, wanted, facts, self._spark)
                decision = decide(facts, wanted)
            if isinstance(decision, Refuse):
                if facts.swapping is Swapping.NONE and location.storage.exists(ROLLBACK_MARKER):
                    continue  # a swap has begun since the look, so look again
                raise decision.error
            location.rely_on(facts, records_place=decision.records_place)
            if not isinstance(decision, Finish):
                break
            self._finish(decision.what)
        place = facts.place
        is_moved = decision.records_place and facts.has_epochs
        if is_moved and place is not None and place.recorded is not None:
            logger.warning(
                "%s: its checkpoints were in %s, which is gone, and are in %s now",
                facts.location,
                place.recorded.url,
                place.requested.url,
            )
        return decision

    def _wanted(self, *, looks_for_input: bool = True) -> Wanted:
        settings, restore = self._settings, None
        if settings.restore_path is not None:
            restore = restore_request(
                self._stream, settings, settings.restore_path, self._migrations
            )
            if not looks_for_input:
                restore = replace(restore, spark=None)
        return Wanted(
            self._location.operators,
            self._location.place,
            has_store_elsewhere=self._location.has_store_elsewhere,
            sources=self._sources,
            sink=self._sink_log,
            restore=restore,
            option=settings.parallelism,
            set_parallelism=set_parallelism(self._spark),
            parallelism_key=parallelism_key(self._spark),
            policy=str(self._spark.conf.get(POLICY, MIN)).lower(),
        )

    def _finish(self, half: Half) -> None:
        """Do the rest of what was begun at the location."""
        location = self._location
        if half is Half.RESTART:
            finish_restart(location.storage)
            return
        # The driver that drains may still run, and leaves the drain to this one.
        location.claim()
        if half is Half.END_OF_DRAIN:
            with self._newest_driver(location.make_query_id()):
                self._last_epochs.finish_last_step()
            return
        location.clear_leftovers()
        location.prepare_sink(self._sink_log, self._table)
        with self._newest_driver(location.make_query_id()) as driver:
            self._last_epochs.finish_interrupted(driver)

    def _fill(self, decision: Fresh | Continue, wanted: Wanted) -> None:
        """Make the location what Spark's first epoch of this run needs; durable on return."""
        location = self._location
        location.claim()
        location.clear_leftovers()
        if isinstance(decision, Continue):
            if wanted.restore is not None:
                location.note_not_restored(wanted.restore)
            elif any(each.initial_state for each in location.operators.descriptors):
                url = location.storage.url
                logger.info("%s has committed epochs: no initial state is made", url)
        elif decision.plan is None:
            self._initial_handles = location.make_initial_states(self._runtime)
        else:
            location.restore(self._spark, decision.plan, self._table)
            operators = location.operators.descriptors
            if any(operator.on_error is OnError.QUARANTINE for operator in operators):
                storage = location.checkpoints(location.make_query_id())
                ReleaseFiles(storage).arm(BEFORE_ALL)  # keys of the snapshot may be quarantined

    def _check_hand_over(self) -> None:
        """Refuse a hand-over of rows that the writer's option cannot change any more."""
        value, source = self._settings.given.get(HAND_OVER, ("", ""))
        for operator in self._location.operators.descriptors:
            is_other = self._settings.hand_over not in (HandOver.AUTO, operator.hand_over)
            if source == "option" and is_other:
                raise PlanError(
                    f"operator {operator.uid!r} was built with its rows handed over as "
                    f"{operator.hand_over}: the writer's option {HAND_OVER} = {value} comes too "
                    "late. Set it in the session before key_by"
                )

    def _report_hand_over(self) -> None:
        """Log how rows are handed over to each operator, and why."""
        is_auto = self._settings.hand_over is HandOver.AUTO
        for operator in self._location.operators.descriptors:
            is_slower = is_auto and operator.hand_over is HandOver.PACKED
            logger.log(
                logging.WARNING if is_slower else logging.INFO,
                "operator %r: rows are handed over as %s: %s",
                operator.uid,
                operator.hand_over,
                operator.why_hand_over,
            )

    @cached_property
    def _sources(self) -> Sources:
        return Sources(source_ids(self._stream), given_names(self._stream))

    def _fence_others(self, query_id: str) -> None:
        """Let no driver before this one swap the location's content under Spark's query.

        What one of them has begun shows after the claim: each writes its marker before it looks for
        a newer driver. A start that Spark refuses, because the query runs in this application,
        fences nobody. Its run takes turns with this start (:meth:`alone`).
        """
        location = self._location
        has_begun = SparkLog(location.storage).begun_epoch() is not None
        others_may = has_begun and self._continued is None
        if others_may and not session_of(self._spark).is_active(query_id):
            with self._newest_driver(query_id) as driver:
                location.check_unchanged(query_id)
                if self._last_epochs.found() is not Draining.NONE:
                    self._last_epochs.finish_interrupted(driver)
                    location.look_again()
        location.check_unchanged(query_id)

    @contextmanager
    def _newest_driver(self, query_id: str) -> Iterator[CompletedCheckpointStore]:
        """Fence the drivers before this one; what it yields checks that none came after it."""
        checkpoints = RetryingStorage(self._location.checkpoints(query_id))
        with closing(claim_store(checkpoints, self._settings, query_id)) as store:
            yield store

    def _check_storages(self) -> None:
        """Refuse directories in which two drivers could write one file, or Spark reads no state."""
        check_state_can_be_read(self._location.storage.hadoop_url)
        self._location.storage.check_usable()
        settings = self._settings
        if self.location_is_temporary:
            check_claim_at_temporary(settings)
        for directory in (settings.checkpoints_directory, settings.savepoints_directory):
            if directory is not None:
                open_storage(directory).check_usable()

    def _release_quarantined_keys(self) -> None:
        """Request that the first epoch releases all quarantined keys, if the settings say so."""
        if not self._settings.releases_at_start:
            return
        files = ReleaseFiles(self._location.checkpoints(self._location.make_query_id()))
        for operator in self._location.operators.descriptors:
            if operator.on_error is OnError.QUARANTINE and files.is_armed:
                files.request(Release(uid=operator.uid))

    def _run_one_epoch(self, drain: Drain | None) -> None:
        """Run only the epoch that is due at the location, into the same sink."""
        runtime = self._runtime(self._location.make_query_id(), drain)
        query = self._start_spark(self._spark_query.start_once, runtime, ends_by_itself=True)
        run_id = query.runId
        try:
            with library_errors(self._files_of(query.id, query.name)):
                query.awaitTermination()
        except BaseException:
            in_another_thread(query.stop, not_stopped(self._location.storage.url))
            raise
        finally:
            end_callback_thread(run_id)

    def _runtime(self, query_id: str, drain: Drain | None = None) -> Runtime:
        """Return what the tasks of one run of Spark's query need to know."""
        settings = self._settings
        return Runtime(
            query_id=query_id,
            run=secrets.token_hex(8),
            checkpoint_location=self._location.storage.url,
            announces_epochs=self._spark_query.announces_epochs,
            rolled_back=read_rolled_back(self._location.storage),
            checkpoints_directory=self._location.checkpoints_root,
            query_subdirectory=settings.checkpoints_directory is not None,
            backend_type=settings.backend_type,
            inline_threshold_bytes=settings.inline_threshold_bytes,
            memory_limit_bytes=settings.memory_limit_bytes,
            materialization=settings.materialization,
            drain=drain,
            initial_handles=self._initial_handles,
            measures_backend=bool(settings.metrics_reporters),
            quarantine=QuarantineLimits(
                settings.quarantine_keys,
                settings.quarantine_rows_per_key,
                settings.quarantine_bytes_per_key,
            ),
            captures=self._captures(query_id),
        )

    def _captures(self, query_id: str) -> Captures:
        """Return what is captured in this run, until the query is asked for more."""
        settings = self._settings
        checkpoints = RetryingStorage(self._location.checkpoints(query_id))
        return Captures(
            orders=CaptureFiles(checkpoints).orders(),
            on_failure=settings.captures_failures,
            limit_bytes=settings.capture_limit_bytes,
            run_started_ms=now_ms(),
        )

    def _start_spark(
        self, start: Callable[[], StreamingQuery], runtime: Runtime, *, ends_by_itself: bool
    ) -> StreamingQuery:
        """Start Spark's query with the settings in its own session's conf."""
        operators = self._location.operators
        conf = conf_of_start(
            operators.descriptors,
            ends_by_itself=ends_by_itself,
            one_watermark=operators.have_one_watermark,
            passed_watermarks=operators.each_has_its_watermark,
            follows_aggregation=operators.follows_aggregation,
        )
        conf[RUNTIME_KEY] = encode_runtime(runtime)
        try:
            session = self._spark_query.session
            if session is not None:
                return start_in_session(session, conf, start)
            return start_with_conf(self._spark, self._location.storage, conf, start)
        except AnalysisException as exc:
            error = plan_error(exc)
            if error is None:
                raise
            raise error from None  # the message of Spark's error contains the whole plan

    def _read_origin(self) -> Origin | None:
        """Return the origin of a location that continues; refuse a damaged record."""
        query_id = SparkLog(self._location.storage).query_id()
        return None if query_id is None else read_origin(self._location.checkpoints(query_id))

    def _with_coordinator(self, query: StreamingQuery, origin: Origin | None) -> CheckpointedQuery:
        """Give Spark's query its coordinator; stop the query if that fails."""
        continued, store = self._continued, None
        former = former_run(query.id) if continued is None else continued._coordinator  # noqa: SLF001  # its start
        try:
            if former is not None:
                former.give_way()
            files = self._files_of(query.id, query.name)
            store = claim_store(RetryingStorage(files.storage), self._settings, query.id)
            if self._noted_late is not None:
                self._location.note_sink(self._noted_late)
            return self._query_with_coordinator(query, origin, files, store, former)
        except BaseException:
            # The caller would have no query to stop.
            in_another_thread(query.stop, not_stopped(self._location.storage.url))
            if continued is not None and store is not None:
                continued._take_back(former, store)  # noqa: SLF001  # its start
            raise

    def _files_of(self, query_id: str, query_name: str | None) -> QueryFiles:
        location = self._location
        return QueryFiles(
            checkpoint_location=location.storage.hadoop_url,
            spark_log=SparkLog(_retrying(location.storage)),
            storage=location.checkpoints(query_id),
            query_id=query_id,
            query_name=query_name,
            backend_type=self._settings.backend_type,
            operators=location.operators,
            source_ids=self._sources.ids,
            given_names=self._sources.names,
        )

    def _query_with_coordinator(
        self,
        query: StreamingQuery,
        origin: Origin | None,
        files: QueryFiles,
        store: CompletedCheckpointStore,
        former: CheckpointCoordinator | None,
    ) -> CheckpointedQuery:
        coordinator = CheckpointCoordinator(
            self._spark,
            query,
            files,
            self._settings,
            self._last_epochs,
            continues=self._continues,
            store=store,
            former=former,
        )
        if origin is not None and origin.claim_mode is ClaimMode.CLAIM:
            coordinator.listeners.add_own(ClaimedSource(origin))
        if self._continued is not None:
            self._continued._hand_on(coordinator)  # noqa: SLF001  # its start
        coordinator.start()
        note_run(coordinator)
        if self._spark_query.location_is_temporary:
            self._delete_location_at_the_end(coordinator, query)
        coordinated = self._continued
        if coordinated is None:
            restore = None if origin is None else RestoredFrom.of(origin)
            of_query = (coordinator, restore, self._restarter)
            coordinated = CheckpointedQuery(self._spark, query, *of_query)
        else:
            coordinated._continue_with(query, coordinator, self._restarter)  # noqa: SLF001  # its start
        session = self._spark_query.session or self._spark
        started = StartedQuery(self._spark, coordinated, coordinator)
        remember(started, session, files, self._settings)
        return coordinated

    def _delete_location_at_the_end(
        self, coordinator: CheckpointCoordinator, query: StreamingQuery
    ) -> None:
        forced = self._spark.conf.get(FORCED) == "true"

        def has_failed() -> bool:
            try:
                return not forced and bool(coordinator.failure or query.exception())
            except Exception:  # Spark has ended and deletes the location itself
                return True

        delete_when_ended(self._location.storage, coordinator.join, has_failed)


def _retrying(location: Storage) -> Storage:
    """Return a location whose reads survive that an object store asks for fewer requests."""
    return RetryingStorage(location) if location.is_remote else location


def restore_request(
    stream: DataFrame, settings: Settings, path: str, migrations: RestoreMigrations
) -> RestoreRequest:
    """Return the request of a query that is to start from a savepoint or checkpoint."""
    return RestoreRequest(
        path=qualified_path(stream.sparkSession, path),
        claim_mode=settings.claim_mode,
        allow_non_restored_state=settings.allow_non_restored_state,
        falls_back=settings.restore_fallback,
        migrations=migrations,
        backend_type=settings.backend_type,
        source_ids=source_ids(stream),
        source_names=source_names(stream),
        given_names=given_names(stream) if names_sources(stream.sparkSession) else (),
        allow_missing_input=settings.allow_missing_input,
        spark=stream.sparkSession,
    )
