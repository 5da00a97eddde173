"""An earlier version and this one run a query in turn, as when an upgrade is rolled back.

The earlier version is its own code in a separate process. What the query must emit is computed by
the model of the golden data.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import pyspark_ckpt as ckpt
from tests.golden import comparing, model, program
from tests.golden.earlier_version import GOLDEN, VERSION, run_earlier
from tests.golden.make import write_input
from tests.golden.program import Sink
from tests.query.harness import BACKEND, INLINE, INTERVAL

SOON = {
    "spark.ckpt.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.state.changelog.materialize.max-segments": "1",
}


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_two_versions_in_turn(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    """Scenario 42: earlier, this, earlier, this; the earlier one reads this one's checkpoints."""
    location = tmp_path / "location"
    shutil.copytree(GOLDEN / VERSION / f"whole-{backend}" / "location", location)
    options = {BACKEND: backend, INTERVAL: "100ms", INLINE: "200b", **SOON}
    expected = model.run(model.GOLDEN_EPOCHS, model.Model(2))
    for epoch in model.EPOCHS_IN_TURN:
        write_input(tmp_path, epoch, model.rows_of(epoch), model.RULES[epoch])
        counted = expected.counted
        expected.continue_at(2)
        model.run([epoch], expected)
        if epoch % 2 == 0:
            sink = this_version(spark, tmp_path, location, options)
        else:
            sink = earlier_version(tmp_path, location, options)
        comparing.check(sink, expected.told, counted)
    retained = [path.parent for path in location.glob("pyspark_ckpt/chk-*/_metadata")]
    assert retained
    for checkpoint in retained:
        assert ckpt.verify(str(checkpoint)).kind == "checkpoint"


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_the_earlier_version_restores_from_this_one(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    """Scenario 42: a checkpoint of this version, restored by the code of the earlier one."""
    location = tmp_path / "location"
    shutil.copytree(GOLDEN / VERSION / f"whole-{backend}" / "location", location)
    options = {BACKEND: backend, INTERVAL: "100ms", INLINE: "200b", **SOON}
    this, earlier = model.LATER_EPOCHS
    expected = model.run([*model.GOLDEN_EPOCHS], model.Model(2))
    write_input(tmp_path, this, model.rows_of(this), model.RULES[this])
    model.run([this], expected)
    this_version(spark, tmp_path, location, options)
    newest = max(location.glob("pyspark_ckpt/chk-*"), key=lambda path: int(path.name[4:]))
    counted = expected.counted
    expected.continue_at(2)
    write_input(tmp_path, earlier, model.rows_of(earlier), model.RULES[earlier])
    model.run([earlier], expected)
    sink = earlier_version(tmp_path, tmp_path / "fresh", options, newest)
    comparing.check(sink, expected.told, counted)


def this_version(spark: SparkSession, base: Path, location: Path, options: dict[str, Any]) -> Sink:
    sink = Sink()
    query = program.writer(spark, base, location, sink, options).start()
    try:
        query.processAllAvailable()
        query.triggerCheckpoint()
    finally:
        query.stop()
    return sink


def earlier_version(
    base: Path, location: Path, options: dict[str, Any], checkpoint: Path | None = None
) -> Sink:
    result = base / "result.json"
    arguments = [str(base), str(location), json.dumps(options), str(result)]
    if checkpoint is not None:
        arguments.append(str(checkpoint))
    output = run_earlier(base, ["-m", "tests.golden.earlier_program", *arguments])
    found = json.loads(result.read_text())
    assert found["code"].startswith(str(base)), "this was not the earlier version"
    assert found["verified"] or checkpoint, "there was no checkpoint of this version to read"
    assert "nothing is cleaned" not in output
    sink = Sink()
    sink._epochs[0] = [Row(**row) for row in found["rows"]]
    return sink
