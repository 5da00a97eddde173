"""The job from start to end: a broker, a query, a savepoint, and a fork; see the package."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from examples.kafka.broker import broker
from examples.kafka.job import TOPIC, numbered, writer

OUTPUT = Path("demo-output/kafka")
USERS = ("ada", "bob", "cy")
EVENTS = 3_000


def main() -> int:
    """Run the job; return 0 if each event was counted exactly once, else 1."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    output = OUTPUT.absolute()
    shutil.rmtree(output, ignore_errors=True)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.warehouse.dir", str(output / "spark-warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    with broker() as address:
        events = numbered(spark, address, rows_per_epoch=EVENTS // 4)
        produce(address, EVENTS)
        query = writer(events, output / "original").start()
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(output / "savepoints"))
        print(f"savepoint of epoch {savepoint.epoch}: {savepoint.path}")
        produce(address, EVENTS)
        query.processAllAvailable()
        query.stop()
        fork = writer(events, output / "fork").restoreFrom(savepoint.path)
        forked = fork.trigger(availableNow=True).start()
        forked.awaitTermination()
    each_user = Counter(USERS[number % len(USERS)] for number in range(EVENTS))
    expected = {
        "original": {user: (1, 2 * rows, 2 * rows) for user, rows in each_user.items()},
        "fork": {user: (rows + 1, 2 * rows, rows) for user, rows in each_user.items()},
    }
    found = {name: result(spark, output / name) for name in expected}
    for name, users in found.items():
        print(f"{name}: first number, last number and rows of each user: {users}")
    spark.stop()
    print("OK: each event was counted exactly once" if found == expected else "WRONG")
    return int(found != expected)


def produce(address: str, events: int) -> None:
    """Send events of all users."""
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for number in range(events):
        producer.produce(TOPIC, key=USERS[number % len(USERS)], value=str(number))
    producer.flush()


def result(spark: SparkSession, run: Path) -> dict[str, tuple[int, int, int]]:
    """Return the first number, the last number and the rows of each user."""
    rows = spark.read.parquet(str(run / "out")).groupBy("user")
    found = rows.agg(F.min("n"), F.max("n"), F.count("n")).collect()
    return {user: (first, last, count) for user, first, last, count in found}


if __name__ == "__main__":
    sys.exit(main())
