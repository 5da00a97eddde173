"""Storage: paths stay inside, writes are whole and durable, reads are checked."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.errors import CorruptFileError, UnsafePathError
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage

Log = list[tuple[str, str]]


@pytest.fixture
def disk_log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Return what is synced, linked and unlinked, in order; all of it really happens."""
    log: Log = []
    fsync, link, unlink = os.fsync, os.link, os.unlink

    def logged_fsync(descriptor: int) -> None:
        log.append(("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        fsync(descriptor)

    def logged_link(source: Path, target: Path) -> None:
        log.append(("link", str(target)))
        link(source, target)

    def logged_unlink(path: Path) -> None:
        log.append(("unlink", str(path)))
        unlink(path)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "link", logged_link)
    monkeypatch.setattr(os, "unlink", logged_unlink)
    return log


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


@given(st.text(alphabet="a./\\~\0 é", max_size=12))
def test_no_path_at_all_leaves_the_root(relative: str) -> None:
    root = Path("/nowhere/checkpoints")
    try:
        path = LocalStorage(root).path(relative)
    except UnsafePathError:
        return
    assert Path(os.path.normpath(path)).is_relative_to(root)
    assert Path(os.path.normpath(path)) != root


@pytest.mark.parametrize("link_to", ["/etc", "..", "../other"])
def test_a_symbolic_link_out_of_the_root_is_unsafe(storage: Storage, link_to: str) -> None:
    storage.root.mkdir()
    (storage.root.parent / "other").mkdir()
    (storage.root.parent / "other" / "passwd").write_text("keep")
    (storage.root / "shared").symlink_to(link_to)
    for relative in ("shared", "shared/passwd", "shared/new/file"):
        with pytest.raises(UnsafePathError, match="symbolic link"):
            storage.path(relative)
        with pytest.raises(UnsafePathError):
            storage.write(relative, [b"x"])
        with pytest.raises(UnsafePathError):
            storage.delete([relative])
    assert (storage.root.parent / "other" / "passwd").read_text() == "keep"


def test_a_link_in_a_circle_is_unsafe(storage: Storage) -> None:
    storage.root.mkdir()
    (storage.root / "circle").symlink_to("circle")
    with pytest.raises(UnsafePathError):
        storage.path("circle/file")


def test_a_link_inside_the_root_and_a_linked_root_are_fine(tmp_path: Path) -> None:
    (tmp_path / "real" / "a").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "b").symlink_to("a")
    storage = LocalStorage(tmp_path / "linked")
    storage.write("b/file", [b"x"])
    assert storage.read("a/file") == b"x"


def test_a_file_is_durable_before_it_has_its_name_and_the_name_when_write_returns(
    storage: Storage, disk_log: Log
) -> None:
    """Scenario 9: the order of the two syncs."""
    storage.write("shared/deep/file", [b"abc"])
    root = storage.root
    deep = root / "shared" / "deep"
    above = {str(path) for path in root.parent.parents}
    steps = [step for step in disk_log if step[0] != "unlink" and step[1] not in above]
    assert steps[:3] == [("fsync", str(p)) for p in (root.parent, root, root / "shared")]
    what, temporary = steps[3]
    assert what == "fsync"
    assert Path(temporary).parent == deep
    assert temporary != str(deep / "file")
    assert steps[4:] == [("link", str(deep / "file")), ("fsync", str(deep))]
    assert disk_log[-1] == ("fsync", str(deep)), "the temporary name's end is durable too"


