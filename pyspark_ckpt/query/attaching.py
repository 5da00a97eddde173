"""``attach``: takes up the checkpoints of a running query whose client has ended."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.errors import ConfigurationError, RestoreError
from pyspark_ckpt.operator.descriptor import decode_descriptor, encode_descriptor
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.query.stopping.drain import LastEpochs
from pyspark_ckpt.restarting.turn import note_run
from pyspark_ckpt.sessions import connect
from pyspark_ckpt.sessions.connect import (
    QueryRecord,
    forget_ended,
    keep_record,
    records_of,
    running,
)
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.storage.open import Storage, open_storage


@dataclass(frozen=True, slots=True)
class StartedQuery:
    """A query of this process, the user's session that it was started from, and its coordinator."""

    spark: SparkSession
    query: CheckpointedQuery
    coordinator: CheckpointCoordinator


_known: dict[str, StartedQuery] = {}
_guard = threading.Lock()
"""Guards `_known`, the queries of this process by id."""

_attaching = threading.Lock()
"""Held while a query gets a coordinator, because two of them would fence each other."""


def remember(
    started: StartedQuery, session: SparkSession, files: QueryFiles, settings: Settings
) -> None:
    """Keep what :func:`attach` needs for a query.

    Records of queries of this process that have ended are removed, unless another client continues
    the query. No other server is asked whether they have ended, because it may itself have ended,
    and PySpark waits minutes for its answer.
    """
    spark, query = started.spark, started.query
    with _guard:
        ended = {key: _known.pop(key) for key in [*_known] if _known[key].coordinator.has_ended}
        _known[query.id] = started
    if session_of(spark).has_jvm:
        return  # no other client comes
    for key, each in ended.items():
        if each.spark is spark and key != query.id:
            forget_ended(spark, key)
    record = QueryRecord(
        query_id=query.id,
        query_name=query.name,
        session_id=connect.id_of(session),
        location=files.spark_log.storage.url,
        checkpoint_location=files.checkpoint_location,
        checkpoints=files.storage.url,
        operators=tuple(map(encode_descriptor, files.operators.descriptors)),
        source_ids=tuple(files.source_ids),
        given_names=tuple(files.given_names),
        settings=settings,
    )
    keep_record(spark, record)


def former_run(query_id: str) -> CheckpointCoordinator | None:
    """Return the coordinator of the newest run of a query in this process, which may have ended."""
    with _guard:
        known = _known.get(query_id)
    return None if known is None else known.coordinator


def check_no_copy_runs(location: Storage, query_id: str | None) -> None:
    """Refuse a location whose copy runs in this process; Spark would end that run for this one.

    A copy of a location has the same query id, by which Spark knows its runs.
    """
    former = None if query_id is None else former_run(query_id)
    if former is not None and former.runs_elsewhere(location, former.files.query_id):
        other = former.files.spark_log.storage
        raise RestoreError(
            f"{location.url}: query {query_id} runs at {other.url}, and one of these locations is "
            "a copy of the other one. Spark runs a query once in an application. Stop the query at "
            f"{other.url} first, or start this one at a fresh checkpointLocation with "
            f"restoreFrom(a savepoint or chk-N of {location.url})"
        )


def check_name(spark: SparkSession, name: str | None, query_id: str | None) -> None:
    """Refuse a name that another running query of the session has, as a classic session does.

    A Spark Connect server compares no names, because each query runs in a separate session.
    """
    if name is None or session_of(spark).has_jvm:
        return
    for record in records_of(spark):
        is_another = record.query_id != query_id and record.query_name == name
        if is_another and running(spark, record) is not None:
            raise ConfigurationError(
                f"a query called {name!r} already runs in this session: {record.query_id} at "
                f"{record.location}. Give this query another queryName, or stop the other one: "
                "attach() returns it"
            )


@atexit.register
def _leave_all() -> None:
    """Warn of the queries that a server continues without this process."""
    for each in list(_known.values()):
        # Only what this process knows: PySpark's client no longer asks a server.
        session = session_of(each.spark)
        is_left = not each.coordinator.has_ended and not session.has_jvm
        if is_left and session.why_ended() is None:
            each.coordinator.state.leave()


