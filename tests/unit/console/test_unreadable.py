"""What cannot be read of one query or savepoint hides nothing of the others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.console.data.checkpoints import RetainedCheckpoints
from pyspark_ckpt.console.data.places import QueryPlace, SavepointPlace, find_places
from pyspark_ckpt.console.data.queries import summary_or_problem
from pyspark_ckpt.console.html.family import read_savepoints
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.run_log import RUNS, RecordedRuns, RunLog, RunStarted, RunState
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints

LOCAL = "http://127.0.0.1:8270"
SAVEPOINT = "savepoint-3f2a10-0123456789ab"


@pytest.fixture
def root(tmp_path: Path, snapshot: CheckpointMetadata) -> LocalStorage:
    for name in ("well", "ill"):
        storage = LocalStorage(tmp_path / "all" / name / "pyspark_ckpt")
        metadata = msgspec.structs.replace(
            snapshot, kind=CheckpointKind.CHECKPOINT, checkpoint_id=1, root="..", operators=()
        )
        CompletedCheckpoints(storage).add(1, metadata)
        RunLog(storage).write(RunStarted(run_id="r", at_ms=1, query_id=name, query_name=name))
    savepoint = msgspec.structs.replace(snapshot, operators=())
    LocalStorage(tmp_path / "all").write(f"{SAVEPOINT}/_metadata", [encode_metadata(savepoint)])
    return LocalStorage(tmp_path / "all")


def check_others(root: LocalStorage, problem: str) -> None:
    client = make_app(root).test_client()
    answer = client.get("/", base_url=LOCAL)
    assert answer.status_code == 200
    assert ">well</a>" in answer.text
    assert problem in answer.text
    (key,) = [each.key for each in find_places(root).queries if each.path.endswith("well")]
    for tab in ("", "plan", "state", "settings", "files"):
        assert client.get(f"/q/{key}/{tab}", base_url=LOCAL).status_code == 200, tab


def test_records_that_cannot_be_listed(root: LocalStorage, tmp_path: Path) -> None:
    runs = root.path(f"ill/pyspark_ckpt/{RUNS}")
    runs.rename(tmp_path / "runs")
    runs.symlink_to(tmp_path / "runs")
    check_others(root, "through a symbolic link")
    found = RecordedRuns(root.child("ill/pyspark_ckpt"))
    assert found.problem is not None
    assert (found.notes(9), found.starts_and_ends(), found.first_start()) == ([], [], None)


@pytest.mark.parametrize("place", ["ill/pyspark_ckpt/chk-1", SAVEPOINT])
def test_metadata_that_cannot_be_read(root: LocalStorage, place: str) -> None:
    metadata = root.path(f"{place}/_metadata")
    metadata.unlink()
    metadata.mkdir()
    check_others(root, "give the path of a savepoint-... or chk-... directory")


class Forbidden(LocalStorage):
    """A directory that the user may not read; the tests may run as a user who may read all."""

    def list(self, directory: str | None = None) -> list[str]:
        raise PermissionError(13, "Permission denied", self.url_of(directory or "x"))

    def size_bytes(self, relative: str) -> int | None:
        raise PermissionError(13, "Permission denied", self.url_of(relative))


def test_a_forbidden_savepoint_hides_no_other_one(root: LocalStorage) -> None:
    (place,) = find_places(root).savepoints
    forbidden = SavepointPlace("0", Forbidden(root.path(SAVEPOINT)))
    problem, metadata = [each for _, each in read_savepoints([place, forbidden])]
    assert isinstance(metadata, CheckpointMetadata)
    assert "Permission denied" in str(problem)


def test_a_forbidden_checkpoint_is_a_problem_of_its_own(root: LocalStorage) -> None:
    directory = root.path("ill/pyspark_ckpt")
    store = CompletedCheckpoints(LocalStorage(directory))
    found = RetainedCheckpoints(Forbidden(directory), store)
    assert found.newest(1) == [1]
    problem = found.read(1)
    assert isinstance(problem, CkptError)
    assert "Permission denied" in str(problem)


def test_a_query_of_which_nothing_is_known_has_the_reason(root: LocalStorage) -> None:
    place = QueryPlace("0", Forbidden(root.path("ill/pyspark_ckpt")), None)
    summary = summary_or_problem(place, 1)
    assert summary.run.state is RunState.UNKNOWN
    (problem,) = summary.problems
    assert "Permission denied" in problem
