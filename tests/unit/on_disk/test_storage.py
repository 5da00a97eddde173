"""Storage: paths stay inside, writes are whole and durable, reads are checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.errors import CorruptFileError, NotBuiltYetError, UnsafePathError
from pyspark_ckpt.on_disk.handle import FileReference
from pyspark_ckpt.on_disk.storage import LocalStorage, Storage, open_storage

Log = list[tuple[str, str]]


@pytest.fixture
def disk_log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What is synced, linked and unlinked, in order; all of it really happens."""
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


@pytest.mark.parametrize(
    "relative",
    [
        "", ".", "..", "/", "../x", "/etc/passwd", "a/../../b", "a/..", "a/../b", "../../x",
        "a\0b", "\0", "//etc", "./..",
    ],
)  # fmt: skip
def test_a_path_out_of_the_root_is_unsafe(storage: Storage, relative: str) -> None:
    for use in (
        storage.path,
        storage.read,
        storage.exists,
        storage.list,
        lambda path: storage.delete([path]),
        storage.delete_directory,
        lambda path: storage.write(path, [b""]),
        lambda path: storage.verify_size(FileReference(path, 0, "")),
        lambda path: storage.open_verified(FileReference(path, 0, "")).__enter__(),
    ):
        with pytest.raises(UnsafePathError, match="does not stay inside"):
            use(relative)


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


def test_a_written_file_is_described_by_its_reference(storage: Storage) -> None:
    reference = storage.write("taskowned/file", iter([b"ab", b"", b"c"]))
    assert reference == FileReference("taskowned/file", 3, hashlib.sha256(b"abc").hexdigest())
    assert storage.read("taskowned/file") == b"abc"
    assert files_below(storage.root) == ["taskowned/file"]


def test_a_file_is_durable_before_it_has_its_name_and_the_name_when_write_returns(
    storage: Storage, disk_log: Log
) -> None:
    storage.write("shared/deep/file", [b"abc"])
    root = storage.root
    deep = root / "shared" / "deep"
    steps = [step for step in disk_log if step[0] != "unlink"]
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


def test_write_never_replaces_a_file(storage: Storage) -> None:
    storage.write("chk-1/_metadata", [b"first"])
    with pytest.raises(FileExistsError):
        storage.write("chk-1/_metadata", [b"second"])
    assert storage.read("chk-1/_metadata") == b"first"
    assert files_below(storage.root) == ["chk-1/_metadata"]


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


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "missing"), (b"", "0 bytes"), (b"ab", "2 bytes"), (b"abcd", "4 bytes")],
)
def test_a_missing_or_wrong_sized_file_is_corrupt_and_named(
    storage: Storage, content: bytes | None, says: str
) -> None:
    reference = storage.write("shared/file", [b"abc"])
    path = storage.path("shared/file")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=f"{path}.*{says}"):
        storage.verify_size(reference)
    with pytest.raises(CorruptFileError, match=f"{path}.*{says}"), storage.open_verified(reference):
        pytest.fail("opened")


def test_a_file_of_the_right_size_with_a_changed_byte_is_corrupt(storage: Storage) -> None:
    reference = storage.write("shared/file", [b"x" * 3_000_000])
    path = storage.path("shared/file")
    for position in (0, 1_500_000, 2_999_999):
        path.write_bytes(b"x" * position + b"y" + b"x" * (2_999_999 - position))
        storage.verify_size(reference)
        with pytest.raises(CorruptFileError, match=str(path)), storage.open_verified(reference):
            pytest.fail("opened")


@pytest.mark.parametrize("in_the_way", ["shared", "shared/file/inside"])
def test_something_else_in_the_place_of_a_file_is_corrupt(
    storage: Storage, put_file: Callable[..., Path], in_the_way: str
) -> None:
    put_file(in_the_way)
    size = (storage.root / "shared").stat().st_size
    reference = FileReference("shared/file", size, "0" * 64)
    with pytest.raises(CorruptFileError, match="shared/file"):
        storage.verify_size(reference)
    with pytest.raises(CorruptFileError, match="shared/file"), storage.open_verified(reference):
        pytest.fail("opened")


def test_a_verified_file_is_open_at_its_start_and_closed_afterwards(storage: Storage) -> None:
    reference = storage.write("shared/file", [b"abc"])
    with storage.open_verified(reference) as file:
        assert file.read() == b"abc"
    assert file.closed


def test_a_copy_is_checked_and_durable(storage: Storage, tmp_path: Path) -> None:
    reference = storage.write("shared/file", [b"abc" * 1_000_000])
    target = LocalStorage(tmp_path / "target")
    copied = target.copy_in(storage, reference, "other/name")
    assert copied == msgspec.structs.replace(reference, path="other/name")
    assert target.read("other/name") == b"abc" * 1_000_000


def test_a_copy_of_a_changed_file_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    reference = storage.write("shared/file", [b"abc"])
    storage.path("shared/file").write_bytes(b"abd")
    target = LocalStorage(tmp_path / "target")
    with pytest.raises(CorruptFileError):
        target.copy_in(storage, reference, "file")
    assert target.list() == []


def test_names_are_listed_in_order_and_a_missing_directory_has_none(
    storage: Storage, put_file: Callable[..., Path]
) -> None:
    assert storage.list() == storage.list("shared") == []
    for name in ("shared/b", "shared/a", "shared/.hidden", "chk-1/_metadata"):
        put_file(name)
    assert storage.list("shared") == [".hidden", "a", "b"]
    assert storage.list() == ["chk-1", "shared"]
    assert storage.exists("shared")
    assert storage.exists("shared/a")
    assert not storage.exists("shared/c")


def test_a_deleted_directory_is_gone_with_its_content(
    storage: Storage, put_file: Callable[..., Path]
) -> None:
    put_file("chk-1/deep/file")
    put_file("chk-2/file")
    storage.delete_directory("chk-1")
    storage.delete_directory("chk-3")
    assert storage.list() == ["chk-2"]


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_local_path_or_url_is_opened_and_not_created(tmp_path: Path, prefix: str) -> None:
    storage = open_storage(f"{prefix}{tmp_path}/new dir")
    assert storage.root == tmp_path / "new dir"
    assert not storage.root.exists()


def test_a_relative_path_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("savepoints").root == tmp_path / "savepoints"


@pytest.mark.parametrize("name", ["a::b", "a%20b", "a b", "a#b?c", "a:b", "ä", "a*[b]"])
def test_a_path_with_unusual_characters_is_itself(tmp_path: Path, name: str) -> None:
    assert open_storage(f"{tmp_path}/{name}").root == tmp_path / name


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/x", "hdfs://host/x", "hdfs:/x", "abfss://c@a/x", "memory://x", "http://h/x"],
)
def test_another_file_system_is_refused_by_name(url: str) -> None:
    with pytest.raises(NotBuiltYetError, match=url):
        open_storage(url)


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
