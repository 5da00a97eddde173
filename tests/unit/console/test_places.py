"""Which queries and savepoints the console finds below a directory, and what it says it missed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.console.data import places
from pyspark_ckpt.console.data.places import LEVELS, Places, find_places
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.run_log import RunLog, RunStarted
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints

LOCAL = "http://127.0.0.1:8270"
SAVEPOINT = "savepoint-3f2a10-0123456789ab"


class Tree:
    """A directory with queries, savepoints and whatever else."""

    def __init__(self, root: Path, snapshot: CheckpointMetadata) -> None:
        self.storage = LocalStorage(root)
        self._root = root
        self._snapshot = snapshot

    def query(self, location: str) -> None:
        """Add a query, as it is after its first checkpoint."""
        for name in ("offsets", "commits", "sources/0", "state/0/0"):
            (self._root / location / name).mkdir(parents=True)
        self.checkpoints(f"{location}/pyspark_ckpt")

    def checkpoints(self, directory: str) -> None:
        """Add a checkpoints directory."""
        storage = self.storage.child(directory)
        metadata = msgspec.structs.replace(
            self._snapshot, kind=CheckpointKind.CHECKPOINT, checkpoint_id=1, root="..",
            operators=(),
        )  # fmt: skip
        CompletedCheckpoints(storage).add(1, metadata)
        RunLog(storage).write(RunStarted(run_id="r", at_ms=1, query_id="q"))

    def savepoint(self, directory: str) -> None:
        self.storage.write(f"{directory}/_metadata", [encode_metadata(self._snapshot)])

    def directory(self, path: str) -> None:
        (self._root / path).mkdir(parents=True)

    def found(self) -> tuple[list[str], list[str]]:
        """Return the locations of queries and the paths of savepoints that are found."""
        found = self.search()
        return (
            [os.path.relpath(each.path, self._root) for each in found.queries],
            [os.path.relpath(each.storage.url, self._root) for each in found.savepoints],
        )

    def search(self) -> Places:
        return find_places(self.storage)


@pytest.fixture
def tree(tmp_path: Path, snapshot: CheckpointMetadata) -> Tree:
    return Tree(tmp_path / "all", snapshot)


@pytest.mark.parametrize("name", ["shared", "taskowned", "history", "drivers", "chk-1"])
def test_a_directory_with_a_name_of_ours_hides_no_query(tree: Tree, name: str) -> None:
    tree.query("fork")
    tree.query("orders")
    tree.directory(f"{name}/more")
    assert tree.found() == (["fork", "orders"], [])


@pytest.mark.parametrize("removed", ["chk-1", "history", "drivers"])
def test_a_checkpoints_directory_is_known_by_any_of_its_content(
    tree: Tree, removed: str, tmp_path: Path
) -> None:
    tree.checkpoints("3f2a10")
    (tmp_path / "all/3f2a10" / removed).rename(tmp_path / removed)
    assert tree.found() == (["3f2a10"], [])
    assert find_places(tree.storage.child("3f2a10")).queries[0].location is None


def test_a_checkpoints_directory_in_a_location_is_known_by_its_name(tree: Tree) -> None:
    tree.directory("orders/pyspark_ckpt/shared")
    for path in ("orders", "orders/pyspark_ckpt"):
        (found,) = find_places(tree.storage.child(path)).queries
        assert found.path == tree.storage.url_of("orders")


def test_queries_and_savepoints_below_a_location_are_found(tree: Tree) -> None:
    tree.query("orders")
    tree.savepoint(f"orders/savepoints/{SAVEPOINT}")
    tree.query("orders/fork")
    tree.checkpoints("elsewhere/3f2a10")
    tree.query("elsewhere/3f2a10/nested")
    assert tree.found() == (
        ["elsewhere/3f2a10", "elsewhere/3f2a10/nested", "orders", "orders/fork"],
        [f"orders/savepoints/{SAVEPOINT}"],
    )


@pytest.mark.parametrize("name", ["orders.json", "x.csv", "flights.md", "_orders"])
def test_a_location_may_have_the_name_of_a_file(tree: Tree, name: str) -> None:
    tree.query(name)
    tree.storage.write("notes.json", [b"{}"])
    assert tree.found() == ([name], [])


def test_what_spark_and_the_library_keep_for_a_query_is_not_searched(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.query("orders")
    tree.query("orders/_before_restart-1")
    tree.query("orders/_shadow-1")
    tree.query("orders/state/0")
    monkeypatch.setattr(places, "MOST_DIRECTORIES", 2)  # the directory, and the location
    assert tree.found() == (["orders"], [])
    assert tree.search().is_whole


def test_directories_that_lie_too_deep_are_no_silent_miss(tree: Tree) -> None:
    deepest = "/".join("abcdefgh"[: LEVELS - 1])
    tree.query(f"{deepest}/orders")
    assert tree.found() == ([f"{deepest}/orders"], [])
    assert tree.search().is_whole
    tree.query(f"{deepest}/deeper/orders")
    assert tree.found() == ([f"{deepest}/orders"], [])
    assert not tree.search().is_whole
    page = make_app(tree.storage).test_client().get("/", base_url=LOCAL).text
    assert "Not all directories were searched" in page


def test_the_number_of_listings_is_bounded_and_what_lies_above_comes_first(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        tree.directory(f"data/date={number:02}/part")
    tree.query("orders")
    monkeypatch.setattr(places, "MOST_DIRECTORIES", 10)
    assert tree.found() == (["orders"], [])
    assert not tree.search().is_whole


def test_a_link_that_leaves_the_directory_is_said(tree: Tree, tmp_path: Path) -> None:
    tree.query("orders")
    (tmp_path / "other").mkdir()
    (tmp_path / "all/away").symlink_to(tmp_path / "other")
    (tmp_path / "all/circle").symlink_to("circle")
    found = tree.search()
    assert len(found.queries) == 1
    (text, _) = found.unreadable
    assert text.startswith(f"{tree.storage.url}/away: ")
