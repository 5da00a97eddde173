"""The stops of one run between two epochs: with a savepoint, or to start again in place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.handles import all_handles
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.query_runner import last_metadata
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import NotBuiltYetError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.log_fields import log_fields
from pyspark_ckpt.query.checkpoint_taker import CheckpointTaker
from pyspark_ckpt.query.requests import WorkUnderWay
from pyspark_ckpt.query.stopping.drain import LastEpochs
from pyspark_ckpt.query.stopping.failure import (
    ended_without_epoch,
    savepoint_under_way,
    session_stopped,
    stop_failed,
)
from pyspark_ckpt.query.stopping.run_state import RunState
from pyspark_ckpt.restarting.turn import turn_of
from pyspark_ckpt.savepoint.taker import SavepointTaker, nothing_committed
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.query import stop_between_epochs


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a query, as its coordinator has it."""

    spark: SparkSession
    query: StreamingQuery
    files: QueryFiles
    timeout_ms: int
    state: RunState
    runner: CheckpointRunner
    taker: CheckpointTaker
    savepoints: SavepointTaker
    last_epochs: LastEpochs
    join: Callable[[], None]
    error_so_far: Callable[[], Exception | None]
    check_session: Callable[[], None]
    under_way: WorkUnderWay

    @property
    def query_id(self) -> str:
        """The id of the query."""
        return self.files.query_id


class RunStops:
    """Stops a run between two epochs."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def with_savepoint(
        self, directory: str | None, savepoint_format: SavepointFormat, *, drain: bool
    ) -> Savepoint:
        """Stop the query after the epoch in progress, and take a savepoint of that epoch.

        With `drain`, all event-time timers fire first. CheckpointAbortedError means that the query
        is being restarted in place, that its session has ended, or that the savepoint was not made.
        """
        run = self._run
        run.check_session()
        if drain and run.files.operators.spark_operators:
            raise NotBuiltYetError(
                f"query {run.query_id}: a drain would close the windows of Spark's own "
                "stateful operators for good, so it is not supported: stop the query without drain"
            )
        if drain:
            run.last_epochs.check_possible()
        stops = False

        def stop() -> None:
            nonlocal stops
            if run.query.isActive:
                run.taker.take_back_if_fenced()
                stops = True
            stop_between_epochs(run.spark, run.query, run.timeout_ms)
            run.join()
            with self._turn():
                run.runner.lease.check()  # this run begins no epoch if another driver runs
                run.last_epochs.finish_begun(run.runner.lease)
                if drain:
                    handles_of = partial(all_handles, run.spark, run.files)
                    run.last_epochs.drain(
                        handles_of, len(run.files.operators.ours), run.runner.lease
                    )

        with (
            log_fields(query=run.query_id),
            run.under_way.under_way(),
            run.state.saving(),
        ):
            try:
                return run.savepoints.take_of_stopped(stop, directory, savepoint_format)
            except BaseException as exc:
                self._note_failed_stop(exc, stops=stops)
                why = session_of(run.spark).why_ended() if isinstance(exc, Exception) else None
                if why is not None:
                    raise session_stopped(run.query_id, why) from exc
                raise

    def _turn(self) -> AbstractContextManager[object]:
        """Let no start of this process fence the run, or meet an epoch of it, in the block."""
        return turn_of(self._run.files.spark_log.storage.url)

    def _note_failed_stop(self, error: BaseException, *, stops: bool) -> None:
        """Note that a query ended without its savepoint, which would else look like a success."""
        run = self._run
        if stops:
            is_interrupt = not isinstance(error, Exception)
            if is_interrupt or not run.state.may_run():
                run.state.note(stop_failed(run.query_id, error))
        elif getattr(error, "reason", None) == AbortReason.NO_COMMITTED_EPOCH:
            raise ended_without_epoch(run.query_id, run.error_so_far()) from error

    def to_restart(self) -> tuple[str, CheckpointMetadata]:
        """Stop the query after the epoch in progress, to start it again at once.

        Savepoints that are being taken are completed first, also those that are begun before the
        last epoch ends. Checkpoints stay, and requests wait for the next run.

        The result is the path and metadata of a checkpoint of the last epoch.
        CheckpointAbortedError means that somebody else has stopped the query or is about to, that
        its session has ended, or that a savepoint takes too long. FencedError means that another
        driver runs the query.
        """
        run = self._run
        with log_fields(query=run.query_id):
            run.state.begin_restart()
            run.check_session()
            if not run.runner.hold.wait(run.timeout_ms / 1000):
                raise savepoint_under_way(run.query_id)
            with run.state.restarting():
                run.taker.check_commits()  # the other driver may be about to begin an epoch
                stop_between_epochs(run.spark, run.query, run.timeout_ms)
            run.join()
            run.runner.hold.wait(run.timeout_ms / 1000)
            run.state.check_wanted()
            error = run.error_so_far()
            if error is not None:
                raise error
            with self._turn():
                run.runner.lease.check()
                run.last_epochs.finish_begun(run.runner.lease)
            epoch = run.files.spark_log.committed_epoch()
            if epoch is None:
                raise nothing_committed(run.query_id)
            self._checkpoint(epoch)
            run.state.note_checkpoint()
            return last_metadata(run.runner, run.spark, run.files, epoch)

    def _checkpoint(self, epoch: int) -> None:
        """Take a checkpoint of the last epoch, unless there is one.

        The coordinator takes it when the run ends. If the stop interrupted the epoch, it was
        committed later than that.
        """
        runner = self._run.runner
        if runner.covers(epoch):
            return
        runner.reopen()
        try:
            runner.take(lambda: epoch, periodic=False, waits_for_listeners=False)
        finally:
            runner.close()
