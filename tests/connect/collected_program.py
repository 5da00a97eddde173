"""Drops sessions of the library, and prints in which threads their clients were closed."""

from __future__ import annotations

import gc
import os
import sys
import threading
from queue import SimpleQueue

from pyspark.sql import SparkSession

from pyspark_ckpt.sessions import connect


def main() -> None:
    closed: SimpleQueue[str] = SimpleQueue()
    users = SparkSession.builder.remote(os.environ["SPARK_REMOTE"]).getOrCreate()
    client_class = type(users.client)
    real = client_class.close

    def close(client: object) -> None:
        closed.put(threading.current_thread().name)
        real(client)

    client_class.close = close
    assert users.range(3).count() == 3  # the server knows a session from its first call on
    made = connect.new_session(users)
    assert made.range(3).count() == 3
    made = connect.new_session(made)
    assert isinstance(made, type(users))
    assert made.range(3).count() == 3
    del made
    gc.collect()
    names = {closed.get(timeout=60) for _ in range(2)}
    sys.stdout.write(f"closed in {sorted(names)}\n")
    client_class.close = real
    users.stop()


main()
