"""The ``checkpointLocation`` that a query starts at: continued, seeded or refused."""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.committed_handles import read_handles
from pyspark_ckpt.checkpoint.origin import read_origin
from pyspark_ckpt.checkpoint.restore_request import RestoreRequest
from pyspark_ckpt.checkpoint.restore_source import open_source
from pyspark_ckpt.checkpoint.seeding import (
    SEEDED_EPOCH,
    Seed,
    begin_seeding,
    clear_unfinished,
    finish_seeding,
    seed,
    seed_initial,
)
from pyspark_ckpt.checkpoint.spark_log import SparkLog
from pyspark_ckpt.checkpoint.state_check import check_states
from pyspark_ckpt.errors import IncompatibleStateError, PlanError, RestoreError
from pyspark_ckpt.initial_state import initial_state_of
from pyspark_ckpt.on_disk.handle import Handle
from pyspark_ckpt.on_disk.layout import CHECKPOINTS_DIRECTORY, ROLLBACK_MARKER, SEEDING_MARKER
from pyspark_ckpt.on_disk.storage import LocalStorage, Storage, open_storage
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, Runtime
from pyspark_ckpt.table_sink import TableSink

logger = logging.getLogger(__name__)

_SINK_LOG = "_spark_metadata"
_EMPTY_SINK_LOG_ENTRY = b"v1"
"""What Spark's file sink writes for an epoch without output (FileStreamSinkLog, version 1)."""


