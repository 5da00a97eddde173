"""Makes the golden savepoints of a version: ``python -m tests.golden.make tests/golden/0.1.0``.

Done once for each version that writes something new; what is checked in is never made again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.query import harness, model, test_rescale, timed
from tests.query.harness import BACKEND, INLINE, Job
from tests.query.stored import entries_of_states
from tests.query.test_rescale import Everything, file_of, timed_feed

KINDS = [("rocksdb", "NATIVE"), ("heap", "NATIVE"), ("heap", "CANONICAL")]
SOON = {
    "spark.ckpt.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.state.changelog.materialize.max-segments": "1",
}


def main(target: Path) -> None:
    for module in (harness, model, timed, test_rescale):
        cloudpickle.register_pickle_by_value(module)
    with tempfile.TemporaryDirectory() as directory:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.local.dir", directory)
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        for backend, kind in KINDS:
            base = Path(directory) / f"{backend}-{kind}".lower()
            _make(spark, base, {BACKEND: backend, INLINE: "1kb", **SOON}, kind, target / base.name)
        spark.stop()


def _make(
    spark: SparkSession, base: Path, options: dict[str, str], kind: str, target: Path
) -> None:
    job = Job(
        spark, base, timed_feed(base / "in"), processor=Everything, output=test_rescale.OUTPUT,
        time_mode="EventTime", watermark="ts", options=options,
    )  # fmt: skip
    job.feed.add(*map(file_of, range(5)))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(base / "savepoints"), kind).path
    ckpt.verify(savepoint)
    shutil.copytree(savepoint, target / "savepoint")
    states = entries_of_states(savepoint)
    told = {
        name: {key.hex(): value.hex() for key, value in entries.items()}
        for name, entries in states.items()
    }
    (target / "state.json").write_text(json.dumps(told, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
