"""The part of a running query that restarts it in place: ``rescale`` and ``restartWith``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, ConfigurationError
from pyspark_ckpt.formats.origin import Restore
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.live.run_states import LiveStates
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.observed import ObservedQuery
from pyspark_ckpt.query.session_errors import says_that_session_ended
from pyspark_ckpt.restarting.record import InPlaceRestart
from pyspark_ckpt.spark.program import Program, check_program
from pyspark_ckpt.stores.base import CompletedCheckpointStore

_MISSED = (AbortReason.QUERY_ENDED, AbortReason.NO_COMMITTED_EPOCH)
"""Why a call fails that meets the end of a run which is restarted in place."""

Answer = TypeVar("Answer")


class Restarter(Protocol):
    """Starts a query again in place; made by the writer that started the query."""

    def restart(
        self,
        query: Any,
        program: Program | None,
        parallelism: int | None,
        reason: str,
    ) -> InPlaceRestart:
        """Stop the query between two epochs and start it again.

        Parameters
        ----------
        query
            The query, which continues with the new run.
        program
            The new program, ``None`` for the query's own.
        parallelism
            The number of subtasks, ``None`` for what the program says.
        reason
            Who asks for it.
        """


@says_that_session_ended
class RestartableQuery(ObservedQuery):
    """The part of a :class:`CheckpointedQuery` that restarts it in place.

    `restarter` is ``None`` if the program of the query is not in this process.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: StreamingQuery,
        coordinator: CheckpointCoordinator,
        restore: Restore | None = None,
        restarter: Restarter | None = None,
    ) -> None:
        super().__init__(spark, query, coordinator, restore)
        self._restarter = restarter
        self._listeners: list[CheckpointListener] = []
        self._restarts_in: int | None = None
        self._changed = threading.Condition()
        """Notified when the query continues with another run, and at the end of a restart."""

    def rescale(self, parallelism: int) -> InPlaceRestart:
        """Give the running query another number of subtasks.

        The query stops between two epochs, its state is divided anew, and it starts again at the
        same location and into the same sink. No row is lost or written twice. This object stays the
        query: `id` and epoch numbers continue, and `runId` changes. Listeners stay, and a thread in
        :meth:`awaitTermination` continues to wait.

        The query has to be written as a function that builds it: see :func:`write_stream`.

        Parameters
        ----------
        parallelism : int
            The number of subtasks of each operator.

        Returns
        -------
        InPlaceRestart
            Has the pause. The history keeps it, too.

        Raises
        ------
        ConfigurationError
            If `parallelism` is no positive number, the query was not given as a function, or its
            location is temporary; the query still runs. Also in the function of ``foreachBatch``,
            whose epoch the restart would wait for.
        CheckpointAbortedError
            If the query has ended, somebody else stops it, no epoch is committed yet, or a
            savepoint under way takes too long.
        PlanError, IncompatibleStateError, NotBuiltYetError
            If the state cannot move. The query runs as before.
        FencedError
            If another driver runs the query.

        Examples
        --------
        >>> def build():
        ...     return ckpt.key_by(events, "user").transformWithState(
        ...         Count(), "user string, n long", "Update", "None", uid="count"
        ...     )
        >>> query = (
        ...     ckpt.write_stream(build)
        ...     .outputMode("update")
        ...     .start(format="noop", checkpointLocation=f"{directory}/rescaled")
        ... )
        >>> query.processAllAvailable()
        >>> query.rescale(3).parallelism
        3
        >>> query.stop()
        """
        if type(parallelism) is not int or parallelism < 1:
            raise ConfigurationError(
                f"rescale({parallelism!r}): give the number of subtasks, such as rescale(4)"
            )
        return self._restart(None, parallelism, f"rescale({parallelism})")

    def restartWith(self, program: Program) -> InPlaceRestart:
        """Restart the running query in place with another program; as :meth:`rescale`.

        The program may change what a restore may change: see :func:`plan_restore`. If it is
        refused, the query runs as before. If it fails in its first epoch, the query has failed;
        that epoch is not committed, so any program that fits can be started there.

        Parameters
        ----------
        program : DataFrame or callable
            The new query, or a function without arguments that builds and returns it. What a
            function builds has the parallelism that the query has now; a DataFrame may have another
            one.

        Returns
        -------
        InPlaceRestart
            Has the pause.

        Raises
        ------
        ConfigurationError
            If `program` is no streaming DataFrame, and no function that returns one, or the
            DataFrame that a function returns was built for another parallelism. The query runs as
            before. Else as :meth:`rescale`.
        CheckpointAbortedError, FencedError
            As :meth:`rescale`.
        PlanError, IncompatibleStateError, RestoreError, NotBuiltYetError
            If the program does not fit the state. The query runs as before.

        Examples
        --------
        >>> def mended():
        ...     return ckpt.key_by(events.where("user <> 'bob'"), "user").transformWithState(
        ...         Count(), "user string, n long", "Update", "None", uid="count"
        ...     )
        >>> query = (
        ...     ckpt.write_stream(counts)
        ...     .outputMode("update")
        ...     .start(format="noop", checkpointLocation=f"{directory}/mended")
        ... )
        >>> query.processAllAvailable()
        >>> before = query.runId
        >>> query.restartWith(mended).reason
        'restartWith'
        >>> query.runId == before
        False
        >>> query.stop()
        """
        check_program(program, "restartWith")
        return self._restart(program, None, "restartWith")

    def _restart(
        self,
        program: Program | None,
        parallelism: int | None,
        reason: str,
        restarter: Restarter | None = None,
    ) -> InPlaceRestart:
        with self._turn.taken(reason):
            restarter = restarter or self._restarter
            if restarter is None:
                raise ConfigurationError(
                    f"query {self.id} was attached, so its program is not in this process: stop it "
                    "and start it again from its checkpointLocation"
                )
            self._is_restarting, self._restarts_in = True, threading.get_ident()
            try:
                return restarter.restart(self, program, parallelism, reason)
            except Exception:
                self._coordinator.check_session()
                raise
            finally:
                with self._changed:
                    self._is_restarting, self._restarts_in = False, None
                    self._changed.notify_all()

    def _hand_on(self, coordinator: CheckpointCoordinator) -> None:
        """Give the coordinator of the next run what it has to know before it begins."""
        coordinator.requests.taken |= self._coordinator.requests.taken  # one may ask for this

    def _take_back(
        self, former: CheckpointCoordinator | None, store: CompletedCheckpointStore
    ) -> None:
        """Return the fence to the former run, if the next one claimed it and was given up."""
        if self._coordinator is former:
            with suppress(CkptError, OSError):  # another driver may have the query by now
                former.take_back(store)

    def _continue_with(
        self,
        query: StreamingQuery,
        coordinator: CheckpointCoordinator,
        restarter: Restarter | None,
    ) -> None:
        """Become another run of the query, which has begun; called while it is restarted."""
        coordinator.restarts = self._coordinator.restarts
        with self._changed:
            for listener in self._listeners:
                coordinator.listeners.add(listener)
            self._query, self._coordinator, self._restarter = query, coordinator, restarter
            self._changed.notify_all()

    def _states_after(self, ended: LiveStates | None) -> LiveStates:
        """Return the states of the run after another one, which a restart under way may begin.

        It does not wait for the end of the restart: that waits for the first epoch of the new run,
        and a sink may read states in an epoch.
        """

        def is_known() -> bool:
            is_here = self._restarts_in == threading.get_ident()  # a program that is built again
            return self._coordinator.live is not ended or not self._is_restarting or is_here

        with self._changed:
            self._changed.wait_for(is_known)
            return self._coordinator.live

    def _asked(self, call: Callable[[CheckpointCoordinator], Answer]) -> Answer:
        """Ask the coordinator of the run, and that of the next one if the run ended for a restart.

        Waits for a restart that is under way, as long as a checkpoint may take.
        """
        while True:
            coordinator = self._current
            try:
                return call(coordinator)
            except CheckpointAbortedError as exc:
                if exc.reason not in _MISSED or self._current is coordinator:
                    raise

    @property
    def _current(self) -> CheckpointCoordinator:
        with self._turn.taken_unless_in_batch(self._coordinator.timeout_s):
            return self._coordinator

    def _to_be_stopped(self) -> tuple[StreamingQuery, CheckpointCoordinator]:
        """Return the run and its coordinator, which no restart in place starts again."""
        with self._changed:
            self._coordinator.stops.keep_stopped()
            return self._query, self._coordinator

    def _has_another_run(self, query: StreamingQuery, timeout: float | None) -> bool:
        """Return whether the query was restarted in place after this run of it.

        Waits for a restart that is under way, and returns true if it takes too long.
        """
        if not self._turn.wait(timeout):
            return True
        try:
            return self._query is not query
        finally:
            self._turn.leave()
