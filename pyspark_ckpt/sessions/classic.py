"""A classic session: the driver of its application is this process, and its JVM can be asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ckpt.log_fields import library_logger

SESSION_STOPPED = "its Spark session was stopped"
"""Why a query has ended that was not stopped itself."""

_HADOOP = "org.apache.hadoop.fs"
_STRING = "java.lang.String"
_TRIES = 2
_LOCAL_PROPERTIES = (
    "spark.job.description",
    "spark.job.interruptOnCancel",
    "spark.scheduler.pool",
)

_BETWEEN = "\0"
"""Between settings that are read in one call. A setting that has it itself is read on its own."""

_making_session = threading.Lock()
logger = library_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClassicSession:
    """A session of an application whose driver is this process; as ``Session``."""

    spark: SparkSession
    has_jvm = True
    outlives_client = False

    @property
    def id(self) -> str:
        return self.spark.sparkContext.applicationId

    def why_ended(self) -> str | None:
        # ``spark.stop()`` ends all sessions of the driver, which share one application.
        for _ in range(_TRIES):
            context: Any = self.spark.sparkContext._jsc
            if context is None:
                return SESSION_STOPPED
            try:
                return SESSION_STOPPED if context.sc().isStopped() else None
            except (Py4JError, OSError) as exc:
                # A connection that was interrupted fails once, and the next call makes another.
                last: Exception = exc
        logger.debug("no answer of the JVM: %s", last)
        return "the JVM of its Spark application has ended"

    def keep_in_use(self) -> None:
        """Do nothing: an application closes no sessions."""

    def release_ended(self) -> None:
        """Do nothing: all sessions end with the application."""

    def can_answer_for(self, other: SparkSession) -> bool:
        del other
        return True

    def is_active(self, query_id: str) -> bool:
        jvm: Any = self.spark._jvm
        active = self.spark._jsparkSession.sharedState().activeStreamingQueries()
        return bool(active.containsKey(getattr(jvm, "java.util.UUID").fromString(query_id)))

    def runs_on_server(self, query_id: str) -> bool:
        del query_id
        return False

    def settings(self) -> dict[str, str]:
        # PySpark's own ``getAll`` asks the JVM for each of them, and then for one more, which
        # fails; that took 25 ms, several times at each start of a query.
        java: Any = self.spark._jvm
        entries = self.spark.conf._jconf.getAllAsJava()
        values_in_java = entries.__getattr__("values")()  # Py4J's own `values` asks for each
        keys, values = (
            getattr(java, _STRING).join(_BETWEEN, part).split(_BETWEEN)
            for part in (entries.keySet(), values_in_java)
        )
        if not len(keys) == len(values) == entries.size():
            return self.spark.conf.getAll
        return dict(zip(keys, values, strict=True))

    def setting_of_application(self, key: str) -> str | None:
        conf: Any = self.spark.sparkContext._conf  # PySpark's getConf copies all of it
        return conf.get(key, None)  # type: ignore[no-any-return]

    def local_cores(self) -> int | None:
        context = self.spark.sparkContext
        master = context.master or ""
        is_local = master == "local" or master.startswith("local[")
        return context.defaultParallelism if is_local else None

    def tasks_at_once(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    def copy(self, conf: Mapping[str, str]) -> SparkSession:
        session = python_session(self.spark, self.spark._jsparkSession.cloneSession())
        return _with(session, conf)

    def session_for_query(self) -> SparkSession | None:
        return None

    def new_session(self, takes: Callable[[str], bool]) -> SparkSession:
        conf = {key: value for key, value in self.settings().items() if takes(key)}
        return _with(python_session(self.spark, self.spark._jsparkSession.newSession()), conf)

    def stream_writer(self, df: DataFrame) -> DataStreamWriter:
        return DataStreamWriter(df)

    @contextmanager
    def tagged(self, tag: str, what: str, pool: str | None) -> Iterator[None]:
        context = self.spark.sparkContext
        before = {name: context.getLocalProperty(name) for name in _LOCAL_PROPERTIES}
        context.addJobTag(tag)
        context.setJobDescription(f"pyspark_ckpt: {what}")
        context.setInterruptOnCancel(True)  # nothing else ends a task that hangs
        if pool is not None:
            context.setLocalProperty("spark.scheduler.pool", pool)
        try:
            yield
        finally:
            if not _is_stopped(context):  # else the call's own error says it
                context.removeJobTag(tag)
                for name, value in before.items():
                    context.setLocalProperty(name, value)  # type: ignore[arg-type]  # or unsets it

    @contextmanager
    def described(self, what: str) -> Iterator[None]:
        context = self.spark.sparkContext
        before = context.getLocalProperty("spark.job.description")
        context.setJobDescription(f"pyspark_ckpt: {what}")
        try:
            yield
        finally:
            if not _is_stopped(context):
                context.setJobDescription(before)  # type: ignore[arg-type]  # None unsets it

    def cancel_tagged(self, tag: str) -> None:
        self.spark.sparkContext.cancelJobsWithTag(tag)

    def tasks_of(self, tag: str) -> tuple[int, int]:
        context = self.spark.sparkContext
        # PySpark's tracker finds jobs by group only.
        with_tags = context._jsc.sc().statusTracker()
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(each) for each in with_tags.getJobIdsForTag(tag)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        known = [info for stage in stages if (info := tracker.getStageInfo(stage)) is not None]
        done = sum(info.numCompletedTasks for info in known)
        return done, sum(info.numTasks for info in known)

    def announce(self, key: str, text: str | None) -> None:
        _set(self.spark, key, text)
        self.spark.sparkContext.setLocalProperty(key, text)  # type: ignore[arg-type]  # None: unset

    def qualified(self, path: str, scheme: str | None) -> str:
        java: Any = self.spark._jvm
        file_systems = getattr(java, f"{_HADOOP}.FileSystem")
        conf = self.spark._jsparkSession.sessionState().newHadoopConf()
        default = str(file_systems.getDefaultUri(conf).toString())
        if scheme is not None and not default.startswith(f"{scheme}:"):
            return path
        is_local = default.startswith("file:")
        file_system = file_systems.getLocal(conf) if is_local else file_systems.get(conf)
        return str(file_system.makeQualified(getattr(java, f"{_HADOOP}.Path")(path)).toString())

    def new_temporary_directory(self) -> Path:
        java: Any = self.spark._jvm
        root = java.java.lang.System.getProperty("java.io.tmpdir")
        made = java.org.apache.spark.util.Utils.createTempDir(root, "temporary")
        return Path(str(made.getCanonicalPath()))

    def parts_of_table(self, name: str) -> list[str]:
        session: Any = self.spark._jsparkSession
        parts = session.sessionState().sqlParser().parseMultipartIdentifier(name)
        return [str(parts.apply(place)) for place in range(parts.size())]

    def default_table_path(self, database: str, table: str) -> str:
        java: Any = self.spark._jvm
        identifier = java.org.apache.spark.sql.catalyst.TableIdentifier(
            table, java.scala.Option.apply(database)
        )
        session: Any = self.spark._jsparkSession
        return str(session.sessionState().catalog().defaultTablePath(identifier).toString())


def _is_stopped(context: SparkContext) -> bool:
    """Return whether a context was stopped; calls of it then fail with errors of Python."""
    java: Any = context._jsc
    return java is None


def _set(spark: SparkSession, key: str, text: str | None) -> None:
    if text is None:
        spark.conf.unset(key)
    else:
        spark.conf.set(key, text)


def _with(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    for key, value in conf.items():
        session.conf.set(key, value)
    return session


def python_session(spark: SparkSession, java_session: Any) -> SparkSession:
    """Return a session of Spark's as a session of PySpark, in addition to that of the user.

    PySpark makes ``rdd.toDF()`` return frames of the session object that was made last. Afterwards
    it returns those of the same session as before.
    """
    with _making_session:
        before = getattr(RDD, "toDF", None)
        session = SparkSession(spark.sparkContext, java_session)
        if before is not None and _is_of(getattr(RDD, "toDF", None), session):
            RDD.toDF = before  # type: ignore[method-assign]
    return session


def _is_of(to_df: Any, session: SparkSession) -> bool:
    cells = getattr(to_df, "__closure__", None) or ()
    return any(cell.cell_contents is session for cell in cells)