def test_a_deletion_is_durable_when_delete_returns(
    storage: Storage, put_file: Callable[..., Path], disk_log: Log
) -> None:
    paths = [put_file(name) for name in ("a/1", "a/2", "b/1")]
    storage.delete(["a/1", "a/2", "b/1", "c/never there"])
    assert files_below(storage.root) == []
    synced = {path: number for number, (what, path) in enumerate(disk_log) if what == "fsync"}
    for path in paths:
        assert synced[str(path.parent)] > disk_log.index(("unlink", str(path)))


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EACCES, errno.ENOENT, errno.ENOTDIR])
def test_a_directory_that_cannot_be_listed_is_not_empty(
    storage: Storage,
    put_file: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    error: int,
) -> None:
    """One that was just deleted is left out; with any other, nothing is listed as a whole."""
    for name in ("a/b/1", "a/c/2"):
        put_file(name)
    scandir = os.scandir

    def broken(path: str) -> object:
        if str(path).endswith("/b"):
            raise OSError(error, os.strerror(error), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", broken)
    if error in (errno.ENOENT, errno.ENOTDIR):
        assert storage.files_below("a") == ("a/c/2",)
        return
    with pytest.raises(OSError, match=os.strerror(error)):
        storage.files_below("a")


def test_a_write_whose_content_fails_leaves_no_file(storage: Storage) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * 100_000
        raise InterruptedError

    with pytest.raises(InterruptedError):
        storage.write("shared/file", chunks())
    assert files_below(storage.root) == []


def test_a_write_that_cannot_be_made_durable_leaves_no_file(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write("shared/before", [b"x"])

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        storage.write("shared/file", [b"x"])
    assert files_below(storage.root) == ["shared/before"]


def test_a_directory_is_made_once_and_its_entry_is_durable(storage: Storage, disk_log: Log) -> None:
    storage.make_directory("chk-1")
    assert storage.path("chk-1").is_dir()
    assert disk_log[-1] == ("fsync", str(storage.root))
    disk_log.clear()
    with pytest.raises(FileExistsError):
        storage.make_directory("chk-1")
    assert disk_log == []
    with pytest.raises(UnsafePathError):
        storage.make_directory("../chk-1")


def test_a_directory_of_a_killed_process_is_made_durable(storage: Storage, disk_log: Log) -> None:
    """The other process was killed after it had made the directory, before it synced the entry."""
    (storage.root / "shared").mkdir(parents=True)
    storage.write("shared/file", [b"x"])
    synced = [path for what, path in disk_log if what == "fsync"]
    assert {str(storage.root), str(storage.root.parent)} <= {*synced}
    disk_log.clear()
    storage.write("shared/another", [b"x"])
    assert str(storage.root) not in [path for _, path in disk_log], "once in each process"


def test_a_file_of_a_killed_process_is_made_durable_when_it_is_found(
    storage: Storage, put_file: Callable[..., Path], disk_log: Log
) -> None:
    path = put_file("drivers/1")
    with pytest.raises(FileExistsError):
        storage.write("drivers/1", [b"x"])
    assert ("fsync", str(path.parent)) in disk_log
    disk_log.clear()
    storage.make_durable("drivers")
    assert ("fsync", str(path.parent)) in disk_log


def test_a_file_in_place_of_a_directory_is_not_taken_for_the_file_that_is_written(
    storage: Storage, put_file: Callable[..., Path]
) -> None:
    """Who looks for an unused name would look for ever."""
    path = put_file("drivers")
    for name in ("drivers/1", "drivers/deep/1"):
        with pytest.raises(NotADirectoryError, match="move it away") as caught:
            storage.write(name, [b"x"])
        assert caught.value.filename == str(path)
    assert storage.list() == ["drivers"]


def test_a_move_is_durable_and_replaces_nothing(storage: Storage, disk_log: Log) -> None:
    storage.write("old/file", [b"x"])
    storage.make_directory("taken")
    storage.make_directory("new")
    disk_log.clear()
    storage.move("old", "new/place")
    assert storage.read("new/place/file") == b"x"
    assert not storage.exists("old")
    synced = [path for what, path in disk_log if what == "fsync"]
    assert synced[-2:] == [str(storage.root / "new"), str(storage.root)]
    with pytest.raises(FileExistsError):
        storage.move("new", "taken")
    assert storage.list() == ["new", "taken"]
    with pytest.raises(UnsafePathError):
        storage.move("taken", "../taken")


@pytest.fixture
def savepoint(tmp_path: Path) -> tuple[LocalStorage, FileReference]:
    """A savepoint's storage, and a file of it."""
    storage = LocalStorage(tmp_path / "savepoint")
    return storage, storage.write("shared/base", [b"abc"])


def test_a_file_of_one_file_system_is_linked_and_both_names_are_durable(
    savepoint: tuple[LocalStorage, FileReference], tmp_path: Path, disk_log: Log
) -> None:
    """Whoever copied the savepoint to its place may not have synced it."""
    source, reference = savepoint
    target = LocalStorage(tmp_path / "new")
    linked = target.link_or_copy_in(source, reference, "shared/a")
    original, path = source.root / reference.path, target.root / linked.path
    assert path.samefile(original)
    assert disk_log[-3:] == [
        ("link", str(path)),
        ("fsync", str(original)),
        ("fsync", str(path.parent)),
    ]
    assert files_below(target.root) == ["shared/a"]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_a_file_that_cannot_be_linked_is_copied(
    savepoint: tuple[LocalStorage, FileReference],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    source, reference = savepoint
    link = os.link

    def refused(old: Path, new: Path) -> None:
        if Path(old).is_relative_to(source.root):
            raise OSError(number, os.strerror(number))
        link(old, new)

    monkeypatch.setattr(os, "link", refused)
    target = LocalStorage(tmp_path / "new")
    copied = target.link_or_copy_in(source, reference, "shared/a")
    assert target.read(copied.path) == b"abc"
    assert not (target.root / copied.path).samefile(source.root / reference.path)


def test_what_takes_the_place_of_a_checked_file_is_not_linked(
    savepoint: tuple[LocalStorage, FileReference], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A savepoint is written anew while it is restored: the other content is refused."""
    source, reference = savepoint
    link, original = os.link, source.root / reference.path

    def replaced_first(old: Path, new: Path) -> None:
        if Path(old) == original:
            original.unlink()
            original.write_bytes(b"xyz")
        link(old, new)

    monkeypatch.setattr(os, "link", replaced_first)
    target = LocalStorage(tmp_path / "new")
    with pytest.raises(CorruptFileError):
        target.link_or_copy_in(source, reference, "shared/a")
    assert files_below(target.root) == []
