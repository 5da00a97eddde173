"""A program that ends as soon as its query is no longer active, in one of two ways."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[3]))

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.query import model
from tests.query.harness import SAVEPOINT_DIR, Feed, Job
from tests.query.model import events_of

cloudpickle.register_pickle_by_value(model)


def main(work: Path, way: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(work / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
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
