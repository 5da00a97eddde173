"""Requests for captures, and the file that is made of the captures of committed epochs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.capture.orders import CaptureFiles
from pyspark_ckpt.operator.descriptor import CaptureOrder, Captures
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.testing import replay
from tests.unit.testing.captured_query import CapturedQuery
from tests.unit.testing.test_replay import Frames


@pytest.fixture
def query(tmp_path: Path) -> Iterator[CapturedQuery]:
    made = CapturedQuery(tmp_path, "heap", Frames(), mode="pandas")
    yield made
    made.close()


def commit(location: Path, *epochs: int) -> None:
    (location / "commits").mkdir(exist_ok=True)
    for epoch in epochs:
        (location / "commits" / str(epoch)).write_text("v1\n{}")


def ordered(location: Path) -> tuple[CaptureOrder, ...]:
    return CaptureFiles(LocalStorage(location / "pyspark_ckpt")).orders()


def test_requests_add_up_and_are_written_once(tmp_path: Path) -> None:
    location = tmp_path / "location"
    ckpt.location(str(location)).capture([1, 2, 3, 7])
    ckpt.location(str(location)).capture(range(1, 3))
    ckpt.location(str(location)).capture(7, uid="op")
    assert ordered(location) == (CaptureOrder(1, 3), CaptureOrder(7, 7))
    ckpt.location(str(location)).capture(8, uid="op")
    captures = Captures(orders=ordered(location))
    wanted = {
        (uid, epoch) for uid in ("op", "other") for epoch in range(10) if captures.wants(uid, epoch)
    }
    assert wanted == {("op", e) for e in (1, 2, 3, 7, 8)} | {("other", e) for e in (1, 2, 3, 7)}


def test_a_request_is_deleted_with_all_of_its_epochs(tmp_path: Path) -> None:
    location = tmp_path / "location"
    ckpt.location(str(location)).capture([1, 2])
    capture = ckpt.location(str(location)).capture(7)
    capture.delete()
    assert ordered(location) == (CaptureOrder(1, 2),)


@pytest.mark.parametrize("epochs", [[], [-1], ["a"], [1 << 60]])
def test_what_is_no_epoch_is_refused(tmp_path: Path, epochs: list[int]) -> None:
    with pytest.raises(ckpt.errors.PlanError, match="give numbers of epochs"):
        ckpt.location(str(tmp_path / "location")).capture(epochs)
    assert not (tmp_path / "location").exists()


@pytest.mark.parametrize("content", [b"{", b'{"orders":[{"first":0,"last":1,"x":1}]}', b"\xff"])
def test_a_damaged_request_is_named(tmp_path: Path, content: bytes) -> None:
    location = tmp_path / "location"
    ckpt.location(str(location)).capture([1])
    (file,) = (location / "pyspark_ckpt" / "captures").iterdir()
    file.write_bytes(content)
    with pytest.raises(
        ckpt.errors.CorruptFileError, match="delete it, and ask for the captures again"
    ):
        ckpt.location(str(location)).capture([2])


def test_only_committed_epochs_are_saved(query: CapturedQuery, tmp_path: Path) -> None:
    for number in range(3):
        query.epoch([("a", number)])
    capture = ckpt.location(str(tmp_path)).capture(range(3))
    assert capture.captured() == []
    commit(tmp_path, 0, 1)
    assert capture.captured() == [0, 1]
    file = capture.save(tmp_path / "saved.capture")
    result = replay(file, Frames())
    assert result.epochs == [0, 1]
    result.assert_same()
    assert ckpt.location(str(tmp_path)).capture(1).captured() == [1]
    assert ckpt.location(str(tmp_path)).capture(1, uid="other").captured() == []
    with pytest.raises(
        ckpt.errors.CheckpointNotFoundError, match="wait until the epochs are committed"
    ):
        ckpt.location(str(tmp_path)).capture(2).save(tmp_path / "none.capture")
    capture.delete()
    assert capture.captured() == []


@pytest.mark.parametrize("newer", [{"run_started_ms": 5}, {"timeline": 1, "run_started_ms": 0}])
def test_the_newest_run_of_an_epoch_is_saved(
    query: CapturedQuery, tmp_path: Path, newer: dict[str, int]
) -> None:
    """Attempts of one run are equal for a replay; those of an earlier program are not."""
    query.epoch([("a", 1)])
    query.number = 0
    older = query.files()[0].read_bytes()
    for name, value in newer.items():
        setattr(query, name, value)
    query.processor.more = 10  # type: ignore[attr-defined]
    query.epoch([("a", 1)])
    first, second = query.files()
    assert older in (first.read_bytes(), second.read_bytes())
    commit(tmp_path, 0)
    file = ckpt.location(str(tmp_path)).capture(0).save(tmp_path / "saved.capture")
    assert replay(file, query.processor).captured_output["n"].tolist() == [12]


def subtask(root: Path, number: int, uid: str = "op") -> CapturedQuery:
    """Return one of several subtasks of a query in one location."""
    made = CapturedQuery(root, "heap", Frames(), mode="pandas", state=f"state-{uid}-{number}")
    made.handle = msgspec.structs.replace(made.handle, subtask=number, uid=uid)
    return made


@pytest.mark.parametrize("newer", [{"run_started_ms": 5}, {"timeline": 1, "run_started_ms": 0}])
def test_subtasks_of_a_lost_run_are_not_mixed_with_those_of_the_newest(
    tmp_path: Path, newer: dict[str, int]
) -> None:
    """The epoch ran again with its rows in the first subtask; another operator had none."""
    subtasks = [subtask(tmp_path, 0), subtask(tmp_path, 1), subtask(tmp_path, 0, "other")]
    for each in subtasks:
        each.epoch([("a", 1)])
    again = subtasks[0]
    again.number, again.run = 0, "again"
    for name, value in newer.items():
        setattr(again, name, value)
    again.epoch([("b", 2)])
    commit(tmp_path, 0)
    file = ckpt.location(str(tmp_path)).capture(0).save(tmp_path / "saved.capture")
    assert replay(file, Frames()).captured_output["k"].tolist() == ["b"]
    assert ckpt.location(str(tmp_path)).capture(0, uid="other").captured() == []
    joined = tmp_path / "joined.capture"
    joined.write_bytes(b"".join(each.read_bytes() for each in again.files()))
    assert replay(joined, Frames(), uid="op").captured_output["k"].tolist() == ["b"]
    for each in subtasks:
        each.close()
