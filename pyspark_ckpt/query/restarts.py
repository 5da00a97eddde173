"""Restart a running query in place: with other subtasks, by call or rule, or another program.

The query stops between two epochs. Its location gets what another number of subtasks or other
operators need, and the query starts again, in the same session and process. If it cannot start
again with the change, it starts again as it was (docs/design/restarts.md).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.checkpoint.query_runner import is_of_operators
from pyspark_ckpt.clock import monotonic_ms, ms_of_text, now_ms
from pyspark_ckpt.errors import (
    CkptError,
    FencedError,
    RestoreError,
)
from pyspark_ckpt.formats.layout import ROLLBACK_MARKER
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.log import restart_entry
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.plan.parallelism import building_with
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.query.stopping.failure import restart_failed
from pyspark_ckpt.restarting.record import InPlaceRestart
from pyspark_ckpt.restarting.restart_decision import (
    ChangeState,
    RefuseRestart,
    RestartDecision,
    RestartFacts,
    decide_change,
    decide_restart,
)
from pyspark_ckpt.restarting.rules import Load, Proposal, RescaleRules, load_of
from pyspark_ckpt.restarting.staging import change_in_place, put_back
from pyspark_ckpt.restore.location.facts import bound_parallelism
from pyspark_ckpt.restore.location.swap import Swap, finish_restart
from pyspark_ckpt.restore.plan import RestorePlan
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.own_session import in_another_thread
from pyspark_ckpt.spark.program import Program
from pyspark_ckpt.spark.query import progress_since
from pyspark_ckpt.spark.sink import TableSink
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.open import Storage

_POLL_S = 0.02
_REMOTE_POLL_S = 0.5

_WAITING = "Waiting for"
"""What Spark's status begins with while there is no input, or the next epoch is not due."""

logger = library_logger(__name__)
POLL_S = 2.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How Spark's query is started, and into which table it writes, by the writer."""

    start: Callable[[Any], StreamingQuery]
    table_of: Callable[[Any], TableSink | None]


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a query."""

    storage: Storage
    is_temporary: bool


def parallelism_at(location: Storage) -> int | None:
    """Return the number of subtasks that a location has, ``None`` if it has no epoch yet.

    It raises ``RestoreError`` if a restart in place runs at the location or was interrupted there.
    """
    if location.exists(ROLLBACK_MARKER):
        raise RestoreError(
            f"{location.url} is being restarted in place, or rolled back: repeat the call when the "
            "query runs again. If no driver does it, start the query there, or call "
            "pyspark_ckpt.location(path).rollback again: it finishes what was interrupted"
        )
    return bound_parallelism(location)


class NextStarts(Protocol):
    """The writer of a query, which makes the starts of its next runs."""

    def _next_start(
        self, launch: Launch, place: Place, program: Program | None, parallelism: int | None, /
    ) -> QueryStart:
        """Return the start of a program, ``None`` for the query's own."""


