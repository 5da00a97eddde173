"""Lineage and history are read from files, whatever happened to the ancestors."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.modes import CheckpointKind, SavepointFormat
from pyspark_ckpt.history import lineage as lineage_module
from pyspark_ckpt.history.frames import history
from pyspark_ckpt.history.lineage import lineage
from pyspark_ckpt.history.log import KEPT, HistoryLog
from pyspark_ckpt.history.records import AbortedCheckpoint
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints


def generations(storage: Storage, snapshot: CheckpointMetadata, count: int) -> list[str]:
    """Savepoints of queries that were each restored from the one before."""
    paths: list[str] = []
    for number in range(count):
        parent = None
        if paths:
            parent = Origin(
                path=paths[-1], kind=CheckpointKind.SAVEPOINT,
                checkpoint_id=None, query_id=f"query{number - 1}",
                epoch=number - 1, operators=("count",),
            )  # fmt: skip
        own = msgspec.structs.replace(
            snapshot, query_id=f"query{number}", epoch=number, parent=parent
        )
        target = str(storage.root.parent / "sp")
        paths.append(write_savepoint(own, storage, target, SavepointFormat.NATIVE).path)
    return paths


def test_all_ancestors_are_listed(storage: Storage, snapshot: CheckpointMetadata) -> None:
    paths = generations(storage, snapshot, 3)
    shown = lineage(paths[2])
    assert list(shown.path) == paths[::-1]
    assert list(shown.epoch) == [2, 1, 0]
    assert list(shown.found) == [True] * 3
    assert [row["count"]["restored"] for row in shown.operators] == [True, True, False]


@pytest.mark.parametrize("url", ["hdfs://host:9000/x", "s3://bucket/x"])
def test_a_stranger_cannot_have_another_server_asked(
    storage: Storage, snapshot: CheckpointMetadata, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """A request would be signed with the user's own keys."""
    opened: list[str] = []
    monkeypatch.setattr(
        lineage_module, "open_storage", lambda path: opened.append(path) or open_storage(path)
    )
    parent = Origin(
        path=url, kind=CheckpointKind.SAVEPOINT, checkpoint_id=None, query_id="query", epoch=3,
        operators=("count",),
    )  # fmt: skip
    own = msgspec.structs.replace(snapshot, query_id="fork", epoch=0, parent=parent)
    target = str(storage.root.parent / "sp")
    path = write_savepoint(own, storage, target, SavepointFormat.NATIVE).path
    shown = lineage(path)
    assert list(shown.path) == [path, url]
    assert list(shown.found) == [True, False]
    assert opened == [path]


@pytest.mark.parametrize("fate", ["deleted", "damaged", "another"])
def test_a_deleted_ancestor_is_known_from_its_child(
    storage: Storage, snapshot: CheckpointMetadata, fate: str
) -> None:
    paths = generations(storage, snapshot, 3)
    if fate == "damaged":
        (Path(paths[1]) / "_metadata").write_bytes(b"")
    else:
        shutil.rmtree(paths[1])
    if fate == "another":
        shutil.copytree(paths[2], paths[1])
    shown = lineage(paths[2])
    assert list(shown.path) == [paths[2], paths[1]]
    assert list(shown.found) == [True, False]
    assert list(shown.epoch) == [2, 1]


def test_a_circle_ends(storage: Storage, snapshot: CheckpointMetadata) -> None:
    place = storage.root.parent / "sp" / "circle"
    origin = Origin(
        path=str(place), kind=CheckpointKind.SAVEPOINT, checkpoint_id=None,
        query_id=snapshot.query_id, epoch=snapshot.epoch, operators=(),
    )  # fmt: skip
    own = msgspec.structs.replace(snapshot, parent=origin)
    made = write_savepoint(own, storage, str(place.parent), SavepointFormat.NATIVE)
    Path(made.path).rename(place)
    assert len(lineage(str(place))) == 2


