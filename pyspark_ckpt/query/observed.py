"""What a running query shows: its state, progress, checkpoints, pages and live states."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.console.opening import LOOPBACK, Console, open_console
from pyspark_ckpt.formats.origin import Restore
from pyspark_ckpt.history.captures import Capture
from pyspark_ckpt.history.frames import as_frame
from pyspark_ckpt.history.history_frame import History
from pyspark_ckpt.history.log import HistoryEntry
from pyspark_ckpt.live.run_states import LiveStates
from pyspark_ckpt.live.states import LiveState
from pyspark_ckpt.live.view import QueryView, watch
from pyspark_ckpt.operator.capture.orders import CaptureFiles
from pyspark_ckpt.operator.descriptor import (
    CaptureOrder,
    decode_runtime,
    encode_runtime,
)
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.entries_frame import as_spark_frame
from pyspark_ckpt.query.session_errors import says_that_session_ended
from pyspark_ckpt.query.stopping.failure import not_without_session
from pyspark_ckpt.restarting.turn import Turn
from pyspark_ckpt.settings import RUNTIME_KEY
from pyspark_ckpt.spark.query import change_conf, java_query, progress_since
from pyspark_ckpt.storage.retrying import RetryingStorage


@says_that_session_ended
class ObservedQuery(StreamingQuery):
    """The part of a :class:`CheckpointedQuery` that only looks at the query."""

    def __init__(
        self,
        spark: SparkSession,
        query: StreamingQuery,
        coordinator: CheckpointCoordinator,
        restore: Restore | None = None,
    ) -> None:
        # Without `super().__init__`: it is for classic sessions, and this class passes calls on.
        self._query = query
        self._spark = spark
        self._restore = restore
        self._coordinator = coordinator
        self._is_restarting = False
        self._turn = Turn(coordinator.files.query_id)

    @property
    def _jsq(self) -> Any:
        """The JVM's query of a classic session, for what PySpark's class may add."""
        return java_query(self._query)

    @property
    def id(self) -> str:
        """The query's id, which it keeps when it is started again; as ``StreamingQuery.id``."""
        return self._coordinator.files.query_id

    @property
    def runId(self) -> str:
        """The id of this run of the query; as ``StreamingQuery.runId``."""
        return self._coordinator.run_id

    def capture(self, epochs: int | Iterable[int], uid: str | None = None) -> Capture:
        """Have epochs of the running query captured, from the next one that begins.

        As :func:`pyspark_ckpt.capture`, but without another start. Over Spark Connect it takes
        effect at the next start.

        Parameters
        ----------
        epochs : int or iterable of int
            The numbers of the epochs. Those that have begun are not captured.
        uid : str, optional
            The operator; by default all operators of the query.

        Returns
        -------
        Capture
            Has :meth:`Capture.save`, which makes one file of the captures.

        Raises
        ------
        PlanError
            If an epoch is not a number of an epoch, or there is none.
        CorruptFileError
            If an earlier request is damaged.
        CheckpointAbortedError
            If the query is being restarted in place for longer than a checkpoint may take, or its
            session has ended.

        Examples
        --------
        >>> query.capture(range(100, 103), uid="count")
        Capture(epochs=[100, 101, 102])
        """
        with self._turn.taken_unless_in_batch(self._coordinator.timeout_s):
            self._coordinator.check_session()
            files = self._coordinator.files
            checkpoints = RetryingStorage(files.storage)
            capture = Capture(checkpoints, files.spark_log, epochs, uid)
            capture.request()
            orders = CaptureFiles(checkpoints).orders()
            change_conf(self._query, RUNTIME_KEY, partial(_capturing, orders))
            return capture

    @property
    def name(self) -> str:
        """The query's name, ``None`` if it has none; as ``StreamingQuery.name``."""
        return self._coordinator.files.query_name  # type: ignore[return-value]  # or `None`

    @property
    def isActive(self) -> bool:
        """Whether the query runs; as ``StreamingQuery.isActive``.

        Also while it is restarted in place, and until a stop with a savepoint has made it. A query
        ends with its session: after ``spark.stop()`` it does not run.
        """
        if self._why_session_ended() is not None:
            self._coordinator.session_error()
            return False
        run = self._query
        if run.isActive or self._is_restarting or self._coordinator.stops.is_saving:
            return True
        return self._query is not run and self._query.isActive  # a restart ended meanwhile

    @property
    def status(self) -> dict[str, Any]:
        """What the query does now; as ``StreamingQuery.status``."""
        error = self._coordinator.session_error()
        if error is not None:  # Spark's own query says that it waits for input
            message = f"Terminated with exception: {error}"
            return {"message": message, "isDataAvailable": False, "isTriggerActive": False}
        return self._query.status

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Spark's report of each of the last epochs; as ``StreamingQuery.recentProgress``."""
        return self._query.recentProgress

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Spark's report of the last epoch; as ``StreamingQuery.lastProgress``."""
        return self._query.lastProgress

    def explain(self, extended: bool = False) -> None:  # noqa: FBT001, FBT002  # PySpark's
        """Print the plan of the last epoch; as ``StreamingQuery.explain``.

        Parameters
        ----------
        extended : bool
            Whether to print the logical plans too.

        Examples
        --------
        >>> query.explain()
        == Physical Plan ==
        ...
        """
        self._query.explain(extended)

    @property
    def lastRestore(self) -> Restore | None:
        """What the query was restored from when its location was filled, or ``None``.

        Its ``needs_original`` says whether this query still needs the original.
        """
        return self._restore

    def checkpoints(self) -> DataFrame:
        """Return what this query can be restored from, and which attempts were aborted.

        Returns
        -------
        DataFrame
            A row for each retained checkpoint, and for each savepoint and each aborted attempt of
            this run: kind, status (``completed``, ``corrupt`` or ``aborted``), checkpoint_id,
            epoch, triggered_at, duration_ms, size_bytes, new_bytes (not in the retained checkpoint
            before it), files, phases_ms (of gathering: handles, sources, verification), requests
            (of the driver to the storage since the checkpoint before; empty on a disk, null if
            another driver took the checkpoint), path, reason.
            :func:`pyspark_ckpt.subtask_history` has each subtask's part.

        Raises
        ------
        OSError
            If the checkpoints cannot be listed.
        SessionEndedError
            If the session of the query has ended; :meth:`history` needs none.

        Examples
        --------
        >>> query.checkpoints().select("kind", "status").distinct().orderBy("kind").collect()
        [Row(kind='checkpoint', status='completed'), Row(kind='savepoint', status='completed')]
        """
        entries = self._coordinator.entries()
        why = self._why_session_ended()
        if why is not None:  # Spark would fail when the frame is read
            raise not_without_session(self.id, "checkpoints()", why)
        return as_spark_frame(self._spark, entries)

    @property
    def lastOperatorProgress(self) -> list[dict[str, Any]]:
        """What each operator of this library did in the newest committed epoch.

        A list like ``lastProgress``, with a dict per operator. ``None`` means unknown. Each dict
        has:

        * counts of the epoch: rows, keys touched, state reads, cache hits and writes, timers fired,
          entries expired, and local copies rebuilt;
        * the milliseconds to open the state, to process rows and to make the epoch durable;
        * the requests that its tasks sent to the storage, 0 on a disk;
        * the bytes of each subtask's state;
        * the number of keys and timers, and the entries and bytes of each state, exact or estimated
          (``isEstimated``);
        * the lag of the watermark, late rows, and the age of the last checkpoint at the epoch's
          end.

        The call reads Spark's state store, with a small Spark job if there are many subtasks.
        """
        return self._coordinator.progress.last()

    @property
    def recentOperatorProgress(self) -> list[dict[str, Any]]:
        """What each operator did in the last epochs of this run, oldest first; up to 100 epochs.

        As :attr:`lastOperatorProgress`, with a dict per epoch and operator. Each call reads the
        epochs since the call before. Call it at least every 100 epochs to miss none.
        """
        return self._coordinator.progress.recent()

    @property
    def metricsReporters(self) -> dict[str, str]:
        """Where each reporter of ``spark.ckpt.metrics.reporters`` can be found, by its name.

        For a reporter that could not be started, such as at a port in use, it says why.
        """
        return self._coordinator.metrics_reporters

    def ui(self, port: int = 0, host: str = LOOPBACK) -> Console:
        """Serve the console's pages about this query in a process of its own.

        It needs the extra ``ui``, reads the query's directories and asks nothing of the query. The
        process has the lowest priority, and ends with the driver.

        Parameters
        ----------
        port : int
            The port; 0 takes any free one.
        host : str
            Where to listen; elsewhere than on loopback, the address has a token.

        Returns
        -------
        Console
            Has its `url`, and ``close()``.

        Raises
        ------
        ConfigurationError, OSError
            If the extra is not installed, or the port is in use.

        Examples
        --------
        >>> query.ui().close()
        """
        return open_console(self._coordinator.directory.url, host=host, port=port)

    def state(self, operator: str, name: str) -> LiveState:
        """Return one state of the running query, to read it at the newest committed epoch.

        Parameters
        ----------
        operator : str
            The operator's uid.
        name : str
            The name of the state.

        Returns
        -------
        LiveState
            Has ``get``, ``to_pandas`` and ``to_arrow``. The query is neither stopped nor waits. It
            continues with the query when that is restarted in place.

        Raises
        ------
        StateUseError
            If there is no such operator or state.

        Examples
        --------
        >>> query.state("count", "count").get("ada").value
        {'n': 2}
        """
        return LiveState(self._states_after, operator, name)

    def _states_after(self, ended: LiveStates | None) -> LiveStates:  # noqa: ARG002  # see there
        """Return the states of the run after another one; as :class:`LiveState` wants it."""
        return self._coordinator.live

    def history(self) -> History:
        """Return the checkpoints, savepoints and aborted attempts of this query for pandas.

        Returns
        -------
        History
            The rows of :meth:`checkpoints` as :func:`pyspark_ckpt.history` has them. Its ``plot()``
            draws the checkpoints, if the extra ``plot`` is installed.

        Raises
        ------
        OSError
            If the checkpoints cannot be listed.

        Examples
        --------
        >>> history = query.history()
        >>> history["status"].unique().tolist()
        ['completed']
        """
        return History(as_frame(self._coordinator.entries()))

    def watch(self, refresh_s: float = 2.0) -> None:
        """Show the query while it runs: its newest epochs, checkpoints and savepoints.

        A notebook draws the view in place; elsewhere it is printed. The call returns when the query
        ends, or when you interrupt it. The query then continues.

        Parameters
        ----------
        refresh_s : float
            Seconds between two drawings.

        Examples
        --------
        >>> query.stop()
        >>> query.watch()
        query ...: ended
        ...
        """
        name = self.name or self.id
        watch(self._view(), f"query {name}", lambda: self.isActive, refresh_s)

    def _repr_html_(self) -> str:
        return self._view().read().html(f"Query {self.name or self.id}")

    def _view(self) -> QueryView:
        return QueryView(self._facts, self._progress_since, self._entries)

    # Of the run that there is: the query may be restarted in place while it is watched.
    def _progress_since(self, epoch: int | None) -> list[dict[str, Any]]:
        try:
            return progress_since(self._query, epoch)
        except Exception:
            if self._why_session_ended() is None:
                raise
            return []  # the view still has the checkpoints

    def _why_session_ended(self) -> str | None:
        return self._coordinator.why_session_ended()

    def _entries(self) -> list[HistoryEntry]:
        return self._coordinator.entries()

    def _facts(self) -> dict[str, object]:
        restore = self._restore
        return {
            "id": self.id,
            "state": "running" if self.isActive else "ended",
            "directory": self._coordinator.directory.url,
            "restored from": None if restore is None else f"{restore.path}, epoch {restore.epoch}",
            "failure": self._coordinator.failure,
            **{f"metrics: {name}": at for name, at in self.metricsReporters.items()},
        }


def _capturing(orders: tuple[CaptureOrder, ...], text: str) -> str:
    """Return what the tasks of a query get, with other epochs that are captured."""
    runtime = decode_runtime(text, "")
    captures = msgspec.structs.replace(runtime.captures, orders=orders)
    return encode_runtime(msgspec.structs.replace(runtime, captures=captures))
