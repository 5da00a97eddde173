"""Conf for one query, set in the query's own sessions; the user's session never has it.

Only this module depends on how Spark starts a query. Beyond Spark's API it relies on this
(PySpark 4.0 to 4.3, classic session):

* ``SparkSession.cloneSession()`` copies conf, temporary views and functions.
* A query clones its session when it is made. It reads no conf from this clone,
  ``sparkSessionForStream``, before all listeners of the session have returned from
  ``QueryStartedEvent``. Spark posts that event in the query's own thread, with the query in
  ``streams``, before ``start()`` returns.
* ``StreamExecution.resolvedCheckpointRoot()`` is the query's location.
* ``MicroBatchExecution.watermarkPropagator`` gives each operator its watermark. It is made with
  the query, from the conf of the user's session, and is not used before that event is over. Its
  companion object makes a new one from the query's own conf.
* ``Dataset.ofRows`` makes a DataFrame of any session from an analyzed plan; a start does as much.
* ``SQLConf.withExistingConf`` lets the calling thread check a plan with another conf; other threads
  are not affected. It requires Py4J's pinned threads, PySpark's default.

If a version of Spark differs, the start fails with an error that says so, and the query is stopped
(docs/design/plans.md).

:mod:`pyspark_ckpt.spark.own_session` sets it only in a separate session of the query.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from py4j.clientserver import ClientServer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.errors import CkptError, ConfigurationError, NotBuiltYetError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import SHUFFLE_PARTITIONS, WATERMARK_PER_OPERATOR
from pyspark_ckpt.spark.callback_thread import end_callback_thread, record_callback_thread
from pyspark_ckpt.spark.query import end_after_epoch
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage

logger = library_logger(__name__)
_MICRO_BATCHES = "MicroBatchExecution"

_given_up: list[_ConfAtStart] = []
"""Of starts that were interrupted before their query came, which may still come."""

_OPERATION_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_CORRECTNESS_CHECK = "spark.sql.streaming.statefulOperator.checkCorrectness.enabled"
_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_EMPTY_EPOCHS = "spark.sql.streaming.noDataMicroBatches.enabled"

SMALL_BATCHES = {"spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20)}
"""With it a task that moves entries does not hold 10,000 large ones; PySpark 4.0 does not know it.
"""

READ_BY_PLAN_CHECK = frozenset(
    {_OPERATION_CHECK, WATERMARK_PER_OPERATOR, _CORRECTNESS_CHECK, _ENCODING}
)
"""Settings that Spark's check of a plan reads, before the query has a session."""


def own_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a copy of a session, with its conf, views and functions, and with this conf."""
    return session_of(spark).copy(conf)


def of_own_session(df: DataFrame, conf: Mapping[str, str] = MappingProxyType({})) -> DataFrame:
    """Return a DataFrame of a classic session as one of a copy of that session, with this conf.

    A query of it is not in the user's ``spark.streams``, whose ``awaitAnyTermination`` and
    listeners do not see it.
    """
    session = own_session(df.sparkSession, conf)
    java: Any = session._jvm
    plan = df._jdf.queryExecution().analyzed()
    dataset = java.org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)


def start_with_conf(
    spark: SparkSession,
    location: Storage,
    conf: Mapping[str, str],
    start: Callable[[], StreamingQuery],
) -> StreamingQuery:
    """Start Spark's query with additional conf that only this query has.

    The conf of `spark` stays as it is. `start` calls Spark's start. If ``NotBuiltYetError`` is
    raised because this version of Spark starts queries in another way, the query was stopped.
    """
    check_conf = {
        key: value
        for key, value in conf.items()
        if key in READ_BY_PLAN_CHECK and spark.conf.get(key) != value
    }
    for earlier in [each for each in _given_up if each.is_at(location)]:
        earlier.withdraw()  # it would end the query of this start
    held = _ConfAtStart(spark, location, conf)
    spark.streams.addListener(held)
    try:
        query = _checked_by(spark, check_conf, start) if check_conf else start()
        spark.streams.removeListener(held)
    except BaseException as exc:
        # What interrupts this thread does not end Spark's start, whose event may come later.
        may_come = not isinstance(exc, Exception)
        in_another_thread(partial(held.give_up, query_may_come=may_come), not_stopped(location.url))
        raise
    held.let_go()
    if not held.is_set:
        query.stop()
        raise NotBuiltYetError(
            f"query {query.id} was stopped: PySpark {spark.version} starts queries in another way "
            "than PySpark 4.0 to 4.3, and the query did not get its settings "
            f"({held.error or 'no event'}): use one of these versions"
        ) from held.error
    return query


def start_in_session(
    session: SparkSession, conf: Mapping[str, str], start: Callable[[], StreamingQuery]
) -> StreamingQuery:
    """Start Spark's query in a session that only this query has, which keeps the conf."""
    for key, value in conf.items():
        session.conf.set(key, value)
    return start()


