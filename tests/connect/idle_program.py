"""Clients of a server that soon closes sessions nobody uses; see test_idle_sessions.

Its arguments are a directory and ``wait``, ``leave``, ``attach`` or ``again``.
"""

from __future__ import annotations

import sys

from pyspark import cloudpickle

import pyspark_ckpt as ckpt
from pyspark_ckpt.sessions import connect
from tests.connect import program as shared

cloudpickle.register_pickle_by_value(shared)  # the server cannot import it

NAME = "counted"
TIMEOUT_S = 15
connect._TOUCHED_EVERY_S = TIMEOUT_S / 5


def start() -> ckpt.CheckpointedQuery:
    shared.deliver(1, "aab")
    query = shared.writer("one").queryName(NAME).start()
    query.processAllAvailable()
    return query


def wait() -> None:
    query = start()
    print("ended", query.awaitTermination(2 * TIMEOUT_S))
    print("epoch", query.triggerSavepoint(str(shared.base / "savepoints")).epoch)
    records = [key for key in shared.spark.conf.getAll if query.id in key]
    print("records", len(records))
    query._query._session.client.release_session()  # as the server closes the query's own session
    attach()


def leave() -> None:
    query = start()
    print("id", query.id, flush=True)
    query.awaitTermination()  # until it is killed


def attach() -> None:
    try:
        ckpt.attach(shared.spark, NAME)
    except ckpt.errors.ConfigurationError as exc:
        print("refused", exc)


def again() -> None:
    shared.deliver(2, "abc")
    shared.writer("one").trigger(availableNow=True).start().awaitTermination()
    print(shared.numbers("one"))


if __name__ == "__main__":
    {"wait": wait, "leave": leave, "attach": attach, "again": again}[sys.argv[2]]()
