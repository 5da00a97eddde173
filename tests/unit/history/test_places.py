"""Which directory is the checkpoints directory of a query, and which have savepoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.history.places import LEVELS, find_checkpoints_directory, savepoint_entries
from pyspark_ckpt.history.run_log import RunLog, RunStarted
from pyspark_ckpt.storage.open import LocalStorage

GOLDEN = Path(__file__).parents[2] / "golden" / "1" / "heap-native" / "savepoint"


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


SAVEPOINTS = [f"savepoint-0123{letter}-{letter * 12}" for letter in "abc"]


class _Forbidden(LocalStorage):
    """A directory in which some may not be looked at; the tests' user may see all."""

    def child(self, name: str) -> LocalStorage:
        return _Forbidden(Path(super().child(name).url))

    def list(self, directory: str | None = None) -> list[str]:
        self._check("secret")
        return super().list(directory)

    def read(self, relative: str) -> bytes:
        self._check(SAVEPOINTS[2])
        return super().read(relative)

    def _check(self, forbidden: str) -> None:
        if self.url.endswith(forbidden):
            raise PermissionError(13, "Permission denied", self.url)


def test_what_may_not_be_read_hides_no_other_savepoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    readable, damaged, forbidden = SAVEPOINTS
    for name in (*SAVEPOINTS, f"team/{readable}", f"secret/{readable}"):
        shutil.copytree(GOLDEN, tmp_path / name)
    (tmp_path / damaged / "_metadata").unlink()
    (tmp_path / damaged / "_metadata").mkdir()
    (tmp_path / "a file").write_text("no directory")
    found = savepoint_entries(_Forbidden(tmp_path), LEVELS)
    assert {(entry.path, entry.status.value) for entry in found} == {
        (f"{tmp_path}/{readable}", "completed"),
        (f"{tmp_path}/{damaged}", "begun"),
        (f"{tmp_path}/team/{readable}", "completed"),
    }
    warned = [each.getMessage() for each in caplog.records]
    assert [[name in each for each in warned] for name in (forbidden, "secret")] == [
        [True, False],
        [False, True],
    ]
