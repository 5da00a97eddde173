"""A client that uses one server after the other; see test_servers.

Its arguments are a directory and the addresses of the servers. A line on its standard input says
that the next server runs, and that the one before has ended.
"""

from __future__ import annotations

import sys

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.connect import program as shared

cloudpickle.register_pickle_by_value(shared)  # the server cannot import it

NAME = "counted"


def use(number: int) -> None:
    shared.deliver(number, "ab")
    query = shared.writer("one").queryName(NAME).start()
    other = shared.writer(f"other{number}").queryName("other").start()  # of a new id each time
    query.processAllAvailable()
    other.processAllAvailable()
    epoch = query.triggerCheckpoint().epoch
    assert ckpt.attach(shared.spark, NAME) is query
    assert ckpt.attach(shared.spark, "other") is other
    print("server", number, "epoch", epoch, flush=True)


if __name__ == "__main__":
    for number, remote in enumerate(sys.argv[2:]):
        sys.stdin.readline()
        if number > 0:
            shared.spark.client.close()  # else stop() waits for the ended server
            shared.spark.stop()
            shared.spark = SparkSession.builder.remote(remote).getOrCreate()
        use(number)
    sys.stdin.readline()  # until it is killed