class StartLocation:
    """Where a query is about to start.

    Parameters
    ----------
    storage
        The ``checkpointLocation``.
    checkpoints_directory
        ``spark.ckpt.execution.checkpointing.dir``; by default the checkpoints lie inside the
        location.
    operators
        The query's operators.
    """

    def __init__(
        self,
        storage: LocalStorage,
        checkpoints_directory: str | None,
        operators: tuple[OperatorDescriptor, ...],
    ) -> None:
        self.storage = storage
        self._checkpoints_directory = checkpoints_directory
        self._operators = operators
        self._log = SparkLog(storage)

    @property
    def checkpoints_root(self) -> str:
        """The checkpoints directory, without the query's own subdirectory."""
        if self._checkpoints_directory is not None:
            return open_storage(self._checkpoints_directory).url
        return self.storage.url_of(CHECKPOINTS_DIRECTORY)

    def checkpoints(self, query_id: str) -> Storage:
        """Return the query's checkpoints directory."""
        root = open_storage(self.checkpoints_root)
        return root if self._checkpoints_directory is None else root.child(query_id)

    def check_parallelism(self, spark: SparkSession) -> None:
        """Check that the query's parallelism is the session's and the location's.

        Raises
        ------
        PlanError
            If ``spark.sql.shuffle.partitions`` was changed since the query was built, or since
            the location was first used: Spark would go on with the old number of partitions.
        """
        session = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
        epoch = self._committed_epoch
        bound = None if epoch is None else self._log.offsets_entry(epoch).parallelism
        for operator in self._operators:
            if operator.parallelism != session:
                raise PlanError(
                    f"operator {operator.uid!r} was built with spark.sql.shuffle.partitions = "
                    f"{operator.parallelism}, it is {session} now: build the query again"
                )
            if bound is not None and operator.parallelism != bound:
                raise PlanError(
                    f"operator {operator.uid!r} has parallelism {operator.parallelism} "
                    f"(spark.sql.shuffle.partitions), the state at {self.storage.root} has "
                    f"{bound}: set spark.sql.shuffle.partitions to {bound} before building the "
                    "query"
                )

    def check_states(self, spark: SparkSession) -> None:
        """Check that the states of committed epochs fit what the processors ask for.

        Runs a small job over Spark's state store where there is a committed epoch.

        Raises
        ------
        IncompatibleStateError
            If a state or an operator's uid does not fit; nothing was started.
        """
        epoch = self._committed_epoch
        if epoch is None:
            return
        stored = {
            operator_id: read_handles(spark, str(self.storage.root), epoch, operator_id)
            for operator_id in self._log.operator_ids()
        }
        for operator_id, operator in enumerate(self._operators):
            self._check_handles(operator, stored.pop(operator_id, None))
        if stored:
            uids = sorted({handle.uid for handles in stored.values() for handle in handles})
            raise IncompatibleStateError(
                f"{self.storage.root} holds the state of operator {', '.join(map(repr, uids))}, "
                f"which the query does not have (its uids are "
                f"{', '.join(repr(operator.uid) for operator in self._operators)}): add it again, "
                "or start the query at a new checkpointLocation"
            )

    def _check_handles(self, operator: OperatorDescriptor, handles: list[Handle] | None) -> None:
        """Check an operator against the handles at its place, ``None`` if it has no place."""
        if handles is None:
            raise IncompatibleStateError(
                f"{self.storage.root} has no place for operator {operator.uid!r}: the query had "
                "fewer operators; give it those that it had, by their uids, or start it at a new "
                "checkpointLocation"
            )
        stored_uids = {handle.uid for handle in handles}
        if stored_uids - {operator.uid}:
            raise IncompatibleStateError(
                f"{self.storage.root} holds the state of operator "
                f"{', '.join(map(repr, sorted(stored_uids)))} where the query has "
                f"{operator.uid!r}: give the operator its old uid back, or start the query at "
                "a new checkpointLocation"
            )
        for handle in handles:
            if handle.time_mode != operator.time_mode:
                raise IncompatibleStateError(
                    f"operator {operator.uid!r}: the state at {self.storage.root} was stored "
                    f"with timeMode {handle.time_mode!r}, the query has "
                    f"{operator.time_mode!r}: give it its old timeMode back, or restore a "
                    "checkpoint into a new checkpointLocation"
                )
        check_states(operator, handles)

    def check_not_half_rolled_back(self) -> None:
        """Refuse a location in which a rollback was interrupted.

        Raises
        ------
        RestoreError
            If there is one.
        """
        if self.storage.exists(ROLLBACK_MARKER):
            raise RestoreError(
                f"{self.storage.root}: a rollback of this location was interrupted; call "
                "pyspark_ckpt.rollback again, which goes on with it"
            )

    def check_not_half_seeded(self) -> None:
        """Refuse a location in which a restore was interrupted.

        Raises
        ------
        RestoreError
            If there is one.
        """
        if self._is_half_seeded:
            raise RestoreError(
                f"{self.storage.root}: a restore into this location was interrupted; start the "
                "query with restoreFrom again"
            )

    def restore(
        self,
        spark: SparkSession,
        request: RestoreRequest,
        file_sink_path: str | None,
        table: TableSink | None = None,
    ) -> None:
        """Seed the location from a checkpoint or savepoint, unless it has committed epochs.

        A new table is made once nothing is refused any more: the sink's log is in its directory.

        Raises
        ------
        RestoreError
            If the location or the sink's path is not fresh, or operators do not fit.
        IncompatibleStateError, PlanError
            If a state does not fit.
        CheckpointNotFoundError, CorruptFileError, UnsafePathError
            If there is no good checkpoint or savepoint at the path.
        """
        if self._committed_epoch is not None:
            logger.info(
                "%s has committed epochs: not restored from %s", self.storage.root, request.path
            )
            return
        source = open_source(request.path, falls_back=request.falls_back)
        plan = request.plan(source, self._operators)
        plan.check()
        logger.info("%s", plan)
        sink_log = None if file_sink_path is None else _fresh_sink_log(file_sink_path)
        self._clear_for_seeding()
        if table is not None:
            table.make()
        query_id = begin_seeding(self.storage)
        checkpoints = self.checkpoints(query_id)
        seed(
            spark,
            self.storage,
            checkpoints,
            source,
            self._operators,
            request.claim_mode,
            request.migrations,
            request.source_ids,
        )
        if sink_log is not None and not sink_log.exists("0"):
            # Readers want the sink's log to start at epoch 0; the restored query starts at 1.
            sink_log.write("0", [_EMPTY_SINK_LOG_ENTRY])
        finish_seeding(self.storage, source.path)
        logger.info("%s is no longer needed by query %s: all is copied", source.path, query_id)

    def start_from_initial_state(
        self,
        spark: SparkSession,
        runtime: Runtime,
        sources: int,
        file_sink_path: str | None,
        table: TableSink | None = None,
    ) -> None:
        """Seed a fresh location from the operators' initial states, if they have any.

        Parameters
        ----------
        spark
            The session the query will be started from.
        runtime
            The settings of the query.
        sources
            At how many places it reads a source.
        file_sink_path
            Where Spark's file sink writes, ``None`` for another sink.
        table
            The table that it writes to, if it is one.

        Raises
        ------
        RestoreError
            If the location is not fresh, but has no committed epoch either.
        """
        initial = [initial_state_of(operator) for operator in self._operators]
        if not any(initial):
            self.check_not_half_seeded()
            return
        if self._committed_epoch is not None:
            logger.info("%s has committed epochs: no initial state is made", self.storage.root)
            return
        sink_log = None if file_sink_path is None else _fresh_sink_log(file_sink_path)
        self._clear_for_seeding()
        if table is not None:
            table.make()
        query_id = begin_seeding(self.storage)
        seeds = [
            Seed(operator, [] if state is None else state.handles(runtime, query_id))
            for operator, state in zip(self._operators, initial, strict=True)
        ]
        seed_initial(spark, self.storage, seeds, sources)
        if sink_log is not None and not sink_log.exists("0"):
            sink_log.write("0", [_EMPTY_SINK_LOG_ENTRY])
        finish_seeding(self.storage, "its initial state")

    def prepare_sink(self, file_sink_path: str | None) -> None:
        """Check that the file sink takes the next epochs of a location that was seeded.

        Raises
        ------
        RestoreError
            If it has the output of later epochs: it would skip those of this query. That is so
            after a rollback.
        """
        query_id = self._log.query_id()
        if file_sink_path is None or query_id is None or self._committed_epoch is None:
            return
        origin = read_origin(self.checkpoints(query_id))
        if origin is None:
            return
        sink_log = open_storage(file_sink_path).child(_SINK_LOG)
        written = _newest_sink_epoch(sink_log)
        begun = self._log.begun_epoch()
        if written is not None and begun is not None and written > begun:
            raise RestoreError(
                f"{file_sink_path} already has the output of epochs up to {written}, this location "
                f"goes on from epoch {begun} since it was restored from {origin.path}, epoch "
                f"{origin.epoch}: Spark's file sink would skip what comes now; give the query a "
                "new path"
            )
        if written is None and self._committed_epoch == SEEDED_EPOCH:
            sink_log.write("0", [_EMPTY_SINK_LOG_ENTRY])

    @property
    def _is_half_seeded(self) -> bool:
        return self.storage.exists(SEEDING_MARKER)

    @property
    def _committed_epoch(self) -> int | None:
        """The epoch to go on from; what lies in a half seeded location is none."""
        return None if self._is_half_seeded else self._log.committed_epoch()

    def _clear_for_seeding(self) -> None:
        if self._is_half_seeded:
            clear_unfinished(self.storage, self._checkpoints_directory)
        elif self.storage.list():
            raise RestoreError(
                f"{self.storage.root} is neither empty nor has it a committed epoch: give the "
                "query a fresh checkpointLocation"
            )


def _newest_sink_epoch(log: Storage) -> int | None:
    names = [name.removesuffix(".compact") for name in log.list()]
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _fresh_sink_log(path: str) -> Storage:
    """Return the log directory of a file sink that no query has written to.

    Raises
    ------
    RestoreError
        If one has: the sink skips epochs it has seen, so output would be lost.
    """
    log = open_storage(path).child(_SINK_LOG)
    entries = [name for name in log.list() if not name.startswith(".")]
    if entries and not (entries == ["0"] and log.read("0") == _EMPTY_SINK_LOG_ENTRY):
        raise RestoreError(
            f"{path} already has the output of another query, whose epochs Spark's file sink "
            "would skip: give the restored query a new path or table"
        )
    return log
