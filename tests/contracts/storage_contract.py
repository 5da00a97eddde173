"""What every storage must do: the test suite that the tests of each storage inherit."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError, CorruptFileError, UnsafePathError
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage

LARGE = 9 << 20
"""More than one part of an upload."""

UNSAFE = [
    "", ".", "..", "/", "../x", "/etc/passwd", "a/../../b", "a/..", "a/../b", "../../x", "a\0b",
    "\0", "//etc", "./..", "s3://bucket/x", "file:///etc/passwd", "file:/etc/passwd", "a/s3://b",
    "memory://x", "simplecache::s3://b/x",
]  # fmt: skip


def _replaced(storage: Storage, relative: str, content: bytes) -> None:
    storage.delete([relative])
    storage.write(relative, [content])


class StorageContract:
    """The tests of a storage; inherit the class and override `url`.

    ::

        class TestMyStorage(StorageContract):
            @pytest.fixture
            def url(self) -> str:
                return f"mine://{new_name()}/check points"
    """

    @pytest.fixture
    def url(self) -> str:
        """Return the URL of an empty place; its last name must need quoting, such as a space."""
        raise NotImplementedError

    @pytest.fixture
    def lose_deletions(self) -> Callable[[int], None] | None:
        """Return what loses the answers to the next deletions, which the server carries out.

        Override it for a storage that repeats requests; the storage is opened after it.
        """
        return None

    @pytest.fixture
    def any_storage(self, url: str) -> Storage:
        return open_storage(url)

    @pytest.mark.parametrize("relative", UNSAFE)
    def test_a_path_out_of_the_root_is_unsafe(self, any_storage: Storage, relative: str) -> None:
        for use in (
            any_storage.child,
            any_storage.url_of,
            any_storage.read,
            any_storage.exists,
            any_storage.size_bytes,
            any_storage.list,
            any_storage.make_directory,
            any_storage.delete_directory,
            lambda path: any_storage.delete([path]),
            lambda path: any_storage.write(path, [b""]),
            lambda path: any_storage.verify_size(FileReference(path, 0, "")),
            lambda path: any_storage.open_verified(FileReference(path, 0, "")).__enter__(),
        ):
            with pytest.raises(UnsafePathError, match="does not stay inside"):
                use(relative)

    def test_a_new_storage_is_empty_and_nothing_is_made_by_looking(
        self, any_storage: Storage
    ) -> None:
        assert any_storage.list() == any_storage.list("shared") == []
        assert not any_storage.exists("shared")
        assert any_storage.size_bytes("shared/file") is None
        with pytest.raises(FileNotFoundError) as missing:
            any_storage.read("shared/file")
        assert any_storage.url_of("shared/file") in str(missing.value)
        any_storage.delete(["shared/file"])
        any_storage.delete_directory("shared")
        with pytest.raises(CheckpointNotFoundError):
            read_metadata(any_storage, "chk-1")
        assert any_storage.parent().list() == []

    def test_a_written_file_is_described_by_its_reference(self, any_storage: Storage) -> None:
        reference = any_storage.write("taskowned/file", iter([b"ab", b"", b"c"]))
        assert reference == FileReference("taskowned/file", 3, hashlib.sha256(b"abc").hexdigest())
        assert any_storage.read("taskowned/file") == b"abc"
        assert any_storage.size_bytes("taskowned/file") == 3
        any_storage.verify_size(reference)
        assert any_storage.list("taskowned") == ["file"]

    def test_an_empty_file_is_one(self, any_storage: Storage) -> None:
        reference = any_storage.write("empty", [])
        assert any_storage.read("empty") == b""
        with any_storage.open_verified(reference) as file:
            assert file.read() == b""

    def test_a_listing_says_which_names_are_directories(self, any_storage: Storage) -> None:
        any_storage.write("orders.json/offsets/0", [b"1"])
        any_storage.write("file", [b"2"])
        assert any_storage.entries() == {"orders.json": True, "file": False}
        assert any_storage.entries("orders.json") == {"offsets": True}
        assert any_storage.entries("orders.json/offsets") == {"0": False}
        assert any_storage.entries("missing") == {}
        assert any_storage.child("orders.json").entries() == {"offsets": True}

    @pytest.mark.parametrize("size", [8 << 20, 2 * LARGE])
    def test_a_large_file_comes_back_as_it_was(self, any_storage: Storage, size: int) -> None:
        content = (bytes(range(251)) * (size // 251 + 1))[:size]
        reader = io.BytesIO(content)
        reference = any_storage.write("shared/large", iter(lambda: reader.read(700_001), b""))
        assert reference.size_bytes == size
        assert reference.sha256 == hashlib.sha256(content).hexdigest()
        with any_storage.open_verified(reference) as file:
            assert file.read() == content

    def test_only_the_start_of_a_file_is_read(self, any_storage: Storage) -> None:
        content = bytes(range(251)) * 10_000
        any_storage.write("empty", [])
        any_storage.write("large", [content])
        assert any_storage.read_start("empty", 10) == b""
        for most_bytes in (1, 251, 2_000_001, len(content), len(content) + 1):
            assert any_storage.read_start("large", most_bytes) == content[:most_bytes]
        with pytest.raises(FileNotFoundError):
            any_storage.read_start("missing", 10)

    @pytest.mark.parametrize("size", [3, LARGE])
    def test_write_never_replaces_a_file(self, any_storage: Storage, size: int) -> None:
        first, second = b"1" * size, b"2" * size
        any_storage.write("chk-1/_metadata", [first])
        for content in (second, first):
            with pytest.raises(FileExistsError) as taken:
                any_storage.write("chk-1/_metadata", [content])
            assert any_storage.url_of("chk-1/_metadata") in str(taken.value)
        assert any_storage.read("chk-1/_metadata") == first
        assert any_storage.list("chk-1") == ["_metadata"]

    @pytest.mark.parametrize("size", [1, LARGE])
    def test_a_write_whose_content_fails_leaves_no_file(
        self, any_storage: Storage, size: int
    ) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"x" * size
            raise InterruptedError

        with pytest.raises(InterruptedError):
            any_storage.write("shared/file", chunks())
        assert any_storage.list("shared") == []
        assert not any_storage.exists("shared/file")

    def test_one_of_many_writers_of_a_name_succeeds(self, url: str) -> None:
        storage = open_storage(url)
        writers = 8
        at_once = threading.Barrier(writers)
        written, refused = [], []

        def write(number: int) -> None:
            at_once.wait()
            try:
                storage.write("chk-1/_author", [str(number).encode()])
            except FileExistsError:
                refused.append(number)
            else:
                written.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(written) == 1
        assert len(refused) == writers - 1
        assert storage.read("chk-1/_author") == str(written[0]).encode()

    def test_names_are_listed_in_order_and_directories_once(self, any_storage: Storage) -> None:
        for name in (
            "shared/b",
            "shared/a",
            "shared/.hidden",
            "shared/deep/file",
            "chk-1/_metadata",
        ):
            any_storage.write(name, [b"x"])
        assert any_storage.list("shared") == [".hidden", "a", "b", "deep"]
        assert any_storage.list() == ["chk-1", "shared"]
        assert any_storage.list("shared/a") == any_storage.list("share") == []
        assert any_storage.exists("shared")
        assert any_storage.exists("shared/a")
        assert not any_storage.exists("shared/c")
        assert not any_storage.exists("share")
        assert any_storage.size_bytes("shared") is None

    def test_deleted_files_are_gone_and_the_others_stay(self, any_storage: Storage) -> None:
        for name in ("a/1", "a/2", "b/1"):
            any_storage.write(name, [b"x"])
        any_storage.delete(["a/1", "b/1", "c/never there"])
        any_storage.delete(["a/1"])
        assert any_storage.list("a") == ["2"]
        assert any_storage.list("b") == []
        any_storage.write("a/1", [b"again"])
        assert any_storage.read("a/1") == b"again"

    def test_a_deleted_directory_is_gone_with_its_content(self, any_storage: Storage) -> None:
        for name in ("chk-1/deep/file", "chk-1/file", "chk-10/file", "chk-2/file"):
            any_storage.write(name, [b"x"])
        any_storage.delete_directory("chk-1")
        any_storage.delete_directory("chk-3")
        assert any_storage.list() == ["chk-10", "chk-2"]
        assert any_storage.read("chk-10/file") == b"x"

    def test_names_that_mean_something_elsewhere_mean_nothing_here(
        self, any_storage: Storage
    ) -> None:
        names = ["a b", "a%20b", "a*", "a?", "[ab]", "a#b", "ä", "a:b", "a::b", "~", "a+b", "a?v=1"]
        for name in names:
            any_storage.write(f"odd/{name}", [name.encode()])
        assert any_storage.list("odd") == sorted(names)
        any_storage.delete(["odd/a*", "odd/a?", "odd/[ab]"])
        rest = sorted(set(names) - {"a*", "a?", "[ab]"})
        assert any_storage.list("odd") == rest
        assert [any_storage.read(f"odd/{name}").decode() for name in rest] == rest

    def test_a_directory_can_be_made_once(self, any_storage: Storage) -> None:
        any_storage.make_directory("chk-1")
        assert any_storage.exists("chk-1")
        assert any_storage.list() == ["chk-1"]
        with pytest.raises(FileExistsError) as taken:
            any_storage.make_directory("chk-1")
        assert any_storage.url_of("chk-1") in str(taken.value)

    @pytest.mark.parametrize(
        ("content", "says"),
        [(None, "missing"), (b"", "0 bytes"), (b"ab", "2 bytes"), (b"abcd", "4 bytes")],
    )
    def test_a_missing_or_wrong_sized_file_is_corrupt_and_named(
        self, any_storage: Storage, content: bytes | None, says: str
    ) -> None:
        """Scenario 7: any file, on every storage."""
        reference = any_storage.write("shared/file", [b"abc"])
        any_storage.delete(["shared/file"])
        if content is not None:
            any_storage.write("shared/file", [content])
        named = f"{any_storage.url_of('shared/file')}.*{says}"
        with pytest.raises(CorruptFileError, match=named):
            any_storage.verify_size(reference)
        with pytest.raises(CorruptFileError, match=named), any_storage.open_verified(reference):
            pytest.fail("opened")

    @pytest.mark.parametrize("position", [0, LARGE - 1])
    def test_a_file_of_the_right_size_with_a_changed_byte_is_corrupt(
        self, any_storage: Storage, position: int
    ) -> None:
        """Scenario 7: the digest finds it, and the error names the file."""
        reference = any_storage.write("shared/file", [b"x" * LARGE])
        _replaced(
            any_storage, "shared/file", b"x" * position + b"y" + b"x" * (LARGE - 1 - position)
        )
        any_storage.verify_size(reference)
        named = any_storage.url_of("shared/file")
        with pytest.raises(CorruptFileError, match=named), any_storage.open_verified(reference):
            pytest.fail("opened")

    def test_a_file_is_given_another_content(self, any_storage: Storage) -> None:
        any_storage.write("a/file", [b"abc"])
        for content in (b"abcd", b"", b"x"):
            any_storage.replace("a/file", content)
            assert any_storage.read("a/file") == content
        any_storage.replace("b/new", b"new")
        assert any_storage.read("b/new") == b"new"
        assert any_storage.list("a") == ["file"]

    def test_something_else_in_the_place_of_a_file_is_corrupt(self, any_storage: Storage) -> None:
        any_storage.write("shared/file/inside", [b"abc"])
        for path in ("shared", "shared/file"):
            reference = FileReference(path, any_storage.size_bytes(path) or 0, "0" * 64)
            with pytest.raises(CorruptFileError, match=path):
                any_storage.verify_size(reference)
            with pytest.raises(CorruptFileError, match=path), any_storage.open_verified(reference):
                pytest.fail("opened")

    def test_a_verified_file_is_open_at_its_start_and_closed_afterwards(
        self, any_storage: Storage
    ) -> None:
        reference = any_storage.write("shared/file", [b"abc"])
        with any_storage.open_verified(reference) as file:
            assert file.read(1) + file.read() == b"abc"
        assert file.closed

    def test_files_are_copied_from_and_to_others_checked(
        self, any_storage: Storage, tmp_path: Path
    ) -> None:
        content = b"abc" * 1_000_000
        reference = any_storage.write("shared/file", [content])
        local = LocalStorage(tmp_path / "target")
        copied = local.copy_in(any_storage, reference, "other/name")
        assert copied == msgspec.structs.replace(reference, path="other/name")
        assert local.read("other/name") == content
        back = any_storage.copy_in(local, copied, "back")
        with any_storage.open_verified(back) as file:
            assert file.read() == content

    @pytest.mark.parametrize("method", ["copy_in", "link_or_copy_in"])
    def test_a_copy_of_a_changed_file_leaves_nothing(
        self, any_storage: Storage, method: str
    ) -> None:
        reference = any_storage.write("source/file", [b"abc"])
        _replaced(any_storage, "source/file", b"abd")
        target = any_storage.child("target")
        with pytest.raises(CorruptFileError):
            getattr(target, method)(any_storage, reference, "file")
        assert target.list() == []

    @pytest.mark.parametrize("method", ["copy_in", "link_or_copy_in"])
    @pytest.mark.parametrize("deleted", ["source/file", "target/a/b"])
    def test_each_of_a_file_and_its_copy_outlives_the_other(
        self, any_storage: Storage, method: str, deleted: str
    ) -> None:
        reference = any_storage.write("source/file", [b"abc"])
        target = any_storage.child("target")
        copied = getattr(target, method)(any_storage, reference, "a/b")
        assert copied == msgspec.structs.replace(reference, path="a/b")
        target.write("used", [b"xyz"])
        with pytest.raises(FileExistsError):
            getattr(target, method)(any_storage, reference, "used")
        assert target.read("used") == b"xyz"
        any_storage.delete([deleted])
        (left,) = {"source/file", "target/a/b"} - {deleted}
        assert any_storage.read(left) == b"abc"
        assert not any_storage.exists(deleted)

    def test_a_child_has_the_files_below_and_its_parent_is_where_it_came_from(
        self, any_storage: Storage, url: str
    ) -> None:
        assert any_storage.url == url
        assert any_storage.name == "check points"
        child = any_storage.child("query/chk-1")
        assert child.url == any_storage.url_of("query/chk-1") == f"{url}/query/chk-1"
        child.write("_metadata", [b"x"])
        assert any_storage.read("query/chk-1/_metadata") == b"x"
        assert child.parent().parent().url == url
        assert child.parent().list() == ["chk-1"]
        assert open_storage(child.url).read("_metadata") == b"x"
        assert open_storage(f"{child.url}/").list() == ["_metadata"]

    def test_files_below_a_directory_are_listed_at_every_depth(self, any_storage: Storage) -> None:
        assert any_storage.files_below("state") == ()
        for path in ("state/0/1/2.delta", "state/0/_metadata/metadata", "state 2/x"):
            any_storage.write(path, [b"x"])
        any_storage.make_directory("state/empty")
        found = [path for path in any_storage.files_below("state") if "empty" not in path]
        assert found == ["state/0/1/2.delta", "state/0/_metadata/metadata"]
        assert any_storage.files_below("state/0/1/2.delta") == ()

    def test_a_file_of_another_content_has_another_fingerprint(self, any_storage: Storage) -> None:
        with pytest.raises(FileNotFoundError):
            any_storage.fingerprint("state/file")
        any_storage.write("state/file", [b"abc"])
        before = any_storage.fingerprint("state/file")
        assert any_storage.fingerprint("state/file") == before
        _replaced(any_storage, "state/file", b"abcd")
        assert any_storage.fingerprint("state/file") != before

    def test_a_file_is_read_in_chunks(self, any_storage: Storage) -> None:
        content = bytes(range(251)) * (2 * LARGE // 251)
        any_storage.write("state/file", [content])
        assert b"".join(any_storage.chunks("state/file")) == content
        with pytest.raises(FileNotFoundError):
            list(any_storage.chunks("state/missing"))

    def test_a_directory_is_moved_with_all_that_is_in_it(self, any_storage: Storage) -> None:
        """A file too; what is next to it stays."""
        for path in ("state/0/1.delta", "state/0/2.delta", "state/1/1.delta", "state2/x", "id"):
            any_storage.write(path, [path.encode()])
        any_storage.write("kept-1/note", [b"note"])
        any_storage.move("state", "kept-1/state")
        any_storage.move("id", "kept-1/id")
        assert not any_storage.exists("state")
        assert not any_storage.exists("id")
        assert any_storage.list() == ["kept-1", "state2"]
        assert any_storage.read("kept-1/id") == b"id"
        assert any_storage.files_below("kept-1/state") == tuple(
            f"kept-1/state/{name}" for name in ("0/1.delta", "0/2.delta", "1/1.delta")
        )
        assert any_storage.read("kept-1/state/0/2.delta") == b"state/0/2.delta"

    def test_nothing_is_moved_at_once_to_a_directory_that_is_gone(
        self, any_storage: Storage
    ) -> None:
        """So a driver that was paused moves nothing after another one has removed it."""
        if not any_storage.moves_at_once:
            return
        any_storage.write("state/0/1.delta", [b"x"])
        with pytest.raises(OSError):  # noqa: PT011  # each storage has another one
            any_storage.move("state", "kept-1/state")
        assert any_storage.list() == ["state"]
        assert any_storage.read("state/0/1.delta") == b"x"

    def test_a_move_that_was_interrupted_is_finished_by_the_next(
        self, any_storage: Storage
    ) -> None:
        if any_storage.moves_at_once:
            return
        for path in ("state/0", "state/1", "state/2", "kept/state/0"):
            any_storage.write(path, [path[-1:].encode()])
        any_storage.delete(["state/1"])
        any_storage.write("kept/state/1", [b"1"])
        any_storage.move("state", "kept/state")
        assert any_storage.list() == ["kept"]
        assert [any_storage.read(f"kept/state/{n}") for n in range(3)] == [b"0", b"1", b"2"]

    def test_only_a_directory_without_files_is_removed(self, any_storage: Storage) -> None:
        """So a driver that was paused removes nothing that another one has written."""
        any_storage.write("state/0/1.delta", [b"x"])
        any_storage.remove_if_empty("state/0")
        any_storage.remove_if_empty("state")
        any_storage.remove_if_empty("never there")
        assert any_storage.read("state/0/1.delta") == b"x"
        any_storage.delete(["state/0/1.delta"])
        any_storage.remove_if_empty("state/0")
        any_storage.remove_if_empty("state")
        assert not any_storage.exists("state")

    def test_a_directory_that_was_removed_is_gone(self, any_storage: Storage) -> None:
        any_storage.write("state/0/1.delta", [b"x"])
        any_storage.remove_directory("state")
        assert not any_storage.exists("state")
        any_storage.remove_directory("state")

    def test_what_is_deleted_goes_although_answers_get_lost(
        self, lose_deletions: Callable[[int], None] | None, url: str
    ) -> None:
        """The request is sent again, and the server does not find the file any more."""
        if lose_deletions is None:
            pytest.skip("the storage repeats no request")
        storage = open_storage(url)
        for path in ("state/0", "state/deep/1", "state/2", "moved/1", "moved/2", "file", "stays"):
            storage.write(path, [b"x"])
        lose_deletions(2)
        storage.remove_directory("state")
        lose_deletions(1)
        storage.delete(["file"])
        lose_deletions(1)
        storage.move("moved", "kept")
        assert storage.list() == ["kept", "stays"]
        assert storage.list("kept") == ["1", "2"]
