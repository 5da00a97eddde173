"""Two drivers restore into one location by the real code; only Spark's own query is replaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.errors import FencedError, RestoreError
from pyspark_ckpt.formats.layout import SEEDINGS
from pyspark_ckpt.restore import seeding
from pyspark_ckpt.restore.location.seedings import is_half_seeded
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.restore.plan import RestoreRequest
from pyspark_ckpt.restore.rescale import Seed
from pyspark_ckpt.settings import ClaimMode
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import LocalStorage, Storage
from tests.faults.epochs import OWN_OPERATORS, Epochs, SparkFiles
from tests.faults.starts import filled
from tests.unit.restore.location.paused import Paused, pausing

OLD, NEW = 3, 12
"""The epochs of two checkpoints; the names of what is restored from them differ."""


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_seeds(_: Any, scratch: Storage, seeds: Sequence[Seed]) -> SparkLog:
        spark = SparkFiles(Path(scratch.url) / "location")
        spark.commit(0)
        for number, each in enumerate(seeds):
            said = [(handle.query_id, handle.epoch) for handle in each.handles]
            spark.put(f"state/{number}/0/1.delta", json.dumps(said))
        return SparkLog(scratch.child("location"))

    monkeypatch.setattr(seeding, "write_seeds", write_seeds)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The path of a checkpoint of each epoch."""
    paths = {}
    for last in (OLD, NEW):
        directory = tmp_path_factory.mktemp(f"origin-{last}")
        origin = Epochs(LocalStorage(directory / "pyspark_ckpt"), directory, OWN_OPERATORS)
        for _ in range(last + 1):
            origin.commit()
        runner = origin.runner()
        runner.take(origin.committed_epoch, periodic=False)
        runner.close()
        paths[last] = str(directory / "pyspark_ckpt" / "chk-1")
    return paths


PausedDisk = pausing(LocalStorage, "exists", "write", "delete")


def paused_at(root: Path, step: int, meanwhile: Callable[[], object]) -> Storage:
    """Return a location as a driver sees it that is paused, or killed, before one of its steps."""
    location: Storage = PausedDisk(root)
    location.paused = Paused(step, meanwhile)  # type: ignore[attr-defined]
    return location


class KilledError(BaseException):
    """The driver is killed."""


def kill() -> None:
    raise KilledError


def start(location: Storage, checkpoint: str) -> str:
    """Start a driver up to the moment before Spark begins; return the id of its query."""
    request = RestoreRequest(
        path=checkpoint, claim_mode=ClaimMode.NO_CLAIM, backend_type="heap", source_ids=(0,)
    )
    return filled(StartLocation(location, None, OWN_OPERATORS), request)


def files(root: Path) -> set[str]:
    """Return the files of a location without those of its checkpoints and seedings."""
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(path) for path in paths if not str(path).startswith(("pyspark_ckpt", "_seeding"))}


def query_ids(root: Path) -> set[str]:
    """Return the ids in the handles of all state stores of a location."""
    stores = root.glob("state/*/0/*.snapshot")
    return {query_id for store in stores for query_id, _ in json.loads(store.read_text())}


MOST_STEPS = 50


def test_the_driver_that_is_overtaken_adds_at_most_one_file(
    tmp_path: Path, checkpoints: dict[int, str]
) -> None:
    fenced = 0
    for at in range(1, MOST_STEPS):
        root = tmp_path / str(at)
        seen: dict[str, Any] = {}

        def overtake(root: Path = root, seen: dict[str, Any] = seen) -> None:
            seen["query"] = start(LocalStorage(root), checkpoints[OLD])
            seen["files"], seen["ids"] = files(root), query_ids(root)

        first = paused_at(root, at, overtake)
        try:
            query_id = start(first, checkpoints[NEW])
        except FencedError:
            fenced += 1
            assert SparkLog(LocalStorage(root)).query_id() == seen["query"]
            assert not is_half_seeded(LocalStorage(root))
            assert seen["files"] <= files(root)
            assert len(files(root) - seen["files"]) <= 1
            assert seen["ids"] == {seen["query"]}
        else:
            assert seen.get("query", query_id) == query_id
            assert query_ids(root) == {query_id}
        shutil.rmtree(root)
    assert 20 < fenced < MOST_STEPS - 10


def test_savepoints_in_a_half_filled_location_stay(
    tmp_path: Path, checkpoints: dict[int, str]
) -> None:
    """The user has put them there since then. None of them is restored into the same location."""
    root, link = tmp_path / "location", tmp_path / "latest"
    with pytest.raises(KilledError):
        start(paused_at(root, 25, kill), checkpoints[OLD])
    assert is_half_seeded(LocalStorage(root))
    inside = [root / "savepoint-0a1b2c-0123456789ab", root / "mine" / "of-may"]
    inside.append(root / "mine" / "of-june" / "savepoint-0a1b2c-0123456789ab")
    for directory in inside:
        shutil.copytree(Path(checkpoints[NEW]).parent, directory)
    link.symlink_to(inside[0])
    before = {path for directory in inside for path in directory.rglob("*")}
    for directory in (*inside, link):
        with pytest.raises(RestoreError, match="inside the location"):
            start(LocalStorage(root), str(directory / "chk-1"))
    assert all(path.exists() for path in before)
    query_id = start(LocalStorage(root), checkpoints[OLD])
    assert query_ids(root) == {query_id}
    assert all(path.exists() for path in before)


@pytest.mark.parametrize("again", [1, 15, 25, 35])
def test_one_driver_that_is_killed_twice_restores_all(
    tmp_path: Path, checkpoints: dict[int, str], again: int
) -> None:
    for at in range(1, MOST_STEPS, 2):
        root = tmp_path / str(at)
        for steps in (at, again):
            with suppress(KilledError):
                start(paused_at(root, steps, kill), checkpoints[OLD])
        query_id = start(LocalStorage(root), checkpoints[OLD])
        assert SparkLog(LocalStorage(root)).committed_epoch() == OLD
        assert query_ids(root) == {query_id}
        assert not is_half_seeded(LocalStorage(root))
        names = LocalStorage(root).list()
        assert [name for name in names if name.startswith("_seed")] == [SEEDINGS]
        shutil.rmtree(root)
