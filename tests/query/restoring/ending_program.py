"""A program that ends as soon as its query is no longer active, in one of two ways."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[3]))

from pyspark import cloudpickle

from tests.query import model
from tests.query.harness import SAVEPOINT_DIR, Feed, Job
from tests.query.model import events_of
from tests.query.program_session import program_session

cloudpickle.register_pickle_by_value(model)


def main(work: Path, way: str) -> None:
    spark = program_session(work)
    feed = Feed(work / "in").add(events_of(0))
    job = Job(spark, work, feed).using({SAVEPOINT_DIR: str(work / "savepoints")})
    query = job.start()
    query.processAllAvailable()
    print("running", flush=True)
    if way == "any":
        spark.streams.awaitAnyTermination()
        return
    while query.isActive:
        time.sleep(0.01)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
