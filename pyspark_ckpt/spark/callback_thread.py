"""The thread of this process in which the JVM calls back for one run of a query.

Py4J gives each thread of the JVM that calls Python a separate connection and thread here, and
keeps both after the thread of the JVM has ended. Spark runs each query in a new thread. So each run
would leave a thread and a socket: a query that is restarted, and each epoch of a shadow.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from py4j.clientserver import ClientServer, ClientServerConnection
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_connections: dict[str, ClientServerConnection] = {}
"""By the id of the run."""


def record_callback_thread(spark: SparkSession, query: StreamingQuery) -> None:
    """Record that the calling thread serves a run; called back in the thread of Spark's query."""
    gateway = spark.sparkContext._gateway
    if isinstance(gateway, ClientServer):  # without pinned threads, connections are shared
        connection = gateway._gateway_client.get_thread_connection()
        if connection is not None and not connection.initiated_from_client:
            _connections[query.runId] = connection


def end_callback_thread(run_id: str) -> None:
    """End the thread that served a run; called when Spark's query has ended."""
    connection = _connections.pop(run_id, None)
    if connection is None:
        return
    served = connection.socket
    if served is not None:
        with suppress(OSError):  # the JVM has ended
            # The thread waits for a command. It reads the end instead, and closes the connection.
            served.shutdown(socket.SHUT_RDWR)
