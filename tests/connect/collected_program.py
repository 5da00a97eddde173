"""Drops sessions of the library, and prints in which threads their clients were closed.

It then ends a session, and asks for its active queries while its channel closes, as the start of a
query in another thread may.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any

from pyspark.sql import SparkSession

from pyspark_ckpt.sessions import connect


class Asked:
    """A channel of a session that is asked for its queries when the channel has just closed."""

    def __init__(self, session: Any, channel: Any) -> None:
        self._session = session
        self._channel = channel

    def close(self) -> None:
        self._channel.close()
        sys.stdout.write(f"active {connect._active_ids(self._session)}\n")


def collect_all_but_one(client_class: type) -> None:
    """Have Python remove sessions in this thread, until one client is left."""
    deadline = time.monotonic() + 60
    while sum(isinstance(each, client_class) for each in gc.get_objects()) > 1:
        assert time.monotonic() < deadline, "a session that nobody uses is still there"
        gc.collect()


def main() -> None:
    gc.disable()
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
    # Those of the two sessions, and of the two that ended them on the server.
    names = {closed.get(timeout=60) for _ in range(4)}
    collecting = threading.Thread(target=collect_all_but_one, args=(client_class,), name="another")
    collecting.start()
    collecting.join()
    names |= {closed.get() for _ in range(closed.qsize())}
    sys.stdout.write(f"closed in {sorted(names)}\n")
    client_class.close = real
    made = connect.new_session(users)
    made.client._channel = Asked(made, made.client._channel)
    connect.end_session(made)
    users.stop()


main()
