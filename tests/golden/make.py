"""Makes the golden data of a format: ``python -m tests.golden.make tests/golden/1``.

Done once for each format. A directory that exists is left alone, because what a release has written
is never made again.

``<backend>-<format>`` is a savepoint of keyed state with its stored entries. ``make_archives.py``
makes the rest.
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
from tests.golden.make_archives import SOON
from tests.golden.session import golden_session
from tests.query import harness, model, timed
from tests.query.harness import BACKEND, INLINE, Job
from tests.query.restoring import test_rescale
from tests.query.restoring.test_rescale import Everything, file_of, timed_feed
from tests.query.stored import entries_of_states

KINDS = [("rocksdb", "NATIVE"), ("heap", "NATIVE"), ("heap", "CANONICAL")]


def main(target: Path) -> None:
    for module in (harness, model, timed, test_rescale):
        cloudpickle.register_pickle_by_value(module)
    with tempfile.TemporaryDirectory() as directory:
        spark = golden_session(directory)
        for backend, kind in KINDS:
            base = Path(directory) / f"{backend}-{kind}".lower()
            if not (target / base.name).exists():
                _make(
                    spark, base, {BACKEND: backend, INLINE: "1kb", **SOON}, kind, target / base.name
                )
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
    ckpt.location(savepoint).verify()
    shutil.copytree(savepoint, target / "savepoint")
    states = entries_of_states(savepoint)
    told = {
        name: {key.hex(): value.hex() for key, value in entries.items()}
        for name, entries in states.items()
    }
    (target / "state.json").write_text(json.dumps(told, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
