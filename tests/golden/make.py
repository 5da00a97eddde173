"""Makes the golden data of a version: ``python -m tests.golden.make tests/golden/0.1.0``.

Done once for each version that writes something new. A directory that exists is left alone, because
what is checked in is never made again.

``<backend>-<format>`` is a savepoint of keyed state with its stored entries. ``whole-<backend>`` is
a ``checkpointLocation`` with retained checkpoints, and savepoints of it in both formats.
``expected.json`` has the next input and everything that the query must then emit, computed by
``model.py`` from the input alone.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[2]))

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.golden import model as golden_model
from tests.golden import program
from tests.golden.comparing import check
from tests.golden.model import Model
from tests.golden.program import Sink
from tests.golden.session import golden_session
from tests.query import harness, model, timed
from tests.query.harness import BACKEND, INLINE, INTERVAL, Job
from tests.query.restoring import test_rescale
from tests.query.restoring.test_rescale import Everything, file_of, timed_feed
from tests.query.stored import entries_of_states, handles_of

KINDS = [("rocksdb", "NATIVE"), ("heap", "NATIVE"), ("heap", "CANONICAL")]
SOON = {
    "spark.ckpt.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.state.changelog.materialize.max-segments": "1",
}


def main(target: Path) -> None:
    for module in (harness, model, timed, test_rescale, program):
        cloudpickle.register_pickle_by_value(module)
    with tempfile.TemporaryDirectory() as directory:
        spark = golden_session(directory)
        for backend, kind in KINDS:
            base = Path(directory) / f"{backend}-{kind}".lower()
            if not (target / base.name).exists():
                _make(
                    spark, base, {BACKEND: backend, INLINE: "1kb", **SOON}, kind, target / base.name
                )
        for backend in ("rocksdb", "heap"):
            base = Path(directory) / f"whole-{backend}"
            if not (target / base.name).exists():
                make_whole(spark, base, backend, target / base.name)
        spark.stop()
    if not (target / "expected.json").exists():
        (target / "expected.json").write_text(json.dumps(expected(), indent=0) + "\n")


def make_whole(
    spark: SparkSession, base: Path, backend: str, target: Path, *, is_merged: bool = False
) -> None:
    """Run and stop a query of two operators with every kind of state; save its last epoch."""
    for number in golden_model.GOLDEN_EPOCHS:
        write_input(base, number, golden_model.rows_of(number), golden_model.RULES[number])
    sink, options = Sink(), {BACKEND: backend, INLINE: "200b", INTERVAL: "100ms", **SOON}
    for name, kind in (("native", "NATIVE"), ("canonical", "CANONICAL")):
        location = base / "location"
        writer = program.writer(spark, base, location, sink, options, is_merged=is_merged)
        query = writer.start()
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(base / "savepoints"), kind).path
        query.stop()
        assert query.exception() is None
        shutil.copytree(savepoint, target / name)
    check(sink, golden_model.run(golden_model.GOLDEN_EPOCHS, Model(2)).told, {})
    handles = handles_of(target / "native", "everything")
    assert all(handle.base is not None and handle.segments for handle in handles)
    shutil.copytree(base / "location", target / "location")


def write_input(base: Path, number: int, rows: Any, rules: Any) -> None:
    """Add an epoch's files."""

    def stamp(ms: int) -> str:
        return dt.datetime.fromtimestamp(ms / 1000, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    lines = {
        "rows": [{"k": k, "v": v, "ts": stamp(ts)} for k, v, ts in rows],
        "rules": [{"name": name, "factor": factor} for name, factor in rules],
    }
    for name, content in lines.items():
        (base / name).mkdir(parents=True, exist_ok=True)
        path = base / name / f"f{number:05}.json"
        path.write_text("".join(json.dumps(line) + "\n" for line in content))
        os.utime(path, (1_700_000_000 + number,) * 2)


def expected() -> dict[str, Any]:
    """Return the next input and what is emitted then, with 2 subtasks as before and with 3."""
    later = {
        str(number): {"rows": golden_model.rows_of(number), "rules": golden_model.RULES[number]}
        for number in golden_model.LATER_EPOCHS
    }
    before = golden_model.run(golden_model.GOLDEN_EPOCHS, Model(2))
    dealt = [v for number in golden_model.GOLDEN_EPOCHS for _, v, _ in golden_model.rows_of(number)]
    found = {"later": later, "counted": before.counted, "dealt": dealt}
    for parallelism in (2, 3):
        model = golden_model.run(golden_model.GOLDEN_EPOCHS, Model(2))
        model.continue_at(parallelism)
        found[f"told_by_{parallelism}"] = golden_model.run(golden_model.LATER_EPOCHS, model).told
    return found


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
