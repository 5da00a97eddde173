"""A driver that gets a signal while Spark starts its query, as of Ctrl+C or a notebook's button.

Prints a JSON object: whether the start was interrupted, and which queries and how many listeners
are left when Spark has had time to begin the first epoch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import pyspark_ckpt as ckpt
from tests.query.model import Count

FIRST_EPOCH_S = 30


class Interrupts(StreamingQueryListener):
    """Sends the signal before the library's listener gets the event, and waits until it came."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.has_ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        self.came.wait(60)

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.has_ended.set()


def main(location: str | None) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = spark.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    interrupts = Interrupts()
    spark.streams.addListener(interrupts)
    rows = spark.readStream.format("rate").load().selectExpr("'a' k", "value v")
    counts = ckpt.key_by(rows, "k").transformWithState(
        Count(), "k string, n long", "Append", "None", uid="op"
    )
    writer = ckpt.write_stream(counts).format("memory").queryName("interrupted")
    if location is not None:
        writer = writer.option("checkpointLocation", location)
    is_interrupted = False
    try:
        writer.start()
    except KeyboardInterrupt:
        is_interrupted = True
    found: dict[str, Any] = {"interrupted": is_interrupted}

    def look() -> None:  # the connection of the main thread may hold an answer that is not its own
        interrupts.came.set()
        deadline = time.monotonic() + FIRST_EPOCH_S
        interrupts.has_ended.wait(FIRST_EPOCH_S)
        while spark.streams.active and time.monotonic() < deadline:
            time.sleep(0.05)
        found["active"] = [query.name for query in spark.streams.active]
        found["listeners"] = len(spark.streams._jsqm.listListeners())

    looking = threading.Thread(target=look)
    looking.start()
    looking.join()
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1] or None)
