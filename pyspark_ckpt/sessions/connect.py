"""What the library does on a Spark Connect session where a classic session has its JVM.

Nothing here imports the Connect client: a session brings its own classes.

A server continues a query without its client. The record that another client needs exists exactly
as long as the query can run. Its key does not begin with ``spark.``, so tasks do not get it.
"""

from __future__ import annotations

import atexit
import copy
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import wait
from contextlib import suppress
from functools import cache
from itertools import count
from queue import SimpleQueue
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, finalize

import msgspec
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.sessions.classic import SESSION_STOPPED
from pyspark_ckpt.settings import Settings

_LOCAL = re.compile(r"local(?:\[(\d+)(?:,.*)?\])?")
_AUTHORITY = re.compile(r"(?P<scheme>[^:/]+)://[^/]+")
_DEFAULT_FS = "spark.hadoop.fs.defaultFS"

_OWN_SERVER = "SPARK_LOCAL_REMOTE"
"""PySpark sets it in a process that started its own Connect server, with ``remote("local")``."""

_SESSION_ID = "session_id"
_TOUCHED_EVERY_S = 60.0
_RELEASED_WITHIN_S = 5.0

_COLLECTED_EVERY = 16
"""How many new sessions there are until those in cycles of references are looked for."""

_EXIT_HANDLERS = ("_on_exit", "_cleanup_ml_cache", "_cleanup_ml")
"""What a client registers for the end of the process; the name differs between versions."""

_REQUESTS = "ExecutePlanResponseReattachableIterator"
"""The class of PySpark's requests. In 4.0 and 4.1 all clients of a process share its threads."""

_clones: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Sessions that the library made, each with the user's session."""

_own_servers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The user's sessions of a server that this process started, each with the server's context."""

_touched_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

_ending: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
"""Sessions that a thread ends, or asks whether a query runs in them, to end them if not."""

_closed: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
"""Sessions of :data:`_clones` that were ended, of which one may still ask why."""

_ended_ids: dict[str, None] = {}
"""The last sessions that the library has ended, oldest first."""

_MOST_ENDED = 1000
_number_of_new = count(1)
_unused: SimpleQueue[_Unused] = SimpleQueue()  # the only queue that a finalizer may put into

_KEY = "pyspark_ckpt.query."


class _Unused(NamedTuple):
    """What is left of a session of the library that no object of this process refers to."""

    client: Any
    users: Any
    ours: str | None


def has_own_server() -> bool:
    """Return whether this process started the Connect server that it uses."""
    return _OWN_SERVER in os.environ


def qualified(spark: SparkSession, path: str, scheme: str | None = None) -> str:
    """Return the URL that the server makes of a path, or of a URL without an authority.

    `scheme` is ``None`` for a path. A URL whose scheme is not that of the default file system stays
    as it is. ``ConfigurationError`` is raised if the path is relative and the server has another
    working directory.
    """
    default = str(spark.conf.get(_DEFAULT_FS, None) or "file:")
    if scheme is not None:
        found = _AUTHORITY.match(default)
        if found is None or found["scheme"] != scheme:
            return path
        return f"{found.group()}/{path[len(scheme) + 1 :].lstrip('/')}"
    if not path.startswith("/") and not has_own_server():
        raise ConfigurationError(
            f"{path!r} is a relative path, and over Spark Connect the server has another working "
            "directory than this process: give an absolute path or a URL"
        )
    if default.startswith("file:"):
        return f"file:{os.path.abspath(path)}"  # noqa: PTH100  # links stay as they are
    return f"{default.rstrip('/')}/{path.lstrip('/')}"


def configured_cores(spark: SparkSession) -> int | None:
    """Return the cores that the server is configured to have, ``None`` if its conf does not say."""
    local = _LOCAL.fullmatch(master := str(spark.conf.get("spark.master", None) or ""))
    if local is not None:
        return int(local.group(1) or 1)
    if master.startswith("local["):  # all cores of its machine, or an expression
        return tasks_at_once(spark)
    return None


def tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks the server runs at once; runs a small job."""
    numbers = spark.range(1 << 12).select(F.spark_partition_id().alias("number"))
    return max(1, numbers.distinct().count())


