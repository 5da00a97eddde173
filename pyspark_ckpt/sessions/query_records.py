"""Records of the queries that a session started on a Spark Connect server, in the session's conf.

A server continues a query without its client. The record that another client needs exists exactly
as long as the query can run. Its key does not begin with ``spark.``, so tasks do not get it.
"""

from __future__ import annotations

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.sessions import connect
from pyspark_ckpt.settings import Settings

_KEY = "pyspark_ckpt.query."


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
    if connect.was_ended(record.session_id):
        return None
    session = connect.session_of_id(spark, record.session_id)
    try:
        active = [each for each in session.streams.active if each.id == record.query_id]
    except PySparkException as exc:
        if connect.is_unknown_session(exc):  # the server has closed it, and stopped its queries
            return None
        raise
    return (session, active[0]) if active else None


def runs_on_server(spark: SparkSession, query_id: str) -> bool:
    """Return whether a query that a client of this session started runs, with or without it."""
    found = spark.conf.get(f"{_KEY}{query_id}", None)
    if found is None:
        return False
    return running(spark, msgspec.json.decode(found, type=QueryRecord)) is not None