class Restarts:
    """Restarts the query of one writer."""

    def __init__(self, writer: NextStarts, launch: Launch, place: Place) -> None:
        self.writer = writer
        self._launch = launch
        self._place = place

    def _make_start(self, program: Program | None, parallelism: int | None) -> QueryStart:
        """Return the start of a program, ``None`` for the query's own, in place."""
        return self.writer._next_start(self._launch, self._place, program, parallelism)

    def _start_of_change(self, program: Program | None, parallelism: int | None) -> QueryStart:
        """Return the start of the run after the restart."""
        return self._make_start(program, parallelism)

    def _stop(self, coordinator: CheckpointCoordinator) -> tuple[str, CheckpointMetadata]:
        """Stop the query; return path and metadata of a checkpoint of its last epoch."""
        return coordinator.stops.to_restart()

    def _undo(self) -> None:
        """Remove what :meth:`_stop` left, because the query runs as before."""

    def restart(
        self,
        query: CheckpointedQuery,
        program: Program | None,
        parallelism: int | None,
        reason: str,
    ) -> InPlaceRestart:
        """Restart a query; as ``CheckpointedQuery.rescale`` and ``restartWith``."""
        coordinator = query._coordinator
        before = _parallelism(coordinator)
        facts = self._facts(query, coordinator)
        _check(decide_restart(facts))
        if parallelism is None and callable(program):
            parallelism = before
        start = self._start_of_change(program, parallelism)
        after = start.location.operators.descriptors[0].parallelism
        facts = replace(facts, wanted_location=start.location.storage.url)
        _check(decide_restart(facts))
        _check(decide_restart(replace(facts, plan=_plan_from_newest(coordinator, start))))
        called_at_ms = now_ms()
        logger.info("query %s: restart in place: %s", query.id, reason)
        done, epoch = None, None
        try:
            path, metadata = self._stop(coordinator)
            ended_at_ms = max(called_at_ms, _last_epoch_ended_at_ms(query) or 0)
            epoch = metadata.epoch
            with start.alone():
                decision = decide_change(start.plan_from(path, metadata))
                _check(decision)
                if isinstance(decision, ChangeState):
                    location = start.location.storage
                    done = change_in_place(start.spark, location, decision.plan, coordinator.lease)
            with building_with(after):
                start.run(query)
        except BaseException as exc:
            change = None if epoch is None else _Change(epoch, done)
            again = partial(self._start_as_before, query, coordinator, before, change, exc)
            if isinstance(exc, Exception):
                again()
            else:
                in_another_thread(again, f"query {query.id}: it is unknown whether it runs")
            raise
        pause_ms = _first_commit_ms(query, start, metadata.epoch) - ended_at_ms
        made = InPlaceRestart(metadata.epoch, before, after, max(pause_ms, 0), reason)
        self._record(query, made, ended_at_ms)
        if done is not None:
            lease = query._coordinator.lease
            _remove_kept(FencedStorage(start.location.storage, lease), done)
        return made

    def _facts(self, query: CheckpointedQuery, coordinator: CheckpointCoordinator) -> RestartFacts:
        log = coordinator.files.spark_log
        facts = RestartFacts(query.id, log.storage.url, self._place.is_temporary)
        if facts.is_temporary:
            return facts
        coordinator.check_session()
        runs = query._query.isActive
        return replace(facts, runs=runs, committed=log.committed_epoch() if runs else None)

    def _start_as_before(
        self,
        query: CheckpointedQuery,
        coordinator: CheckpointCoordinator,
        parallelism: int,
        change: _Change | None,
        error: BaseException,
    ) -> None:
        """Start the query as it was, unless it still runs, or somebody else stopped or has it.

        A query that stays stopped has failed, for everybody who waits for its end.
        """
        is_stopped = False
        try:
            if query._coordinator.session_error() is not None:
                return  # a run of the next session may have begun
            if query._query.isActive:
                return
            is_stopped = True
            if not _is_to_start_again(query, coordinator, error):
                return
            start = self._make_start(None, parallelism)
            if change is not None:
                with start.alone():
                    _take_back(start.location.storage, change, coordinator)
            with building_with(parallelism):
                start.run(query)
            if not coordinator.state.may_start_again():  # somebody has stopped the query
                query._query.stop()
                return
            is_stopped = False
        except BaseException as exc:
            _note_that_it_stays_stopped(query, error, exc)
            if isinstance(exc, Exception):
                return
            raise
        finally:
            if query._coordinator is coordinator:  # no other run has begun
                coordinator.state.give_up_restart()
            if is_stopped:  # whoever hears of the error finds a query that has ended
                query._coordinator.wait_until_closed(coordinator.timeout_s)
        logger.warning("query %s runs as before: its restart in place failed: %s", query.id, error)
        try:
            self._undo()
        except (CkptError, OSError) as exc:
            logger.warning("query %s: what the restart left stays: %s", query.id, exc)

    def _record(self, query: CheckpointedQuery, made: InPlaceRestart, began_at_ms: int) -> None:
        coordinator = query._coordinator
        both = made.parallelism_before, made.parallelism
        entry = restart_entry(made.epoch, both, began_at_ms, made.pause_ms, made.reason)
        coordinator.restarts.append(entry)
        coordinator.history.note_restart(entry)
        logger.info(
            "query %s: restarted in place after epoch %s, from %s to %s subtasks: %s ms",
            query.id,
            made.epoch,
            *both,
            made.pause_ms,
        )


def _remove_kept(location: FencedStorage, done: Swap) -> None:
    """Remove the content before a restart; the next run removes what this could not.

    The fence keeps a driver that was overtaken from removing another one's.
    """
    with suppress(CkptError, OSError):
        location.delete_directory(done.kept)


def _is_to_start_again(
    query: CheckpointedQuery, coordinator: CheckpointCoordinator, error: BaseException
) -> bool:
    """Return whether a query that its restart has stopped is to start as it was.

    Else everybody who waits for it hears that it stays stopped. ``FencedError`` means that another
    driver has taken it over.
    """
    if coordinator.state.may_start_again() and query._coordinator is not coordinator:
        _note_that_it_stays_stopped(query, error, error)  # the new run began, and was stopped
        return False
    if not coordinator.state.may_start_again() or coordinator.error_so_far() is not None:
        coordinator.refuse_requests()
        return False
    if isinstance(error, FencedError):  # a driver that starts may have no term yet
        raise error
    coordinator.lease.check()
    return True


def _note_that_it_stays_stopped(
    query: CheckpointedQuery, error: BaseException, last: BaseException
) -> None:
    """Tell everybody who waits for the query, or asks it, that its restart has left it stopped."""
    coordinator = query._coordinator
    if coordinator.failure is None:
        coordinator.state.note(restart_failed(query.id, error, last))
    coordinator.state.give_up_restart()
    coordinator.refuse_requests()


def parallelism_of_run(query: CheckpointedQuery) -> int:
    """Return the number of subtasks that a query has now."""
    return _parallelism(query._coordinator)


def _parallelism(coordinator: CheckpointCoordinator) -> int:
    return coordinator.files.operators.descriptors[0].parallelism


def _check(decision: RestartDecision) -> None:
    if isinstance(decision, RefuseRestart):
        raise decision.error


