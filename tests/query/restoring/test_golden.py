"""Locations, checkpoints and savepoints of earlier versions give exactly the model's output.

``tests/golden/make.py`` wrote the model's output down together with the golden data. It was
computed from the input, not read from what the library had written.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.golden import comparing
from tests.golden.continuing import expected_of, run
from tests.query.harness import BACKEND, BACKENDS, digests
from tests.query.session_conf import session_conf

GOLDEN = Path(__file__).parents[2] / "golden"
WHOLE = sorted(path.parent for path in GOLDEN.glob("*/whole-*/location"))
KINDS = ("native", "canonical", "checkpoint")


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


def test_there_is_golden_data() -> None:
    assert {name_of(path) for path in WHOLE} >= {"0.1.0-whole-rocksdb", "0.1.0-whole-heap"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("golden", WHOLE, ids=name_of)
def test_restored(
    spark: SparkSession, tmp_path: Path, golden: Path, kind: str, backend: str
) -> None:
    """Scenario 42: keyed, operator, broadcast and raw state, timers in order; by both backends."""
    given = shutil.copytree(golden, tmp_path / "given")
    if kind == "checkpoint":
        retained = (given / "location" / "pyspark_ckpt").glob("chk-*")
        source = max(retained, key=lambda path: int(path.name.removeprefix("chk-")))
    else:
        source = given / kind
    before = digests(given)
    assert ckpt.verify(str(source)).epoch == 4
    expected = expected_of(golden)
    # Each kind at both parallelisms, and each pair of backends.
    is_same_backend = golden.name == f"whole-{backend}"
    parallelism = 3 if is_same_backend == (kind == "checkpoint") and kind != "native" else 2
    with session_conf(spark, {"spark.sql.shuffle.partitions": str(parallelism)}):
        sink = run(spark, tmp_path, tmp_path / "new", expected, {BACKEND: backend}, source)
    told, counted = expected[f"told_by_{parallelism}"], expected["counted"]
    if parallelism == 2:
        comparing.check(sink, told, counted)
    else:
        comparing.check_rescaled(sink, told, counted, set(expected["dealt"]))
    assert digests(given) == before


@pytest.mark.parametrize("golden", WHOLE, ids=name_of)
def test_continued(spark: SparkSession, tmp_path: Path, golden: Path) -> None:
    """Scenario 42: a checkpointLocation continues where the earlier version stopped."""
    shutil.copytree(golden / "location", tmp_path / "location")
    expected = expected_of(golden)
    backend = golden.name.removeprefix("whole-")
    sink = run(spark, tmp_path, tmp_path / "location", expected, {BACKEND: backend})
    comparing.check(sink, expected["told_by_2"], expected["counted"])
