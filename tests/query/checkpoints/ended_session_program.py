"""A program that stops its session under a query, and starts the query in another session."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[3]))

from pyspark import cloudpickle

from pyspark_ckpt.spark.jobs import SparkJobs
from tests.query import model
from tests.query.harness import INTERVAL, Feed, Job, completed, until
from tests.query.model import events_of
from tests.query.program_session import program_session

cloudpickle.register_pickle_by_value(model)


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "ckpt" in thread.name]


def main(work: Path) -> None:
    feed = Feed(work / "in").add(events_of(0))
    job = Job(program_session(work), work, feed).using({INTERVAL: "1h"})
    query = job.start()
    query.processAllAvailable()
    query.triggerCheckpoint()
    feed.add(events_of(1))
    query.processAllAvailable()
    assert own_threads()
    job.spark.stop()
    until(lambda: not own_threads(), f"threads stay: {own_threads()}")
    failure = query.exception()
    again = job.but(spark=program_session(work))
    epochs = [row.epoch for row in completed(again.run())]
    error = None
    try:
        with SparkJobs(again.spark, "a test").running():
            again.spark.stop()
            raise LookupError
    except Exception as exc:
        error = type(exc).__name__
    printed = {
        "threads": own_threads(),
        "error_of_jobs": error,
        "failure": str(failure),
        "failure_type": type(failure).__name__,
        "epochs": epochs[-1:],
    }
    print(">", json.dumps(printed), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
