"""File systems without hard links: they work by a rename that replaces nothing, or are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.storage import mount
from pyspark_ckpt.storage.open import open_storage
from tests.contracts.storage_contract import StorageContract
from tests.servers.fuse import mounted


@pytest.fixture(autouse=True)
def _nothing_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount, "_usable_devices", set())


def refuse_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    monkeypatch.setattr(os, "link", link)


class TestLocalStorageWithoutHardLinks(StorageContract):
    """Only the links are refused; the renames are the kernel's."""

    @pytest.fixture
    def url(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        refuse_links(monkeypatch, errno.EOPNOTSUPP)
        return str(tmp_path / "check points")


def test_a_disk_is_usable_and_nothing_is_left_or_made(tmp_path: Path) -> None:
    open_storage(str(tmp_path / "not" / "there")).check_usable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", sorted(mount._NO_LINKS))
def test_a_disk_without_links_is_usable_by_its_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_links(monkeypatch, number)
    open_storage(str(tmp_path)).check_usable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO])
def test_a_link_that_was_made_although_its_answer_got_lost_is_its_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A client of NFS sends a request again, and the server refuses the second one, or is away."""
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        link(source, target)
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    monkeypatch.setattr(os, "link", repeated)
    storage = open_storage(str(tmp_path))
    storage.write("file", [b"mine"])
    assert storage.read("file") == b"mine"
    with pytest.raises(FileExistsError):
        storage.write("file", [b"mine"])
    assert storage.list() == ["file"]


def test_a_full_disk_is_no_reason_to_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(monkeypatch, errno.EDQUOT)
    storage = open_storage(str(tmp_path))
    with pytest.raises(OSError, match="quota"):
        storage.write("file", [b"x"])
    assert storage.list() == []


def test_a_file_system_that_gives_one_name_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", os.replace)
    with pytest.raises(ConfigurationError, match="one name to two files"):
        open_storage(str(tmp_path)).check_usable()
    assert list(tmp_path.iterdir()) == []


def test_a_real_mount_without_links_and_such_renames_is_refused(tmp_path: Path) -> None:
    with mounted(tmp_path) as place:
        storage = open_storage(str(place / "checkpoints"))
        with pytest.raises(ConfigurationError) as refused:
            storage.check_usable()
        assert "'fuse.rclone'" in str(refused.value)
        assert "neither hard links nor a rename" in str(refused.value)
        assert "s3://bucket/prefix" in str(refused.value)
        assert list(place.iterdir()) == []
        with pytest.raises(OSError, match="file"):
            storage.write("file", [b"x"])
        assert storage.list() == []


def test_a_disk_that_could_not_be_checked_is_checked_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount, "_usable_devices", set())
    touch = Path.touch

    def denied(self: Path, *, exist_ok: bool) -> None:
        raise PermissionError(self)

    monkeypatch.setattr(Path, "touch", denied)
    mount.check_mount(tmp_path)
    assert mount._usable_devices == set()
    monkeypatch.setattr(Path, "touch", touch)
    mount.check_mount(tmp_path)
    assert mount._usable_devices == {tmp_path.stat().st_dev}
