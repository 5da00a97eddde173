"""Clients that end while their query runs, and what others may do with it; see test_left_queries.

``python left_program.py DIRECTORY PHASE``.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.sessions.connect import keep_record, records_of
from tests.connect import program as shared

cloudpickle.register_pickle_by_value(shared)  # the server cannot import it

NAME = "counted"
base = shared.base
location = str(base / "one" / "location")


def named(run: str) -> ckpt.CheckpointedStreamWriter:
    return shared.writer(run).queryName(NAME)


def error_of(call: Callable[[], Any]) -> str:
    try:
        return f"no error: {call()}"
    except ckpt.errors.CkptError as exc:
        return f"{type(exc).__name__}: {exc}"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end() -> None:
    """End as a program does that forgets its query."""
    shared.deliver(1, "ab")
    query = named("one").start()
    query.processAllAvailable()
    print("checkpoint", query.triggerCheckpoint().checkpoint_id)
    shared.deliver(2, "ab")
    query.processAllAvailable()
    # Its coordinator then calls PySpark's client, which begins no more work.
    atexit.register(query._coordinator.wait_until_closed)


def elsewhere() -> None:
    """A session that does not have the query; no sign of life is waited for."""
    print(error_of(lambda: ckpt.location(location).rollback("chk-1")))


def again() -> None:
    """The session of the query."""
    print(error_of(lambda: ckpt.location(location).rollback("chk-1", force=True)))
    shared.deliver(3, "ab")
    query = ckpt.attach(shared.spark, NAME)
    query.processAllAvailable()
    query.triggerCheckpoint()
    query.stop()
    print(shared.numbers("one"))
    ckpt.location(location).rollback("chk-1")
    back = named("one").option("path", f"{base}/back/out").trigger(availableNow=True).start()
    back.awaitTermination()
    print(shared.numbers("back"))


def names() -> None:
    """One name is one running query of a session. Then an older client starts one more."""
    shared.deliver(1, "ab")
    one = named("one").start()
    print(error_of(named("two").start))
    again = named("one").start()  # the same query: Spark ends its earlier run
    print("the same", again.id == one.id, again.runId != one.runId)
    elsewhere = SparkSession.builder.remote(os.environ["ELSEWHERE"]).create()
    ours, shared.spark = shared.spark, elsewhere
    other = named("two").start()
    print("own", ckpt.attach(ours, NAME) is again, ckpt.attach(elsewhere, NAME) is other)
    third = SparkSession.builder.remote(os.environ["THIRD"]).create()
    print(error_of(lambda: ckpt.attach(third, NAME)))
    shared.spark = ours
    shared.writer("three").queryName("older").start()
    (older,) = [each for each in records_of(ours) if each.query_name == "older"]
    keep_record(ours, msgspec.structs.replace(older, query_name=NAME))
    print(again.id, older.query_id, other.id, flush=True)
    die()


def taken() -> None:
    """A client whose session runs two queries of the name."""
    print(error_of(named("four").start))
    print(error_of(lambda: ckpt.attach(shared.spark, NAME)))
    for record in records_of(shared.spark):
        ckpt.attach(shared.spark, record.query_id).stop()
    named("four").start().stop()


def owner() -> None:
    """Stops a query, which another client of the session then runs."""
    shared.deliver(1, "ab")
    query = named("one").start()
    query.processAllAvailable()
    query.stop()
    print("stopped", flush=True)
    sys.stdin.readline()
    shared.writer("two").queryName("other").start().stop()
    print("found", ckpt.attach(shared.spark, query.id).isActive, flush=True)
    die()


def borrower() -> None:
    named("one").start()
    print("runs", flush=True)
    die()


if __name__ == "__main__":
    globals()[sys.argv[2]]()