def not_stopped(location: str) -> str:
    """Return what the log says of a query at a location that a failed start leaves running."""
    return (
        f"{location}: a query whose start failed could not be stopped, and may run on without "
        "checkpoints: look for it in spark.streams.active, and stop it"
    )


def in_another_thread(call: Callable[[], None], otherwise: str) -> None:
    """Make a call after an error, perhaps an interrupt, and wait for it.

    A signal in the middle of a call to the JVM leaves an answer in the connection of its thread,
    which the next call of that thread would take for its own.

    An error of `call` is logged with `otherwise`, because the caller raises the first error.
    """

    def run() -> None:
        try:
            call()
        except Exception:
            logger.exception(otherwise)

    thread = threading.Thread(target=run, name="pyspark_ckpt after an error", daemon=True)
    thread.start()
    thread.join()


_OF_JVM = "_jlistenerobj"
"""Where PySpark 4.0 to 4.3 keeps the JVM's listener of one of Python."""


class _ConfAtStart(StreamingQueryListener):
    """Sets the conf of one query's own session before the query reads it.

    If the start was given up, it ends the query instead, which nobody else knows.
    """

    def __init__(self, spark: SparkSession, location: Storage, conf: Mapping[str, str]) -> None:
        self._spark = spark
        self._location = location
        self._conf = conf
        self._guard = threading.Lock()
        self._query: StreamingQuery | None = None
        self._is_given_up = False
        self.is_set = False
        self.error: Exception | None = None

    def give_up(self, *, query_may_come: bool) -> None:
        """Stop the query; if it has not come yet but may, it ends before its first epoch."""
        with self._guard:
            self._is_given_up, query = True, self._query
        if query is None and query_may_come:
            _given_up.append(self)
            return
        try:
            if query is not None:
                run_id = query.runId
                query.stop()
                end_callback_thread(run_id)
        finally:
            self.withdraw()

    def is_at(self, location: Storage) -> bool:
        """Return whether it waits for the query of a location."""
        return self._location.url == location.url

    def withdraw(self) -> None:
        """Wait for no query any more."""
        if self in _given_up:
            _given_up.remove(self)
        self._spark.streams.removeListener(self)
        self.let_go()

    def let_go(self) -> None:
        """Hold nothing of the JVM any more, once it is removed.

        The JVM's listener holds this object, so neither language could collect what both hold: of
        each start the query, with its plans.
        """
        self._query = None
        vars(self).pop(_OF_JVM, None)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Set the conf; called in the thread of each query of the session that starts."""
        try:
            query = self._spark.streams.get(str(event.id))
            if query is None or not self._is_at_location(query):
                return
            record_callback_thread(self._spark, query)
            with self._guard:
                self._query, is_given_up = query, self._is_given_up
            if is_given_up:
                end_after_epoch(self._spark, query)
                self.withdraw()
            else:
                self._set_conf(query)
        except Exception as exc:  # Spark would only log it
            self.error = exc

    def _is_at_location(self, query: StreamingQuery) -> bool:
        root = str(_execution(query).resolvedCheckpointRoot())
        try:
            storage = open_storage(root)
            if storage.url == self._location.url:  # a temporary one may be deleted by now
                return True
            if isinstance(storage, LocalStorage) and isinstance(self._location, LocalStorage):
                return storage.root.samefile(self._location.root)
        except (CkptError, FileNotFoundError):  # another query, on another file system
            pass
        return False

    def _set_conf(self, query: StreamingQuery) -> None:
        try:
            own = _execution(query).sparkSessionForStream()
            for key, value in self._conf.items():
                own.conf().set(key, value)
            if WATERMARK_PER_OPERATOR in self._conf:
                _propagate_watermarks(self._spark, _execution(query), own.sessionState().conf())
        except Exception:
            end_after_epoch(self._spark, query)  # before its first epoch
            raise
        self.is_set = True

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Nothing to do."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing to do."""


