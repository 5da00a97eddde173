"""The client that is killed, and the one that attaches; see test_attach.

Its arguments are a directory and ``start`` or ``attach``.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from pyspark import cloudpickle

import pyspark_ckpt as ckpt
from tests.connect import program as shared

cloudpickle.register_pickle_by_value(shared)  # the server cannot import it

NAME = "counted"
base = shared.base


def start() -> None:
    shared.deliver(1, "aab")
    query = shared.writer("one").queryName(NAME).start()
    query.processAllAvailable()
    print("id", query.id, flush=True)
    while True:  # until it is killed
        time.sleep(1)


def attach() -> None:
    shared.deliver(2, "abc")
    with ThreadPoolExecutor(2) as threads:  # which must not make two coordinators
        query, same = threads.map(lambda _: ckpt.attach(shared.spark, NAME), range(2))
    assert same is query
    assert ckpt.attach(shared.spark, query.id) is query
    query.processAllAvailable()
    print("epoch", query.triggerCheckpoint().epoch)
    saved = query.stopWithSavepoint(str(base / "savepoints"))
    print("original", shared.numbers("one"))
    shared.deliver(3, "ac")
    fork = shared.writer("fork").restoreFrom(saved.path).trigger(availableNow=True).start()
    fork.awaitTermination()
    print("fork", shared.numbers("fork"))
    try:
        ckpt.attach(shared.spark, "nobody")
    except ckpt.errors.ConfigurationError as exc:
        print("refused", exc)


if __name__ == "__main__":
    {"start": start, "attach": attach}[sys.argv[2]]()
