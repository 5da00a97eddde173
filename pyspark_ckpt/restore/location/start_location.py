"""The ``checkpointLocation`` that a query starts at: carries out what a start decides."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from pyspark.sql import SparkSession

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CkptError, FencedError
from pyspark_ckpt.formats.handle import newest_initial_time_ms, write_initial_handles
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    PLACES,
    ROLLBACK_MARKER,
    place_path,
)
from pyspark_ckpt.formats.location_files import read_place, write_place
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.formats.origin import give_up_claim, read_origin, write_origin
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.descriptor import Runtime
from pyspark_ckpt.operator.plan.initial_state import handles_of, initial_state_of
from pyspark_ckpt.restore.location.facts import (
    Content,
    Facts,
    content_of,
    would_be_shared,
)
from pyspark_ckpt.restore.location.seedings import (
    begin_seeding,
    is_half_seeded,
    settle_seedings,
)
from pyspark_ckpt.restore.location.sink_path import (
    Continued,
    continued_at,
    note_path,
    prepare_path,
)
from pyspark_ckpt.restore.plan import RestorePlan, RestoreRequest
from pyspark_ckpt.restore.seeding import seed, write_query_id
from pyspark_ckpt.settings import ClaimMode, HighAvailability, Settings
from pyspark_ckpt.spark.damage import orphaned_checksums
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.spark.sink import FileSinkLog, TableSink
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stores.owner import claim_directory
from pyspark_ckpt.stores.place import CheckpointsPlace

logger = library_logger(__name__)

_UNFINISHED_OFFSETS = re.compile(r"\.{1,2}[0-9]+\.[0-9a-f-]{36}\.tmp(?:\.crc)?")
"""What Spark's file is called until it is whole, and the checksum that Hadoop keeps next to it."""