def test_a_directory_is_shown_as_a_tree(storage: Storage, snapshot: CheckpointMetadata) -> None:
    paths = generations(storage, snapshot, 3)
    fork = Origin(
        path="/moved/since", kind=CheckpointKind.SAVEPOINT, checkpoint_id=None, query_id="query0",
        epoch=0, operators=("count",),
    )  # fmt: skip
    fork_location = storage.root.parent / "forks" / "one" / "location"
    checkpoints = CompletedCheckpoints(LocalStorage(fork_location / "pyspark_ckpt"))
    for number in (1, 2):
        own = msgspec.structs.replace(
            snapshot, checkpoint_id=number, query_id="fork", epoch=number, parent=fork
        )
        checkpoints.add(number, own)
    (fork_location / "state").mkdir()
    (fork_location / "metadata").write_text("{}")
    stranger = msgspec.structs.replace(fork, query_id="gone", path="/gone")
    lost = msgspec.structs.replace(snapshot, query_id="lost", epoch=9, parent=stranger)
    lost_path = write_savepoint(
        lost, storage, str(storage.root.parent / "sp"), SavepointFormat.NATIVE
    ).path
    shown = lineage(str(storage.root.parent))
    own_checkpoint = shown[shown.query_id == snapshot.query_id]
    shown = shown[shown.query_id != snapshot.query_id]
    by_query = {query: list(rows.path) for query, rows in shown.groupby("query_id")}
    assert by_query["query0"] == [paths[0]]
    assert by_query["query1"] == [paths[1]]
    assert [Path(path).name for path in by_query["fork"]] == ["chk-1", "chk-2"]
    assert by_query["lost"] == [lost_path]
    assert by_query["gone"] == ["/gone"]
    generation = dict(zip(shown.query_id, shown.generation, strict=True))
    assert generation == {
        "query0": 0, "query1": 1, "query2": 2, "fork": 1, "gone": 0, "lost": 1,
    }  # fmt: skip
    order = list(shown.query_id)
    assert order.index("query0") < order.index("query1") < order.index("query2")
    assert order.index("query0") < order.index("fork")
    assert order.index("gone") + 1 == order.index("lost")
    assert list(shown[~shown.found].query_id) == ["gone"]
    assert set(own_checkpoint.generation) <= {0}


class _Forbidden(LocalStorage):
    """A directory in which some may not be looked at; the tests' user may see all."""

    def child(self, name: str) -> LocalStorage:
        return _Forbidden(Path(super().child(name).url))

    def list(self, directory: str | None = None) -> list[str]:
        if self.name == "secret":
            raise PermissionError(13, "Permission denied", self.url)
        return super().list(directory)

    def exists(self, relative: str) -> bool:
        if self.name == "closed":
            raise PermissionError(13, "Permission denied", self.url_of(relative))
        return super().exists(relative)

    def read(self, relative: str) -> bytes:
        if self.parent().name == "own":
            raise PermissionError(13, "Permission denied", self.url_of(relative))
        return super().read(relative)


