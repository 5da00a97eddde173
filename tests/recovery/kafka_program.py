"""A driver that numbers the events of a Kafka topic until it is killed.

``python kafka_program.py DIRECTORY ADDRESS ROWS_PER_EPOCH``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from examples.kafka import job, source


def main(run: Path, address: str, rows_per_epoch: int) -> None:
    for module in (job, source):
        cloudpickle.register_pickle_by_value(module)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.local.dir", str(run.parent / "local"))
        .config("spark.ckpt.execution.checkpointing.interval", "500ms")
        # The test restores from a checkpoint of the killed query.
        .config("spark.ckpt.execution.checkpointing.num-retained", "100")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    job.writer(job.numbered(spark, address, rows_per_epoch), run).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
