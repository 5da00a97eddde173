"""Clients that end while their query runs, and what others may do with it; see test_left_queries.

``python left_program.py DIRECTORY PHASE``.
"""

from __future__ import annotations

import os
import signal
import sys

from pyspark import cloudpickle

import pyspark_ckpt as ckpt
from tests.connect import program as shared

cloudpickle.register_pickle_by_value(shared)  # the server cannot import it

NAME = "counted"
base = shared.base
location = str(base / "one" / "location")


def named(run: str) -> ckpt.CheckpointedStreamWriter:
    return shared.writer(run).queryName(NAME)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


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