def attach(spark: SparkSession, query: str) -> CheckpointedQuery:
    """Return a running query, and checkpoint it if nobody does.

    In the process that started the query, or attached it before, it returns that query. Over Spark
    Connect it takes up the checkpoints of a query whose client has ended. Between the end of that
    client and this call the query has no checkpoints, and loses nothing. The session has to be the
    query's: open it with ``remote("sc://host:15002/;session_id=...")``.

    End the earlier client first. If it still runs, the two clients fence each other.

    Parameters
    ----------
    spark : SparkSession
        The session that started the query; on a classic driver any session.
    query : str
        The query's id or name.

    Returns
    -------
    CheckpointedQuery
        The running query. After the end of the client that started it, ``stopWithSavepoint`` raises
        an error if it interrupts an epoch, and a drain is refused.

    Raises
    ------
    ConfigurationError
        If this session runs no such query of this library, or several of the name. Also if the
        server has closed the session.

    Examples
    --------
    >>> ckpt.attach(spark, query.id).id == query.id
    True
    """
    with _attaching:
        return _known_query(spark, query) or _taken_up(spark, query)


def _known_query(spark: SparkSession, query: str) -> CheckpointedQuery | None:
    """Return the running query of this process and server with an id or a name."""
    with _guard:
        named = [each for each in _known.values() if query in (each.query.id, each.query.name)]
    session = session_of(spark)
    named = [each for each in named if session.can_answer_for(each.spark)]
    active = [each for each in named if _runs(each.query)]
    own = [each for each in active if each.spark is spark]  # another session may have the name too
    found = [each.query for each in own or active]
    _check_is_one(query, (each.id for each in found))
    return found[0] if found else None


def _check_is_one(query: str, ids: Iterable[str]) -> None:
    found = sorted(ids)
    if len(found) > 1:
        raise ConfigurationError(
            f"{len(found)} running queries are called {query!r}: {', '.join(found)}. Attach one of "
            "them by its id"
        )


def _runs(query: CheckpointedQuery) -> bool:
    if not query.isActive:
        return False
    if query._is_between_runs:  # noqa: SLF001  # Spark would say that it does not
        return True
    try:
        return query._query.isActive  # noqa: SLF001  # as its server says
    except PySparkException as exc:
        if connect.is_unknown_session(exc):  # the server was started again
            return False
        raise


def _taken_up(spark: SparkSession, query: str) -> CheckpointedQuery:
    try:
        found = None if session_of(spark).has_jvm else _find_running(spark, query)
    except PySparkException as exc:
        if not connect.is_unknown_session(exc):
            raise
        raise ConfigurationError(
            f"the server has closed this session, so query {query!r} cannot be attached: open "
            "another session, and start the query again from its checkpointLocation"
        ) from exc
    if found is None:
        raise ConfigurationError(
            f"no query {query!r} of pyspark_ckpt runs in this session: start it again from its "
            "checkpointLocation, or open the session that it runs in, by its session_id"
        )
    return _attach(spark, *found)


def _find_running(
    spark: SparkSession, query: str
) -> tuple[SparkSession, StreamingQuery, QueryRecord] | None:
    """Return the running query with an id or a name, its session and its record."""
    fitting = [each for each in records_of(spark) if query in (each.query_id, each.query_name)]
    active = [(*found, each) for each in fitting if (found := running(spark, each)) is not None]
    _check_is_one(query, (record.query_id for *_, record in active))
    return active[0] if active else None


def _attach(
    spark: SparkSession, session: SparkSession, query: StreamingQuery, record: QueryRecord
) -> CheckpointedQuery:
    log = SparkLog(open_storage(record.location))
    files = QueryFiles(
        checkpoint_location=record.checkpoint_location,
        spark_log=log,
        storage=open_storage(record.checkpoints),
        query_id=record.query_id,
        query_name=record.query_name,
        backend_type=record.settings.backend_type,
        operators=StatefulOperators.of(map(decode_descriptor, record.operators)),
        source_ids=record.source_ids,
        given_names=record.given_names,
    )

    coordinator = CheckpointCoordinator(spark, query, files, record.settings, LastEpochs(log, None))
    coordinator.start()
    note_run(coordinator)
    attached = CheckpointedQuery(spark, query, coordinator)
    remember(StartedQuery(spark, attached, coordinator), session, files, record.settings)
    return attached