def new_session(spark: SparkSession, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session of the same server, user and conf, whose conf is its own.

    It also has the views and functions of the given session with PySpark 4.1 and later.
    """
    source: Any = spark
    if can_clone(spark):
        session = source.cloneSession()
        _leave_open(session)
    else:
        session = _connected(source, None)
        given = spark.conf
        modifiable = {key: value for key, value in given.getAll.items() if given.isModifiable(key)}
        for key, value in modifiable.items():
            session.conf.set(key, value)
    for key, value in (conf or {}).items():
        session.conf.set(key, value)
    _keep(session, spark, ours=id_of(session))
    if next(_number_of_new) % _COLLECTED_EVERY == 0:  # Python may not look for them for hours
        gc.collect()
    return session  # type: ignore[no-any-return]


def _connected(source: Any, session_id: str | None) -> Any:
    """Return a session of the same server and user, with an id or with a new one.

    Who asks for it has it closed: PySpark does not.
    """
    builder = copy.copy(source.client._builder)
    params = {key: value for key, value in builder._params.items() if key != _SESSION_ID}
    builder._params = params if session_id is None else {**params, _SESSION_ID: session_id}
    session = type(source)(connection=builder)
    _leave_open(session)
    return session


def id_of(spark: SparkSession) -> str:
    """Return the id of a session, by which the server knows it."""
    source: Any = spark
    return str(source.session_id)


def session_of_id(spark: SparkSession, session_id: str) -> SparkSession:
    """Return the session with an id, of the same server and user."""
    if session_id == id_of(spark):
        return spark
    session = _connected(spark, session_id)
    _keep(session, spark, ours=None)
    return session  # type: ignore[no-any-return]


def was_ended(session_id: str) -> bool:
    """Return whether the library has ended a session lately: a server logs an error if asked."""
    return session_id in _ended_ids


def _note_ended(session_id: str) -> None:
    _ended_ids[session_id] = None
    if len(_ended_ids) > _MOST_ENDED:
        _ended_ids.pop(next(iter(_ended_ids)), None)


def can_clone(spark: SparkSession) -> bool:
    """Return whether this version can copy a session with its views and functions."""
    return hasattr(spark, "cloneSession")


def is_active(spark: SparkSession, query_id: str) -> bool:
    """Return whether a query runs in a session of this server that this process has in use."""
    return any(
        query_id in _active_ids(session)
        for session in {spark, *_open_sessions()}
        if can_answer_for(spark, session)
    )


def _active_ids(session: Any) -> list[str]:
    try:
        return [query.id for query in session.streams.active]
    except PySparkException as exc:
        # The server was started again, or a thread of this process has just ended the session.
        if is_unknown_session(exc) or session.client.is_closed:
            return []
        raise


def can_answer_for(spark: SparkSession, session: Any) -> bool:
    """Return whether the server of a session that is in use can be asked about another session.

    If the server of `session` or the session of its user has ended, a question would wait for
    minutes until PySpark gives up.
    """
    in_use = not session.is_stopped and not _clones.get(session, session).is_stopped
    return in_use and _address(session) == _address(spark)


def _address(session: Any) -> str:
    builder = session.client._builder
    return str(getattr(builder, "endpoint", builder.host))


def is_unknown_session(error: PySparkException) -> bool:
    """Return whether the server has closed a session, or does not know it after a restart."""
    return str(error.getCondition()).startswith("INVALID_HANDLE.SESSION")


def why_ended(spark: SparkSession) -> str | None:
    """Return why a session runs nothing any more, ``None`` while it may run; asks no server."""
    session: Any = spark
    users: Any = _clones.get(session, session)
    if users.is_stopped:
        return SESSION_STOPPED
    if _has_lost_own_server(users):
        return "its Spark Connect server, which this program started, was stopped"
    return SESSION_STOPPED if session in _closed else None


def _has_lost_own_server(users: Any) -> bool:
    """Return whether this process has stopped the server of a session that it had started."""
    served_by = _own_servers.get(users)
    return served_by is not None and served_by is not SparkContext._active_spark_context


def server_ends_with_process(spark: SparkSession) -> bool:
    """Return whether this process started the server of a session, so that it ends with it."""
    session: Any = spark
    return _clones.get(session, session) in _own_servers


def keep_in_use(spark: SparkSession) -> None:
    """Keep a session and the user's in use: the server closes a session that gets no call.

    With the user's session it would close the record that another client needs.
    """
    _keep_in_use(spark)
    _keep_in_use(_clones.get(spark, spark))


def release_ended(spark: SparkSession) -> None:
    """End the sessions that were made of one that has ended; the server then stops their queries.

    A server of this process ends with the user's session, and is not asked: PySpark would wait
    minutes for it.
    """
    users: Any = _clones.get(spark, spark)
    if why_ended(users) is None:
        return
    of_users = [session for session in _open_sessions() if _clones.get(session) is users]
    _end(of_users, asks_server=users not in _own_servers)


def _keep_in_use(session: Any) -> None:
    now = time.monotonic()
    if now - _touched_at.get(session, -_TOUCHED_EVERY_S) >= _TOUCHED_EVERY_S:
        _touched_at[session] = now
        session.conf.get(_DEFAULT_FS, None)


def _keep(session: Any, spark: SparkSession, ours: str | None) -> None:
    """Note a session that was made of the user's, to end it with the user's or with the process.

    A query that has ended can still be asked, and its last epoch may run again in its session. So
    the server ends a session when no object of this process refers to it any more.

    The handler is registered last, so it runs before the handler of the session's own client.
    That handler calls the server, and calls again for minutes if the server has ended.

    `ours` is the id of the session if this process made it, or ``None`` if another client may use
    it, too.
    """
    users = _clones[session] = _clones.get(spark, spark)
    if has_own_server():
        _own_servers.setdefault(users, SparkContext._active_spark_context)
    ending = finalize(session, _unused.put, _Unused(session.client, users, ours))
    ending.atexit = False  # the server continues a query whose client ends
    _start_ending()
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _leave_open(session: Any) -> None:
    """Leave the client of a session open when Python removes the object.

    PySpark closes the client then, in whichever thread removes it. That may be a thread of the
    pool for which the closing waits in PySpark 4.0 and 4.1. Then the process would wait for ever,
    or no session of the process could send anything any more.
    """
    kind: Any = type(session)
    session.__class__ = _unfinalized(kind)


@cache
def _unfinalized(kind: Any) -> Any:
    """Return the class of sessions that do nothing when Python removes the object."""
    if "_is_unfinalized" in vars(kind):
        return kind
    names = {"__del__": lambda _: None, "__module__": kind.__module__, "_is_unfinalized": True}
    return type(kind.__name__, (kind,), names)


@cache
def _start_ending() -> None:
    """Begin to end unused sessions in a thread, because a finalizer may not wait for the server."""
    name = "pyspark_ckpt ends sessions"
    threading.Thread(target=_end_all_unused, name=name, daemon=True).start()


def _end_all_unused() -> None:
    while True:
        with suppress(Exception):  # the server may have ended
            _end_unused(*_unused.get())  # without a variable, which would keep the user's session


def _end_unused(client: Any, users: Any, ours: str | None) -> None:
    """End a session that nothing refers to, unless a query that another client uses runs in it."""
    _close(client)
    if ours is None or users.is_stopped or any(id_of(each) == ours for each in _open_sessions()):
        return
    session = _connected(users, ours)  # the client of the unused object is closed
    _ending[session] = None  # so the end of the process closes it, and nobody else asks it
    try:
        if not _active_ids(session):
            _note_ended(ours)
            _release([session.client])
    finally:
        _ending.pop(session, None)
        _close(session.client)


def _open_sessions() -> list[Any]:
    """Return the sessions that the library made and has not ended."""
    return [each for each in _alive(_clones) if each not in _ending and each not in _closed]


def _alive(sessions: WeakKeyDictionary[Any, Any]) -> list[Any]:
    # A list of references: other threads may make and end sessions at any time.
    found = [reference() for reference in sessions.keyrefs()]
    return [session for session in found if session is not None]


def end_session(session: Any) -> None:
    """End a session that :func:`new_session` made; the server stops its queries."""
    _end([session], asks_server=True)


def _end(sessions: list[Any], *, asks_server: bool) -> None:
    for session in sessions:
        _ending[session] = None  # nobody asks it, or ends it too
        _note_ended(id_of(session))
    try:
        if asks_server:
            _release([session.client for session in sessions])
    finally:
        for session in sessions:
            _close(session.client)
            _closed[session] = None
            _ending.pop(session, None)


def _release(clients: list[Any]) -> None:
    """Let the server end the sessions of clients; it may answer none for some seconds.

    PySpark asks a server that has ended for ten minutes, or until its client is closed. So each
    client asks in a separate thread, and no client waits for another one.
    """
    releasing = []
    for client in clients:
        name = "pyspark_ckpt releases a session"
        thread = threading.Thread(target=_release_one, args=(client,), name=name, daemon=True)
        with suppress(RuntimeError):  # the machine has no room for another thread
            thread.start()
            releasing.append(thread)
    deadline = time.monotonic() + _RELEASED_WITHIN_S
    for thread in releasing:
        thread.join(max(0, deadline - time.monotonic()))


def _release_one(client: Any) -> None:
    with suppress(Exception):  # the server may have ended, or know the session no more
        # It should know that the client has all results. PySpark says so in other threads, and a
        # server logs an error if the session is gone by then.
        wait(list(getattr(client, "_release_futures", ())), timeout=_RELEASED_WITHIN_S)
        client.release_session()


def _close(client: Any) -> None:
    """Close a client's channel, and let the process forget the client.

    In PySpark 4.0 and 4.1 the client's own ``close`` waits for requests of all clients of the
    process, which are repeated for minutes if their server has ended. During the wait no client
    sends another one.
    """
    client._closed = True  # first, so a thread whose request is cancelled sees why
    with suppress(Exception):
        requests = getattr(sys.modules[type(client).__module__], _REQUESTS, None)
        if hasattr(requests, "shutdown"):
            client._channel.close()
        else:
            client.close()
    for name in _EXIT_HANDLERS:
        if hasattr(client, name):
            atexit.unregister(getattr(client, name))


def _close_all() -> None:
    """Close the sessions at the end of the process; gRPC waits without end if they close later."""
    sessions = _open_sessions()
    owners = {id(users): users for users in map(_clones.get, sessions)}
    for users in [each for each in owners.values() if each is not None and each.is_stopped]:
        release_ended(users)
    for session in [*sessions, *_alive(_ending)]:
        with suppress(Exception):
            session.client.close()


def stream_writer(df: DataFrame) -> Any:
    """Return PySpark's own stream writer, also where ``df.writeStream`` was replaced."""
    of_connect: Any = df
    writers: Any = sys.modules["pyspark.sql.connect.streaming.readwriter"]  # of its class
    return writers.DataStreamWriter(plan=of_connect._plan, session=of_connect._session)


def give_session(writer: Any, session: SparkSession) -> None:
    """Let a stream writer start its query in a session of the query's own."""
    writer._session = session


def is_stream(df: DataFrame, node: Any) -> bool:
    """Ask the server whether a node of a plan is a stream."""
    of_connect: Any = type(df)
    return bool(of_connect(node, df.sparkSession).isStreaming)


class QueryRecord(msgspec.Struct, frozen=True):
    """What a new client needs to checkpoint a query."""

    query_id: str
    query_name: str | None
    session_id: str
    location: str
    checkpoint_location: str
    checkpoints: str
    operators: tuple[str, ...]
    source_ids: tuple[int, ...]
    given_names: tuple[str, ...]
    settings: Settings


def keep_record(spark: SparkSession, record: QueryRecord) -> None:
    """Keep the record of a query that has started."""
    spark.conf.set(f"{_KEY}{record.query_id}", msgspec.json.encode(record).decode())


def forget_ended(spark: SparkSession, query_id: str) -> None:
    """Remove the record of a query, unless the query runs: another client may have taken it up."""
    if not runs_on_server(spark, query_id):
        spark.conf.unset(f"{_KEY}{query_id}")


def records_of(spark: SparkSession) -> list[QueryRecord]:
    """Return the records of a session, also of queries that have ended."""
    values = [value for key, value in spark.conf.getAll.items() if key.startswith(_KEY)]
    return [msgspec.json.decode(value, type=QueryRecord) for value in values]


def running(spark: SparkSession, record: QueryRecord) -> tuple[SparkSession, StreamingQuery] | None:
    """Return the query of a record and its session, ``None`` if it has ended."""
    if was_ended(record.session_id):
        return None
    session = session_of_id(spark, record.session_id)
    try:
        active = [each for each in session.streams.active if each.id == record.query_id]
    except PySparkException as exc:
        if is_unknown_session(exc):  # the server has closed it, and stopped its queries
            return None
        raise
    return (session, active[0]) if active else None


def runs_on_server(spark: SparkSession, query_id: str) -> bool:
    """Return whether a query that a client of this session started runs, with or without it."""
    found = spark.conf.get(f"{_KEY}{query_id}", None)
    if found is None:
        return False
    return running(spark, msgspec.json.decode(found, type=QueryRecord)) is not None
