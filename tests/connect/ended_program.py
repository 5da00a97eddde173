"""A client that runs one query after the other; see test_ended_queries.

Its argument is a directory. Python collects no cycles of references by itself here.
"""

from __future__ import annotations

import gc
import time

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import SparkConnectClient

import pyspark_ckpt as ckpt
from pyspark_ckpt.sessions import connect
from tests.connect import program as shared

cloudpickle.register_pickle_by_value(shared)  # the server cannot import it

RUNS = 4
DEADLINE_S = 60.0
connect._COLLECTED_EVERY = 1


def run(number: int) -> ckpt.CheckpointedQuery:
    shared.deliver(number, "ab")
    query = shared.writer("one").trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def sessions_of(query: ckpt.CheckpointedQuery) -> list[str]:
    """Return the ids of the query's own session and of the one that its coordinator reads with."""
    return [connect.id_of(each) for each in (query._query._session, query._coordinator._spark)]


def is_open(probe: SparkSession) -> bool:
    try:
        probe.range(1).collect()
    except PySparkException as exc:
        return not connect.is_unknown_session(exc)
    return True


def still_open(ids: list[str]) -> int:
    """Return how many sessions the server has at the deadline, or 0 as soon as it has closed all.

    A question keeps a session open, but does not open it again.
    """
    deadline = time.monotonic() + DEADLINE_S
    probes = [connect._connected(shared.spark, each) for each in ids]
    while (left := sum(map(is_open, probes))) and time.monotonic() < deadline:
        pass
    for probe in probes:
        connect.end_session(probe)
    return left


def clients_left(wanted: int) -> int:
    """Return how many clients there are at the deadline, or `wanted` as soon as no more are."""
    deadline = time.monotonic() + DEADLINE_S
    while (left := open_clients()) > wanted and time.monotonic() < deadline:
        gc.collect()
    return left


def open_clients() -> int:
    return sum(isinstance(each, SparkConnectClient) for each in gc.get_objects())


def main() -> None:
    gc.disable()
    ids: list[list[str]] = []
    for number in range(RUNS):
        query = run(number)
        ids.append(sessions_of(query))
    earlier = [each for of_run in ids[:-2] for each in of_run]
    print("open", still_open(earlier))
    gc.collect()  # no other start does it
    print("open", still_open(ids[-2]))
    print("clients", clients_left(3))
    print("ended", query.isActive, query.exception(), query.awaitTermination(1))
    assert query.lastProgress is not None
    print(
        "epochs", query.lastProgress["batchId"], {each["batchId"] for each in query.recentProgress}
    )
    print("operator", query.lastOperatorProgress[0]["epoch"])
    print("checkpoints", query.checkpoints().count() > 0)
    print("savepoint", query.stopWithSavepoint(str(shared.base / "savepoints")).epoch)


if __name__ == "__main__":
    main()