def _plan_from_newest(coordinator: CheckpointCoordinator, start: QueryStart) -> RestorePlan | None:
    """Return what becomes of the newest checkpoint's state; takes a checkpoint if there is none."""
    operators = coordinator.files.operators
    newest = coordinator.newest_metadata()
    if newest is None or not is_of_operators(newest[1], operators):
        coordinator.trigger_checkpoint(waits_for_listeners=False)  # one may wait for the restart
        newest = coordinator.newest_metadata()
    if newest is None or not is_of_operators(newest[1], operators):
        return None
    return start.plan_from(*newest)


@dataclass(frozen=True, slots=True)
class _Change:
    """What a restart has done to the location; `swapped` is ``None`` if it does not know."""

    epoch: int
    swapped: Swap | None


def _take_back(storage: Storage, change: _Change, coordinator: CheckpointCoordinator) -> None:
    """Give the location the content that it had before the restart.

    It raises ``RestoreError`` if the new run has committed the epoch that the restart has begun.
    """
    # A swap that failed in its midst is finished first, whichever step of it was done.
    swapped = change.swapped or finish_restart(storage)
    if swapped is None:
        return
    committed = SparkLog(storage).committed_epoch()
    if committed != change.epoch:
        raise RestoreError(
            f"{storage.url}: epoch {committed} was committed after the restart, so its state stays"
        )
    put_back(storage, swapped, coordinator.lease)


def _last_epoch_ended_at_ms(query: CheckpointedQuery) -> int | None:
    """Return when the last epoch ended, ``None`` if Spark does not say."""
    last = query._query.lastProgress
    if last is None or "addBatch" not in last["durationMs"]:
        return None
    return ms_of_text(last["timestamp"]) + int(last["durationMs"]["triggerExecution"])


def _first_commit_ms(query: CheckpointedQuery, start: QueryStart, epoch: int) -> int:
    """Return when the first epoch was committed, or the query began to wait for input.

    Raises the query's error if its first epoch fails.
    """
    coordinator, run = query._coordinator, query._query
    log = coordinator.files.spark_log
    poll_s = _REMOTE_POLL_S if start.location.storage.is_remote else _POLL_S
    deadline = monotonic_ms() + start.timeout_ms
    waiting = 0
    while monotonic_ms() < deadline:
        if (log.committed_epoch() or 0) > epoch:
            break
        if not run.isActive:
            if (log.committed_epoch() or 0) > epoch:
                break
            if (error := coordinator.error_so_far()) is not None:
                raise error
            break
        is_waiting = str(run.status["message"]).startswith(_WAITING)
        waiting = waiting + 1 if is_waiting else 0
        if waiting > 1:  # it may have begun to wait before it looked for input
            break
        time.sleep(poll_s)
    return now_ms()


def follow(query: CheckpointedQuery, rules: RescaleRules) -> None:
    """Look at a query's epochs until it ends, and restart it as the rules say."""
    threading.Thread(
        target=_Follower(query, rules).run,
        name=f"pyspark_ckpt rescale {query.id}",
        daemon=True,
    ).start()


class _Follower:
    def __init__(self, query: CheckpointedQuery, rules: RescaleRules) -> None:
        self._query = query
        self._rules = rules
        self._run_id: str | None = None
        self._last: int | None = None
        self._loads: deque[Load] = deque(maxlen=rules.window)
        self._not_before_ms = monotonic_ms() + rules.interval_ms

    def run(self) -> None:
        has_failed = False
        while True:
            try:
                if not self._query.isActive:
                    return
                proposal = self._proposal()
                if proposal is not None and monotonic_ms() >= self._not_before_ms:
                    self._restart(proposal)
                has_failed = False
            except Exception as exc:
                if session_of(self._query._spark).why_ended() is not None:
                    return
                if not has_failed:  # once, however long it lasts
                    logger.warning(
                        "query %s: the rules of its parallelism cannot see its load, and look "
                        "again every %g s: %s: %s",
                        self._query.id,
                        POLL_S,
                        type(exc).__name__,
                        exc,
                    )
                has_failed = True
            time.sleep(POLL_S)

    def _proposal(self) -> Proposal | None:
        run = self._query._query
        if run.runId != self._run_id:  # it was restarted: the epochs before say nothing now
            self._run_id, self._last = run.runId, None
            self._loads.clear()
        for report in progress_since(run, self._last):
            self._last = report["batchId"]
            load = load_of(report)
            if load is not None:
                self._loads.append(load)
        return self._rules.proposal(parallelism_of_run(self._query), list(self._loads))

    def _restart(self, proposal: Proposal) -> None:
        self._not_before_ms = monotonic_ms() + self._rules.interval_ms
        try:
            with self._query._turn.taken(proposal.reason):
                if self._query._query.runId == self._run_id:  # else somebody was first
                    self._query._restart(None, proposal.parallelism, proposal.reason)
        except Exception as exc:  # also of the user's function that builds the query
            logger.warning(
                "query %s was not given %s subtasks (%s): %s",
                self._query.id,
                proposal.parallelism,
                proposal.reason,
                exc,
            )
