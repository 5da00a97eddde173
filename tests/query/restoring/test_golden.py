"""Locations, checkpoints and savepoints of each format give exactly the model's output.

``tests/golden/make_archives.py`` wrote the model's output into the golden data. It was
computed from the input, not read from what the library had written.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.golden import archives, comparing
from tests.golden.archives import ARCHIVES
from tests.golden.continuing import expected_of, run
from tests.query.harness import BACKEND, BACKENDS, digests
from tests.query.session_conf import session_conf
from tools import make_golden

KINDS = ("native", "canonical", "checkpoint")


def each_archive() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("archive", archives.in_parts())


def checkpoint_of(whole: Path) -> Path:
    retained = (whole / "location" / "pyspark_ckpt").glob("chk-*")
    return max(retained, key=lambda path: int(path.name.removeprefix("chk-")))


def test_there_is_golden_data() -> None:
    assert {archives.is_always(each) for each in ARCHIVES} == {True, False}
    assert {each.name for each in ARCHIVES if each.parent.name == "1"} == {
        f"pyspark-{version}-{backend}.tar.xz"
        for version in make_golden.VERSIONS
        for backend in BACKENDS
    }


@pytest.mark.soak_variants
@each_archive()
def test_an_archive_is_continued(spark: SparkSession, tmp_path: Path, archive: Path) -> None:
    """Scenario 42: a location of another version of PySpark continues with this one."""
    golden = archives.unpack(archive, tmp_path)
    expected, backend = expected_of(golden), golden.name.removeprefix("whole-")
    options = {BACKEND: backend}
    sink = run(spark, tmp_path, golden / "location", expected, options)
    comparing.check(sink, expected["told_by_2"], expected["counted"])


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    "kind", ["checkpoint", *(pytest.param(k, marks=pytest.mark.soak) for k in KINDS[:2])]
)
@each_archive()
def test_an_archive_is_restored(
    spark: SparkSession, tmp_path: Path, archive: Path, kind: str
) -> None:
    """Scenario 42: by the other backend, and nothing of the archive is changed."""
    golden = archives.unpack(archive, tmp_path)
    source = checkpoint_of(golden) if kind == "checkpoint" else golden / kind
    before, expected = digests(golden), expected_of(golden)
    assert ckpt.location(str(source)).verify().epoch == 4
    backend = "heap" if golden.name == "whole-rocksdb" else "rocksdb"
    fresh = tmp_path / "new"
    sink = run(spark, tmp_path, fresh, expected, {BACKEND: backend}, source)
    comparing.check(sink, expected["told_by_2"], expected["counted"])
    assert digests(golden) == before


@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made_by", BACKENDS)
def test_restored(
    spark: SparkSession, tmp_path: Path, made_by: str, kind: str, backend: str
) -> None:
    """Scenario 42: keyed, operator, broadcast and raw state, timers in order; by both backends."""
    golden = archives.newest(made_by)
    given = shutil.copytree(golden, tmp_path / "given")
    source = checkpoint_of(given) if kind == "checkpoint" else given / kind
    before = digests(given)
    assert ckpt.location(str(source)).verify().epoch == 4
    expected = expected_of(golden)
    # Each kind at both parallelisms, and each pair of backends.
    parallelism = 3 if (made_by == backend) == (kind == "checkpoint") and kind != "native" else 2
    with session_conf(spark, {"spark.sql.shuffle.partitions": str(parallelism)}):
        sink = run(spark, tmp_path, tmp_path / "new", expected, {BACKEND: backend}, source)
    told, counted = expected[f"told_by_{parallelism}"], expected["counted"]
    if parallelism == 2:
        comparing.check(sink, told, counted)
    else:
        comparing.check_rescaled(sink, told, counted, set(expected["dealt"]))
    assert digests(given) == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_continued(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    """Scenario 42: a checkpointLocation continues where it stopped."""
    golden = archives.newest(backend)
    shutil.copytree(golden / "location", tmp_path / "location")
    expected = expected_of(golden)
    sink = run(spark, tmp_path, tmp_path / "location", expected, {BACKEND: backend})
    comparing.check(sink, expected["told_by_2"], expected["counted"])
