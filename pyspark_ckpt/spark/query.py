"""Stopping a query between two epochs, waiting for its input, its idleness and its reports.

Driver only.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.clock import ms_of_text, now_ms
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.plan.streaming_row import OUR_NODE
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.state_files import OUR_NAME, operator_name, partitions_without

logger = library_logger(__name__)

_POLL_SECONDS = 0.05
_PAUSE_SECONDS = 10.0


def java_query(query: StreamingQuery) -> Any:
    """Return the JVM's object of a query, which PySpark's ``StreamingQuery`` is made of."""
    return query._jsq


def change_conf(query: StreamingQuery, key: str, change: Callable[[str], str]) -> bool:
    """Change a key of the conf that only a running query has; its next epoch has the new value.

    The result says whether the key was changed, because a client of Spark Connect cannot reach the
    session of the query.
    """
    java = getattr(query, "_jsq", None)
    if java is None:
        return False
    conf = java.streamingQuery().sparkSessionForStream().conf()
    conf.set(key, change(str(conf.get(key))))
    return True


def progress_since(query: StreamingQuery, epoch: int | None) -> list[dict[str, Any]]:
    """Return Spark's reports of the epochs after an epoch, oldest first, as far as it keeps them.

    Reports that Spark makes while it is idle are left out. Reports of earlier epochs are not
    fetched from the JVM.
    """
    found: list[dict[str, Any]] = []
    java = getattr(query, "_jsq", None)
    reports: Any = query.recentProgress if java is None else java.recentProgress()
    for number in range(len(reports) - 1, -1, -1):
        report = reports[number]
        fields: Any = report if isinstance(report, dict) else json.loads(report.json())
        if epoch is not None and fields["batchId"] <= epoch:
            break
        if "addBatch" in fields["durationMs"]:
            found.append(fields)
    return found[::-1]


def stop_between_epochs(spark: SparkSession, query: StreamingQuery, timeout_ms: int) -> None:
    """Stop a query when the epoch in progress is committed; no other epoch starts.

    ``StreamingQuery.stop`` interrupts an epoch at any point, perhaps after its output reached the
    sink and before it was committed. Spark's loop reads its state after each epoch. So this
    function sets that state and does not interrupt the epoch. A Spark Connect client cannot do
    that, so there the epoch is interrupted, and the caller runs it once more.

    If the epoch is not committed within `timeout_ms`, it is interrupted as by ``stop``.
    """
    if not session_of(spark).has_jvm:
        _await_pause(query, min(timeout_ms / 1000, _PAUSE_SECONDS))
    elif query.isActive:
        try:
            end_after_epoch(spark, query)
        except Py4JError:
            logger.warning(
                "query %s: cannot stop it after an epoch, so its last epoch may be interrupted",
                query.id,
                exc_info=True,
            )
        deadline = time.monotonic() + timeout_ms / 1000
        while query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    query.stop()


def ended_within(query: StreamingQuery, seconds: float) -> bool:
    """Return whether a query has ended within a time, its last epoch included.

    Spark calls a query terminated as soon as it begins no more epochs, while one may be in
    progress (:func:`end_after_epoch`).
    """
    if not query.awaitTermination(seconds):  # type: ignore[arg-type]  # floats, too
        return False
    try:
        is_in_epoch = bool(query.status["isTriggerActive"])
    except Exception:  # Spark itself has ended
        return True
    if is_in_epoch:
        time.sleep(_POLL_SECONDS)
    return not is_in_epoch


def _await_pause(query: StreamingQuery, seconds: float) -> None:
    """Wait a moment for the epoch in progress, so that stopping seldom interrupts it."""
    deadline = time.monotonic() + seconds
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def end_after_epoch(spark: SparkSession, query: StreamingQuery) -> None:
    """Tell Spark to start no more epochs of a query; returns at once.

    ``Py4JError`` is raised if this version of Spark keeps its state in another way.
    """
    state = query._jsq.streamingQuery().state()
    state.set(_terminated_state(spark, state.get()))


def _terminated_state(spark: SparkSession, state: Any) -> Any:
    """Return Spark's object for the state of an ended query, from the package of `state`."""
    package = state.getClass().getName().rpartition(".")[0]
    java: Any = spark._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    found = java.java.lang.Class.forName(f"{package}.TERMINATED$", True, loader)  # noqa: FBT003
    return found.getField("MODULE$").get(None)


def await_input(query: StreamingQuery) -> None:
    """Wait until a query that runs epochs all the time has processed the input that is there now.

    Spark's ``processAllAvailable`` waits for a trigger that finds nothing to do. Processing-time
    timers give every trigger an epoch to run. So this function waits for an epoch without input
    whose trigger began after the call, or for a trigger that finds nothing.
    """
    # A trigger that is under way may have looked for input before it came.
    triggers = 2 if query.status["isTriggerActive"] else 1
    idle = _IdleTriggers(query, triggers)
    last = _identity(query.lastProgress)
    while query.isActive:
        report = query.lastProgress
        if _identity(report) != last:
            last, triggers = _identity(report), triggers - 1
            if triggers <= 0 and not _has_input(report):
                return
        if idle.have_passed():
            return
        time.sleep(_POLL_SECONDS)
    query.processAllAvailable()  # raises what ended the query


