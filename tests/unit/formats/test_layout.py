"""Names on disk, and how they are parsed."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.formats import layout

_numbers = st.integers(0, 10**9 - 1)
_epochs = st.integers(0, 10**18 - 1)
FOREIGN = [
    "", "chk-", "chk-x", "chk--1", "chk-1x", "xchk-1", "chk-1/", "chk-1.tmp", "chk-1\n", "CHK-1",
    "_metadata", "notes.txt", "segment-1-2-0123456789abcdef", "segment-1-0123456789abcdef.chg",
    "base-1-2-0123456789abcdeF.chg", "base-1-2-0123456789abcde.chg",
    "xbase-1-2-0123456789abcdef.chg", "segment-1-2-0123456789abcdef.chg",
    "segment-1-2-0123456789abcdef.chg\n", "segment--1-2-0123456789abcdef.chg", "source-0-1.log",
    "segment-0123456789ab-1-2-0123456789abcdef.chg\n",
    "segment-0123456789ab--1-2-0123456789abcdef.chg",
    "segment-0123456789ab-1-2-0123456789abcdef-01234567.part",
    "xbase-0123456789ab-1-2-0123456789abcdef.chg", "base-1-2-0123456789abcdef-01234567.part",
    "base-0123456789aB-1-2-0123456789abcdef.chg",
    "base-0123456789a-1-2-0123456789abcdef.chg", "base-0123456789ab-1-0123456789abcdef.chg",
]  # fmt: skip


def name_of(path: str) -> str:
    return PurePosixPath(path).name


@given(_numbers)
def test_a_checkpoint_is_found_by_its_name(number: int) -> None:
    assert layout.checkpoint_id_of(layout.checkpoint_name(number)) == number


@given(st.from_regex(r"chk-\d{1,4}", fullmatch=True))
def test_each_checkpoint_id_has_one_name_only(name: str) -> None:
    number = layout.checkpoint_id_of(name)
    assert number is None or layout.checkpoint_name(number) == name


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_name_says_nothing(name: str) -> None:
    assert layout.checkpoint_id_of(name) is None
    assert layout.epoch_of(name) is None
    assert layout.state_file(name) is None
    assert not layout.is_source_log(name)


@given(st.text(), _numbers, _epochs)
def test_names_of_state_files_have_operator_subtask_and_epoch(
    uid: str, subtask: int, epoch: int
) -> None:
    parts = (layout.operator_mark(uid), subtask, epoch, None)
    for path in (
        layout.segment_path(uid, subtask, epoch),
        layout.base_path(uid, subtask, epoch),
    ):
        assert layout.state_file(name_of(path)) == parts
        assert layout.state_file(f".{name_of(path)}.0a1b2c3d.tmp") == parts
        assert not layout.is_source_log(name_of(path))


@given(st.text(), _numbers, _epochs)
def test_names_of_base_snapshot_files_have_their_snapshot_too(
    uid: str, subtask: int, epoch: int
) -> None:
    snapshot_id = layout.new_snapshot_id()
    assert layout.is_snapshot_id(snapshot_id)
    path = layout.snapshot_path(uid, subtask, epoch, snapshot_id)
    assert path != layout.snapshot_path(uid, subtask, epoch, snapshot_id)
    assert str(PurePosixPath(path).parent) == layout.SHARED
    for name in (name_of(path), f".{name_of(path)}.0a1b2c3d.tmp"):
        parts = (layout.operator_mark(uid), subtask, epoch, snapshot_id)
        assert layout.state_file(name) == parts
        assert not layout.is_source_log(name)


def test_operators_have_marks_of_their_own() -> None:
    assert len({layout.operator_mark(f"op {n}") for n in range(1000)}) == 1000


@pytest.mark.parametrize(
    "text", ["", "..", "0" * 15, "0" * 17, "g" * 16, "A" * 16, "0" * 16 + "\n"]
)
def test_other_texts_are_no_snapshot_ids(text: str) -> None:
    assert not layout.is_snapshot_id(text)


def test_state_files_lie_where_the_cleaner_looks_and_have_names_of_their_own() -> None:
    segments = {layout.segment_path("op", 1, 2) for _ in range(500)}
    bases = {layout.base_path("op", 1, 2) for _ in range(500)}
    assert len(segments) == len(bases) == 500
    assert {str(PurePosixPath(path).parent) for path in segments} == {layout.TASK_OWNED}
    assert {str(PurePosixPath(path).parent) for path in bases} == {layout.SHARED}


@pytest.mark.parametrize("log_name", ["0", "12", "9.compact", "9" * 18 + ".compact"])
def test_equal_source_logs_have_one_name_and_other_ones_another(log_name: str) -> None:
    path = layout.source_log_path(3, log_name, "ab" * 32)
    assert path == layout.source_log_path(3, log_name, "ab" * 32)
    others = {
        layout.source_log_path(4, log_name, "ab" * 32),
        layout.source_log_path(3, "1" + log_name[1:] + "1", "ab" * 32),
        layout.source_log_path(3, log_name, "ac" * 32),
    }
    assert path not in others
    assert len(others) == 3
    assert PurePosixPath(path).parent.name == layout.SHARED
    assert layout.is_source_log(name_of(path))
    assert layout.epoch_of(name_of(path)) is None


def test_savepoints_are_named_after_their_query_and_never_alike() -> None:
    names = {layout.savepoint_name("0123456789") for _ in range(500)}
    assert len(names) == 500
    assert all(name.startswith("savepoint-012345-") for name in names)
    assert not any("/" in name for name in names)