def _execution(query: StreamingQuery) -> Any:
    return query._jsq.streamingQuery()


def _propagate_watermarks(spark: SparkSession, execution: Any, conf: Any) -> None:
    """Make a new query propagate watermarks according to its own conf."""
    java: Any = spark._jvm
    owner = execution.getClass()
    while owner.getSimpleName() != _MICRO_BATCHES:  # a subclass tracks progress in the background
        owner = owner.getSuperclass()
    field = owner.getDeclaredField("watermarkPropagator")
    kind = field.getType()
    companion = java.java.lang.Class.forName(f"{kind.getName()}$", True, kind.getClassLoader())  # noqa: FBT003
    field.setAccessible(True)
    field.set(execution, companion.getField("MODULE$").get(None).apply(conf))


def _checked_by(
    spark: SparkSession, conf: Mapping[str, str], start: Callable[[], StreamingQuery]
) -> StreamingQuery:
    """Call `start` while Spark checks plans of this thread with another conf."""
    if not isinstance(spark.sparkContext._gateway, ClientServer):
        raise ConfigurationError(
            f"the query needs {', '.join(conf)} while Spark checks its plan, and that requires "
            "Py4J's pinned threads: unset PYSPARK_PIN_THREAD, or set it to true"
        )
    java: Any = spark._jvm
    own = spark._jsparkSession.sessionState().conf().clone()
    for key, value in conf.items():
        own.setConfString(key, value)
    call = _Call(start)
    java.org.apache.spark.sql.internal.SQLConf.withExistingConf(own, call)
    return call.outcome()


class _Call:
    """A function that the JVM calls back in the same thread."""

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None

    def apply(self) -> None:
        """Call the function and keep its outcome, because the JVM would lose a Python error."""
        try:
            self._query = self._start()
        except BaseException as exc:  # raised again by `outcome`
            self._error = exc

    def outcome(self) -> StreamingQuery:
        """Return or raise what the function returned or raised; hold it no longer.

        The JVM may hold this object for as long as it likes.
        """
        query, error = self._query, self._error
        del self._start, self._query, self._error
        if error is not None:
            raise error
        assert query is not None
        return query

    class Java:  # Py4J reads it
        implements = ("scala.Function0",)


def conf_of_start(
    operators: Sequence[OperatorDescriptor],
    *,
    ends_by_itself: bool,
    one_watermark: bool = False,
    passed_watermarks: bool = False,
    follows_aggregation: bool = False,
) -> dict[str, str]:
    """Return the conf that a query with these operators starts with.

    `one_watermark` says that Spark's own operators follow and all operators share one watermark,
    and `passed_watermarks` that they follow and each operator has a separate watermark. With
    `follows_aggregation`, the parts of the plan were checked as Spark checks them.
    """
    # A session may ask for Avro. Spark's own operators support Avro; this library does not.
    conf = {_ENCODING: "unsaferow"}
    if operators:
        conf[SHUFFLE_PARTITIONS] = str(operators[0].parallelism)
    if passed_watermarks:
        # Spark does not know that these operators pass their watermark to the next operator.
        conf[_CORRECTNESS_CHECK] = "false"
    if one_watermark:
        # Spark gives no watermark to an operator after applyInPandasWithState, so windows there
        # would never close. The plan was checked: no operator drops rows by the common watermark.
        conf[WATERMARK_PER_OPERATOR] = "false"
        conf[_CORRECTNESS_CHECK] = "false"
    if follows_aggregation:
        # Spark refuses an aggregation before applyInPandasWithState, and runs it all the same.
        conf[_OPERATION_CHECK] = "false"
    if len(operators) > 1:
        # Spark refuses a second applyInPandasWithState, because it cannot give it a watermark. With
        # one watermark for the whole query both run.
        conf[_OPERATION_CHECK] = "false"
        if not passed_watermarks:
            conf[WATERMARK_PER_OPERATOR] = "false"
    has_processing_time = any(
        operator.time_mode == TimeMode.PROCESSING_TIME for operator in operators
    )
    if ends_by_itself and has_processing_time:
        # Spark would run empty epochs for processing-time timers without end.
        conf[_EMPTY_EPOCHS] = "false"
    return conf