class _IdleTriggers:
    """Counts the triggers of a query that find nothing to do, which Spark seldom reports."""

    def __init__(self, query: StreamingQuery, wanted: int) -> None:
        java = getattr(query, "_jsq", None)
        self._left = wanted
        self._execution = None if java is None else java.streamingQuery()
        self._watch()

    def have_passed(self) -> bool:
        """Return whether so many triggers found nothing."""
        try:
            if self._execution is not None and self._execution.noNewData():
                self._left -= 1
                self._watch()
        except (Py4JError, TypeError) as exc:
            self._give_up(exc)
        return self._left <= 0

    def _watch(self) -> None:
        """Have Spark say when the next trigger finds nothing, as ``processAllAvailable`` does."""
        if self._execution is not None:
            try:
                getattr(self._execution, "noNewData_$eq")(False)  # noqa: FBT003  # as in Scala
            except (Py4JError, TypeError) as exc:
                self._give_up(exc)

    def _give_up(self, exc: Exception) -> None:
        logger.debug("cannot see which triggers find nothing: %s", exc)
        self._execution = None


def _identity(report: Any) -> tuple[Any, ...] | None:
    """Return what distinguishes a report from the others of its run."""
    return None if report is None else (report["batchId"], report["timestamp"])


def _has_input(report: Any) -> bool:
    return any(source["startOffset"] != source["endOffset"] for source in report["sources"])


def idle_ms(query: StreamingQuery) -> float:
    """Return for how long a query has been waiting for input: 0 while it has input.

    Call it on the driver. It is infinite if the query was stopped, or if Spark has reported that
    there is no input. By default Spark reports this ten seconds after the last epoch.
    """
    if not query.isActive:
        return math.inf
    last = query.lastProgress
    if query.status["isDataAvailable"] or last is None:
        return 0
    durations = last["durationMs"]
    if "addBatch" not in durations:  # no epoch
        return math.inf
    since_ms = now_ms() - ms_of_text(last["timestamp"])
    return max(0.0, since_ms - float(durations["triggerExecution"]))


_COMPUTED = "numStateStoreInstances"
"""Spark's metric of a node: how many partitions have computed their state."""


def jobs_begun(session: SparkSession) -> int | None:
    """Return how many jobs Spark has begun for all its users, ``None`` if it does not say."""
    if not session_of(session).has_jvm:
        return None
    try:
        return int(session.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
    except (Py4JError, AttributeError) as exc:
        logger.debug("cannot see how many jobs Spark has begun: %s", exc)
        return None


class ComputedStates:
    """Knows whether the actions of a ``foreachBatch`` function computed all state of an epoch.

    Spark commits the epoch when the function returns, whatever it computed. An action over some
    rows only, such as ``take``, leaves the state of other partitions out of date for good.
    """

    def __init__(self) -> None:
        self._places: list[int] = []

    def missing(
        self,
        session: SparkSession,
        query_id: str,
        epoch: int,
        log: SparkLog,
        jobs_before: int | None,
    ) -> int:
        """Return of how many subtasks of an operator the state was not computed.

        Called on the driver before the function returns. Spark's plan counts the tasks that have
        computed state. Tasks of several jobs may be of one subtask, so only the files of the state
        stores say whose state there is. They are listed, too, where the plan cannot be seen: over
        Spark Connect, where only the server has it, and if Spark keeps it in another way.

        `jobs_before` is what ``jobs_begun`` returned before the function was called.
        """
        too_few = self._in_plan(session, query_id)
        if too_few:
            return too_few
        if too_few == 0 and jobs_before is not None and jobs_begun(session) == jobs_before + 1:
            return 0  # spares a list per subtask, which object stores charge for
        return _in_files(log, epoch)

    def _in_plan(self, session: SparkSession, query_id: str) -> int | None:
        """Return how many tasks too few computed state, ``None`` if the plan cannot be seen."""
        if not session_of(session).has_jvm:
            return None
        try:
            shared: Any = session._jsparkSession.sharedState()
            queries = shared.activeStreamingQueries()
            java_id = getattr(session._jvm, "java.util.UUID").fromString(query_id)
            run = queries.get(java_id)
            return max(map(_not_computed, self._operators(run.lastExecution().executedPlan())))
        except (Py4JError, TypeError, AttributeError, ValueError) as exc:
            logger.debug("query %s: cannot see which state was computed: %s", query_id, exc)
            return None

    def _operators(self, plan: Any) -> list[Any]:
        """Return the operators; a call for each, as their places stay from epoch to epoch."""
        found = [plan.apply(place) for place in self._places]
        if found and all(node is not None and node.nodeName() == OUR_NODE for node in found):
            return found
        nodes: list[Any] = []
        while (node := plan.apply(len(nodes))) is not None:
            nodes.append(node)
        self._places = [n for n, each in enumerate(nodes) if each.nodeName() == OUR_NODE]
        return [nodes[place] for place in self._places]


def _in_files(log: SparkLog, epoch: int) -> int:
    """Return how many partitions of an operator have no file of the epoch's state.

    A run of the epoch that failed may have left one. The next epoch then begins with it, and it is
    of the same rows.
    """
    parallelism = log.offsets_entry(epoch).parallelism
    if parallelism is None:
        return 0
    version = epoch + 1
    return max(
        (
            len(partitions_without(log.storage, operator_id, version, parallelism))
            for operator_id in log.operator_ids()
            if operator_name(log.storage, operator_id) in (OUR_NAME, None)
        ),
        default=0,
    )


def _not_computed(node: Any) -> int:
    partitions = int(node.stateInfo().get().numPartitions())
    return max(partitions - int(node.metrics().apply(_COMPUTED).value()), 0)