class StartLocation:
    """The location at which a query is about to start, and where its checkpoints are.

    If `checkpoints_directory` is ``None``, the checkpoints lie inside the location.
    `has_store_elsewhere` says whether a store outside of the directory knows which checkpoints are
    complete.

    :func:`~pyspark_ckpt.restore.location.decision.decide` decides what a start does. The methods do
    it. :meth:`claim` and :meth:`check_unchanged` look whether another driver has changed the
    location since.
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
        self.operators = operators
        self.place = CheckpointsPlace.of_setting(storage, checkpoints_directory)
        self.has_store_elsewhere = has_store_elsewhere
        self._log = SparkLog(storage)
        self._content: Content | None = None
        self._place_number: int | None = None
        self._records_place = True

    @classmethod
    def of(
        cls, storage: Storage, settings: Settings, operators: StatefulOperators
    ) -> StartLocation:
        """Return the location of a query with its settings."""
        has_store_elsewhere = settings.high_availability_type != HighAvailability.NONE
        return cls(
            storage,
            settings.checkpoints_directory,
            operators,
            has_store_elsewhere=has_store_elsewhere,
        )

    @property
    def checkpoints_root(self) -> str:
        """The checkpoints directory, without the query's own subdirectory."""
        root = self.place.root
        return self.storage.url_of(CHECKPOINTS_DIRECTORY) if root is None else root.url

    def checkpoints(self, query_id: str) -> Storage:
        """Return the query's checkpoints directory."""
        return self.place.checkpoints(query_id)

    def rely_on(self, facts: Facts, *, records_place: bool) -> None:
        """Act by these facts from now on.

        `records_place` says whether the location has to record where its checkpoints are.
        """
        self._content, self._place_number = facts.content, facts.place_number
        self._records_place = records_place

    def claim(self) -> None:
        """Make the location what a driver may rely on: its owner, its place, its seedings; durable.

        ``FencedError`` is raised if another driver has changed the location since it was looked at.
        """
        settle_seedings(self.storage)
        self._claim_directory()
        self.check_unchanged()

    def _claim_directory(self) -> None:
        """Make the location the owner of what copies of it would share, if it has a query.

        The location records where it is.

        ``FencedError`` is raised if another driver starts the query with another directory at the
        same time.
        """
        query_id = self._log.query_id()
        if query_id is None:
            return
        checkpoints = self.checkpoints(query_id)
        if would_be_shared(self.place, checkpoints, has_store_elsewhere=self.has_store_elsewhere):
            claim_directory(self.storage, checkpoints)
        self._record_place()

    def _record_place(self) -> None:
        """Record where the checkpoints are, unless the location says so; durable on return.

        ``FencedError`` is raised if another driver records another place at the same time.
        """
        if self._place_number is None:  # nobody has looked, because the location is made here
            self._place_number, recorded = read_place(RetryingStorage(self.storage))
            self._records_place = recorded is None
        if self._records_place:
            wanted = self.place.record()
            is_first = write_place(self.storage, self._place_number + 1, wanted)
            if not is_first and read_place(self.storage)[1] != wanted:
                raise self._has_other_place()
            self._place_number += 1
            self._records_place = False
        self.storage.make_durable(PLACES)  # its writer may have been killed before

    def _has_other_place(self) -> FencedError:
        return FencedError(
            f"{self.storage.url}: another driver has started the query with another "
            "spark.ckpt.execution.checkpointing.dir while this one was starting. Run a query once "
            "at a time: let that driver run it, or start it again"
        )

    def look_again(self) -> None:
        """Rely on the newest offsets that are there now, after this driver has replaced some."""
        self._content = content_of(self.storage)

    def check_unchanged(self, query_id: str | None = None) -> None:
        """Check that no driver has swapped the content since this one relies on it.

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
        if self.storage.exists(ROLLBACK_MARKER) or self._is_swapped():
            raise FencedError(
                f"{self.storage.url}: another driver has restarted the query in place, or rolled "
                "it back, while this one was starting. Run a query once at a time: let that driver "
                "run it, or start it again"
            )

    def _is_swapped(self) -> bool:
        """Return whether other offsets are there than those that were found."""
        if self._content is None:
            return False
        try:
            return self.storage.fingerprint(self._content.path) != self._content.fingerprint
        except FileNotFoundError:
            return True

    def clear_leftovers(self) -> None:
        """Delete files that would keep Spark from beginning an epoch, and that say nothing.

        A driver that ended while it wrote the first epoch's offsets leaves a temporary file. Spark
        4.3 begins its first epoch only in a location without any file of an epoch, so that such a
        location could never start again. Spark gives a file its name once it is whole.

        Somebody who has deleted files by hand, for example to let an epoch run again, may have left
        their checksums. Spark could not write the files, and would say that another query uses the
        location.
        """
        if self._log.begun_epoch() is None:
            names = filter(_UNFINISHED_OFFSETS.fullmatch, self.storage.list("offsets"))
            self.storage.delete(f"offsets/{name}" for name in names)
        self.storage.delete(orphaned_checksums(self._log, self._log.operator_ids()))

    def restore(self, spark: SparkSession, plan: RestorePlan, table: TableSink | None) -> None:
        """Seed the location as planned; durable on return.

        A new table is created first, because the sink's log lies in its directory.

        ``FencedError`` is raised if another driver fills the location, or has filled it, and
        ``RestoreError`` if somebody has put other files there.
        """
        logger.info("%s", plan)
        seeding = begin_seeding(self.storage)
        try:
            root = self.place.root
            seeding.clear(None if root is None else root.url)
            if table is not None:
                table.make()
            query_id = seeding.name_query()
            self._claim_directory()
            checkpoints = self.checkpoints(query_id)
            location = FencedStorage(self.storage, seeding)
            seed(spark, location, checkpoints, query_id, plan)
            write_origin(FencedStorage(checkpoints, seeding), plan.origin)
        except (OSError, CkptError):
            seeding.check()  # a driver that has taken it over removes what this one needs
            raise
        seeding.end()
        logger.info(
            "seeded %s from %s, which query %s no longer needs: it has all files itself",
            self.storage.url,
            plan.path,
            query_id,
        )

    def make_initial_states(self, runtime_of: Callable[[str], Runtime]) -> FileReference | None:
        """Make the operators' initial states for epoch 0; durable on return.

        Until epoch 0 is committed, each start makes them anew, as Spark does. The processor sees
        one processing time in all starts after epoch 0 has begun.

        The result has the handles that epoch 0 starts from, or is ``None`` if it starts empty.
        """
        all_states = [initial_state_of(operator) for operator in self.operators.descriptors]
        states = [state for state in all_states if state is not None]
        if not states:
            return None
        query_id = self.make_query_id()
        runtime, checkpoints = runtime_of(query_id), self.checkpoints(query_id)
        begun = self._log.begun_epoch()
        time_ms = (None if begun is None else newest_initial_time_ms(checkpoints)) or now_ms()
        handles = []
        for state in states:
            what = f"initial state of query {query_id}"
            handles += handles_of(collected(state.job(runtime, time_ms), what))
        return write_initial_handles(checkpoints, handles, time_ms)

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
            self._claim_directory()
        return query_id

    def prepare_sink(
        self, file_sink: FileSinkLog | None, table: TableSink | None = None
    ) -> Continued | None:
        """Claim and fill the path of the file sink, and note where the query's epochs go.

        Returns what :meth:`note_sink` notes once epochs may begin, ``None`` if that is done: a
        start that Spark refuses leaves a fresh location fresh. The errors are those of
        :func:`~pyspark_ckpt.restore.location.sink_path.prepare_path`.
        """
        if file_sink is not None:
            query_id = self.make_query_id()
            prepare_path(self.storage, self.checkpoints(query_id), file_sink, table)
            return None
        query = continued_at(self.storage, None)
        if not query.used and query.begun < 0:
            return query
        note_path(self.storage, query, None)
        return None

    def note_sink(self, query: Continued) -> None:
        """Note that the first epochs go to another sink than a file sink; durable on return."""
        note_path(self.storage, replace(query, query_id=self._log.query_id()), None)

    def note_not_restored(self, request: RestoreRequest) -> None:
        """Log that a path is ignored; as a warning, unless the location was restored from it.

        A claim is given up, durably, if this start names the same path with ``NO_CLAIM``. The
        driver that claimed it may have died before the query had a checkpoint.
        """
        query_id = self._log.query_id()
        assert query_id is not None  # a location without it does not continue
        checkpoints = self.checkpoints(query_id)
        url, path, origin = self.storage.url, request.path, read_origin(checkpoints)
        if origin is not None and _is_or_replaces(origin, path):
            logger.info("%s has committed epochs: not restored from %s", url, path)
            _compare_claims(checkpoints, origin, request.claim_mode)
            return
        before = "was never restored" if origin is None else f"was restored from {origin.path}"
        logger.warning(
            "restoreFrom(%r) is ignored: %s has committed epochs, which the query continues (it "
            "%s); to start from that path, give a fresh checkpointLocation or call "
            "pyspark_ckpt.location(path).rollback",
            path,
            url,
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
