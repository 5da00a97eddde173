"""A savepoint whose driver ended before it was complete: named as such, removed exactly."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CheckpointNotFoundError,
    CorruptFileError,
    UnsafePathError,
)
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.in_progress import DISPOSED
from pyspark_ckpt.formats.layout import canonical_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import EntryStatus, SavepointFormat
from pyspark_ckpt.history.frames import history
from pyspark_ckpt.history.log import HistoryLog
from pyspark_ckpt.history.verification import verify
from pyspark_ckpt.savepoint.dispose import dispose_savepoint, remove_interrupted
from pyspark_ckpt.savepoint.savepoint import NewSavepoint, run_copies_here
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stored.savepoint_copy import SubtaskCopy

FORMATS = list(SavepointFormat)
QUERY, RUN = "0123456789", "the run before"


class Killed(BaseException):
    """The driver ends here; Python runs nothing at its end."""


def killed_while_copying(copies: Sequence[SubtaskCopy]) -> list[Handle]:
    """The first subtask is copied, the second one in part."""
    first, second = copies
    target = open_storage(first.target)
    if first.is_canonical:
        target.write(canonical_path(0, first.handle.epoch, first.token), [b"all of it"])
        part = canonical_path(1, second.handle.epoch, second.token)
    else:
        first.run()
        (part, *_) = (file.path for file in second.handle.files())
    directory, _, name = part.partition("/")
    target.write(f"{directory}/.{name}.0a1b2c3d.tmp", [b"a part"])
    raise Killed


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "sp") if request.param == "disk" else f"memory://{secrets.token_hex(8)}"


@pytest.fixture
def begin(
    storage: Storage, snapshot: CheckpointMetadata, place: str
) -> Callable[[SavepointFormat], Storage]:
    def begun(savepoint_format: SavepointFormat) -> Storage:
        new = NewSavepoint(QUERY, place, RUN)
        with pytest.raises(Killed):
            new.write(snapshot, storage, savepoint_format, killed_while_copying)
        return open_storage(new.path)

    return begun


def below(directory: Storage) -> list[str]:
    own = ("shared", "taskowned")
    names = [f"{name}/{inner}" for name in own for inner in directory.list(name)]
    return sorted(names + [name for name in directory.list() if name not in own])


@pytest.mark.parametrize("savepoint_format", FORMATS)
def test_exactly_its_own_files_go(
    begin: Callable[[SavepointFormat], Storage], savepoint_format: SavepointFormat
) -> None:
    """Scenario 32: the driver is killed while a savepoint is taken."""
    directory = begin(savepoint_format)
    foreign = ["note", "shared/mine", "shared/canonical-0-5-0123456789abcdef-01234567.parquet"]
    for name in foreign:
        directory.write(name, [b"mine"])
    assert len(below(directory)) > len(foreign) + 2
    disposal = dispose_savepoint(directory.url)
    assert not disposal.was_complete
    assert disposal.files >= 2
    assert below(directory) == sorted(foreign)
    assert sorted(disposal.left) == sorted(foreign)
    with pytest.raises(CheckpointNotFoundError):
        dispose_savepoint(directory.url)


@pytest.mark.parametrize("savepoint_format", FORMATS)
def test_nothing_is_left_of_it(
    begin: Callable[[SavepointFormat], Storage], savepoint_format: SavepointFormat
) -> None:
    directory = begin(savepoint_format)
    assert dispose_savepoint(directory.url).left == ()
    assert directory.parent().list() == []


def test_one_without_files_is_removed_too(place: str) -> None:
    new = NewSavepoint(QUERY, place, RUN)
    assert dispose_savepoint(new.path).files == 0
    assert open_storage(place).list() == []


def test_one_whose_first_file_was_being_written_is_removed_too(tmp_path: Path) -> None:
    path = Path(NewSavepoint(QUERY, str(tmp_path), "a run").path)
    (path / "._in_progress.0123abcd.tmp").write_text("{")
    assert dispose_savepoint(str(path)).left == ()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_directory_of_another_name_stays(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFoundError):
        dispose_savepoint(str(tmp_path / "empty"))
    assert (tmp_path / "empty").is_dir()


def test_every_command_says_that_it_is_not_complete(
    begin: Callable[[SavepointFormat], Storage], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = begin(SavepointFormat.CANONICAL)
    for command in ("verify", "show"):
        assert main([command, directory.url]) == 1
        shown = capsys.readouterr().err
        assert "not complete" in shown
        assert f"query {QUERY}, epoch 6" in shown
        assert "dispose" in shown
    assert main(["list", place]) == 0
    assert "not complete" in capsys.readouterr().out
    assert main(["list", place, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["savepoints"]
    assert (row["status"], row["path"]) == ("begun", directory.url)
    assert main(["dispose", directory.url]) == 0
    assert "an incomplete savepoint" in capsys.readouterr().out


def test_a_disposal_that_was_interrupted_is_finished_by_the_next(
    begin: Callable[[SavepointFormat], Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = begin(SavepointFormat.NATIVE)
    kind = type(directory)
    whole = kind.delete

    def delete_one(self: Storage, names: Sequence[str]) -> None:
        whole(self, list(names)[:1])
        raise Killed

    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(kind, "delete", delete_one)
            with pytest.raises(Killed):
                dispose_savepoint(directory.url)
        with pytest.raises(CheckpointNotFoundError, match="dispose"):
            verify(directory.url)
    dispose_savepoint(directory.url)
    assert directory.parent().list() == []


@pytest.mark.parametrize("looked", [False, True], ids=["before", "after"])
def test_a_driver_that_is_still_alive_completes_nothing_that_was_disposed_of(
    storage: Storage, snapshot: CheckpointMetadata, place: str, looked: bool
) -> None:
    """Before the driver has looked for the files, or between that and ``_metadata``."""
    new = NewSavepoint(QUERY, place, RUN)

    def copied(copies: Sequence[SubtaskCopy]) -> list[Handle]:
        handles = run_copies_here(copies)
        if not looked:
            dispose_savepoint(new.path)
        return handles

    def check() -> None:
        if looked:
            dispose_savepoint(new.path)

    with pytest.raises(CheckpointAbortedError, match="disposed"):
        new.write(snapshot, storage, SavepointFormat.NATIVE, copied, check=check)
    with pytest.raises(CheckpointNotFoundError):
        verify(new.path)


def test_a_driver_that_is_still_alive_finds_the_name_taken(
    storage: Storage, snapshot: CheckpointMetadata, place: str
) -> None:
    """The disposal has only begun when the driver is about to complete the savepoint."""
    new = NewSavepoint(QUERY, place, RUN)

    def about_to_be_disposed_of(copies: Sequence[SubtaskCopy]) -> list[Handle]:
        open_storage(new.path).write("_metadata", [DISPOSED])
        return run_copies_here(copies)

    with pytest.raises(CheckpointAbortedError, match="disposed"):
        new.write(snapshot, storage, SavepointFormat.NATIVE, about_to_be_disposed_of)
    dispose_savepoint(new.path)
    assert open_storage(place).list() == []


def test_the_next_start_removes_what_the_run_before_left(
    storage: Storage,
    snapshot: CheckpointMetadata,
    place: str,
    begin: Callable[[SavepointFormat], Storage],
) -> None:
    """Scenario 32: after a kill of the driver."""
    log = HistoryLog(storage)
    left = begin(SavepointFormat.CANONICAL)
    of_another = NewSavepoint("another query", place, RUN)
    with pytest.raises(Killed):
        of_another.write(
            msgspec.structs.replace(snapshot, query_id="another query"),
            storage, SavepointFormat.NATIVE, killed_while_copying,
        )  # fmt: skip
    own = NewSavepoint(QUERY, place, "this run")
    done = NewSavepoint(QUERY, place, RUN)
    completed = done.write(snapshot, storage, SavepointFormat.NATIVE, run_copies_here)
    open_storage(done.path).write("_in_progress", [left.read("_in_progress")])
    gone = f"{place}/savepoint-012345-0123456789ab"
    for number, path in enumerate((left.url, of_another.path, done.path, gone)):
        log.note_begun(path, number, RUN)
    log.note_begun(own.path, 9, "this run")
    assert set(history(str(storage.root)).status) == {"begun"}
    remove_interrupted(log, QUERY, "this run")
    shown = history(str(storage.root))
    assert sorted(zip(shown.status, shown.path.fillna(""), strict=True)) == [
        ("aborted", ""), ("aborted", ""), ("begun", own.path), ("completed", completed.path),
    ]  # fmt: skip
    assert all("interrupted" in why for why in shown[shown.status == "aborted"].reason)
    (noted,) = (each for each in log.entries() if each.status is EntryStatus.COMPLETED)
    assert noted.format is SavepointFormat.NATIVE
    assert (noted.size_bytes, noted.files) == (completed.size_bytes, completed.files)
    there = {open_storage(path).name for path in (of_another.path, own.path, done.path)}
    assert set(open_storage(place).list()) == there
    assert verify(done.path).files == completed.files
    assert "_in_progress" not in open_storage(done.path).list()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", CorruptFileError),
        (b"[]", CorruptFileError),
        (b"\xff", CorruptFileError),
        ({"format": 2}, CorruptFileError),
        ({"began_at_ms": 10**18}, CorruptFileError),
        ({"began_at_ms": -1}, CorruptFileError),
        ({"files": ["../outside"]}, UnsafePathError),
        ({"files": ["/etc/hosts"]}, UnsafePathError),
        ({"files": ["note"]}, UnsafePathError),
        ({"files": ["other/note"]}, UnsafePathError),
    ],
)
def test_a_hostile_one_is_refused_and_nothing_is_deleted(
    begin: Callable[[SavepointFormat], Storage], content: object, error: type[Exception]
) -> None:
    """Scenario 44: paths and sizes in `_in_progress`."""
    directory = begin(SavepointFormat.NATIVE)
    found = json.loads(directory.read("_in_progress"))
    data = content if isinstance(content, bytes) else json.dumps({**found, **content}).encode()
    directory.delete(["_in_progress"])
    directory.write("_in_progress", [data])
    directory.write("note", [b"mine"])
    before = below(directory)
    with pytest.raises(error):
        dispose_savepoint(directory.url)
    assert below(directory) == before


def test_a_link_out_of_it_is_not_followed(
    storage: Storage, snapshot: CheckpointMetadata, tmp_path: Path
) -> None:
    """Scenario 44: a symbolic link in place of a directory."""
    new = NewSavepoint(QUERY, str(tmp_path / "sp"), RUN)
    with pytest.raises(Killed):
        new.write(snapshot, storage, SavepointFormat.NATIVE, killed_while_copying)
    shared, outside = Path(new.path) / "shared", tmp_path / "outside"
    shared.rename(outside)
    shared.symlink_to(outside)
    before = sorted(outside.iterdir())
    with pytest.raises(UnsafePathError, match="symbolic link"):
        dispose_savepoint(new.path)
    assert sorted(outside.iterdir()) == before