def test_what_may_not_be_read_hides_no_other_of_a_tree(
    storage: Storage, snapshot: CheckpointMetadata, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = generations(storage, snapshot, 1)
    root = storage.root.parent / "sp"
    for name in ("a/secret", "a/closed", "a/own", "z"):
        shutil.copytree(path, root / name / "savepoint-0")
    rows = lineage_module.rows_of_tree(_Forbidden(root))
    assert [row["path"] for row in rows] == [path, f"{root}/z/savepoint-0"]
    warned = [record.getMessage().partition(" is left out")[0] for record in caplog.records]
    assert warned == [f"{root}/a/closed", f"{root}/a/own/savepoint-0", f"{root}/a/secret"]
    with pytest.raises(PermissionError):
        lineage_module.rows_of_tree(_Forbidden(root / "a" / "secret"))


def test_two_savepoints_of_one_epoch(storage: Storage, snapshot: CheckpointMetadata) -> None:
    """A fork occurs once, after the savepoint that it was restored from."""
    root = storage.root.parent / "sp"

    def saved(query: str, parent: Origin | None = None) -> str:
        own = msgspec.structs.replace(snapshot, query_id=query, epoch=0, parent=parent)
        return write_savepoint(own, storage, str(root), SavepointFormat.NATIVE).path

    originals = [saved("original") for _ in range(3)]
    parents = {
        f"fork{number}": Origin(
            path=path, kind=CheckpointKind.SAVEPOINT, checkpoint_id=None, query_id="original",
            epoch=0, operators=("count",),
        )
        for number, path in enumerate([*originals, "/moved/since"])
    }  # fmt: skip
    forks = {query: saved(query, parent) for query, parent in parents.items()}
    shown = lineage(str(root))
    assert sorted(shown.path) == sorted([*originals, *forks.values()])
    order = list(shown.path)
    for query in ("fork0", "fork1", "fork2"):
        before = [path for path in order[: order.index(forks[query])] if path in originals]
        assert before[-1] == parents[query].path
    assert list(shown.generation) == [0 if path in originals else 1 for path in order]


def test_a_directory_without_snapshots_has_no_lineage(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "file").write_text("x")
    with pytest.raises(CheckpointNotFoundError):
        lineage(str(tmp_path))


def aborted(number: int) -> AbortedCheckpoint:
    return AbortedCheckpoint(
        "checkpoint", number, 5, 1000 + number, 7, AbortReason.EXPIRED, "it took too long"
    )


def test_history_has_checkpoints_savepoints_and_failures(
    storage: Storage, snapshot: CheckpointMetadata, tmp_path: Path
) -> None:
    store = CompletedCheckpoints(storage)
    for number in (1, 2):
        store.reserve(number)
        store.add(number, msgspec.structs.replace(snapshot, checkpoint_id=number))
    (storage.root / "chk-2" / "_metadata").write_bytes(b"")
    log = HistoryLog(storage)
    savepoint = write_savepoint(snapshot, storage, str(tmp_path / "sp"), SavepointFormat.NATIVE)
    log.note_savepoint(savepoint)
    log.onCheckpointAborted(aborted(3))
    shown = history(str(storage.root))
    assert sorted(zip(shown.kind, shown.status, strict=True)) == [
        ("checkpoint", "aborted"), ("checkpoint", "completed"), ("checkpoint", "corrupt"),
        ("savepoint", "completed"),
    ]  # fmt: skip
    failed = shown[shown.status == "aborted"].iloc[0]
    assert failed.reason == "expired: it took too long"
    assert (failed.checkpoint_id, failed.epoch, failed.duration_ms) == (3, 5, 7)
    (saved,) = shown[shown.kind == "savepoint"].path
    assert saved == savepoint.path
    assert "_metadata" in shown[shown.status == "corrupt"].iloc[0].reason


def test_history_is_found_from_the_location_too(storage: Storage, tmp_path: Path) -> None:
    log = HistoryLog(LocalStorage(tmp_path / "loc" / "pyspark_ckpt"))
    log.onCheckpointAborted(aborted(1))
    (tmp_path / "loc" / "pyspark_ckpt" / "shared").mkdir()
    for path in ("loc", "loc/pyspark_ckpt"):
        assert len(history(str(tmp_path / path))) == 1


def test_a_directory_without_checkpoints_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        LocalStorage(tmp_path / "two" / name).write("drivers/1", [b"{}"])
    for path, why in (("none", "does not exist"), ("two", "2 queries")):
        with pytest.raises(CheckpointNotFoundError, match=why):
            history(str(tmp_path / path))


def test_the_history_log_is_bounded_and_forgives(storage: Storage) -> None:
    log = HistoryLog(storage)
    directory = storage.root / "history"
    directory.mkdir(parents=True)
    for number in range(KEPT + 100):
        (directory / f"{number:015}-0.json").write_text("damaged")
    log.onCheckpointAborted(aborted(1))
    assert len(list(directory.iterdir())) == KEPT
    assert [entry.checkpoint_id for entry in log.entries()] in ([1], [])
    directory.rename(storage.root / "aside")
    directory.write_text("in the way")
    log.onCheckpointAborted(aborted(2))  # harmless
    assert log.entries() == []
