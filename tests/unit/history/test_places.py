"""Which directory is the checkpoints directory of a query."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.history.places import find_checkpoints_directory
from pyspark_ckpt.history.run_log import RunLog
from pyspark_ckpt.history.run_record import RunStarted
from pyspark_ckpt.storage.open import LocalStorage


def query(directory: Path) -> None:
    RunLog(LocalStorage(directory)).write(RunStarted(run_id="r", at_ms=1, query_id="q"))


@pytest.mark.parametrize("name", ["shared", "taskowned", "history", "chk-1"])
def test_a_directory_beside_queries_does_not_hide_them(tmp_path: Path, name: str) -> None:
    query(tmp_path / "3f2a10")
    (tmp_path / name / "more").mkdir(parents=True)
    assert find_checkpoints_directory(str(tmp_path)).url == str(tmp_path / "3f2a10")
    query(tmp_path / "4b")
    with pytest.raises(CheckpointNotFoundError, match=r"of 2 queries \(3f2a10, 4b\)"):
        find_checkpoints_directory(str(tmp_path))


def test_a_checkpoints_directory_is_found_by_what_is_in_it(tmp_path: Path) -> None:
    query(tmp_path / "3f2a10")
    query(tmp_path / "loc/pyspark_ckpt")
    for given in ("3f2a10", "loc", "loc/pyspark_ckpt"):
        found = find_checkpoints_directory(str(tmp_path / given))
        assert found.url.endswith(("3f2a10", "pyspark_ckpt"))
    (tmp_path / "fresh/pyspark_ckpt/shared").mkdir(parents=True)
    found = find_checkpoints_directory(str(tmp_path / "fresh/pyspark_ckpt"))
    assert found.url == str(tmp_path / "fresh/pyspark_ckpt")
