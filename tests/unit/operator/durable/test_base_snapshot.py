"""Base snapshots: a rebuild reads exactly what was written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import (
    CHANGES_FORMAT,
    BaseFile,
    BaseSnapshot,
    Handle,
    Segment,
)
from pyspark_ckpt.formats.layout import operator_mark
from pyspark_ckpt.operator.durable.stored_files import make_base, read_base
from pyspark_ckpt.storage.open import LocalStorage, Storage
from state_backends import Changes, StateBackend, open_backend


def entries(storage: Storage, base: BaseSnapshot) -> list[tuple[bytes, bytes | None]]:
    return [
        pair
        for part in read_base(storage, base)
        for pair in zip(part.keys, part.values, strict=True)
    ]


def test_a_base_holds_all_state_at_the_version_of_the_handle(
    storage: Storage, handle: Handle, backend: StateBackend
) -> None:
    keys = [b"%06d" % number for number in range(25_000)]
    backend.apply([Changes(keys, [b"v" + key for key in keys])], "here")
    grown = msgspec.structs.replace(handle, segments=(Segment("9-s", 9, 1, 1, inline=b""),))
    base = make_base(storage, backend, grown, 9)
    assert base.version == grown.version
    assert (base.epoch, base.entries, base.format) == (9, 25_000, CHANGES_FORMAT)
    (reference,) = (each.file for each in base.files)
    assert base.size_bytes == reference.size_bytes
    assert reference.path.startswith(f"shared/base-{operator_mark(grown.uid)}-3-9-")
    storage.verify_size(reference)
    assert entries(storage, base) == [(key, b"v" + key) for key in keys]
    assert backend.version() == "here"


def test_a_base_of_no_state_is_whole_too(
    storage: Storage, handle: Handle, backend: StateBackend
) -> None:
    base = make_base(storage, backend, handle, 9)
    assert base.entries == 0
    assert entries(storage, base) == []


def test_a_base_of_an_unknown_format_is_refused(
    storage: Storage, handle: Handle, backend: StateBackend
) -> None:
    base = msgspec.structs.replace(make_base(storage, backend, handle, 9), format="later")
    with pytest.raises(CorruptFileError, match=r"'later'.*upgrade"):
        entries(storage, base)


STATE = [(b"%04d" % number, b"v%d" % number) for number in range(1_000)]


def stored_database(place: Path, version: str) -> tuple[LocalStorage, BaseSnapshot]:
    """Return a base that consists of the files of a database."""
    storage = LocalStorage(place / "stored")
    with open_backend("rocksdb", place / "db", create=True) as backend:
        backend.apply([Changes([k for k, _ in STATE], [v for _, v in STATE])], version)
        names = backend.snapshot_files(place / "taken")
    files = [
        BaseFile(name, storage.write(f"shared/{name}", [(place / "taken" / name).read_bytes()]))
        for name in names
    ]
    base = BaseSnapshot(version, 1, None, tuple(files), "rocksdb")
    return storage, base


@pytest.mark.parametrize("can_link", [True, False])
def test_a_database_is_read_without_a_change_to_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    storage, base = stored_database(tmp_path, "v")
    stored = tmp_path / "stored" / "shared"
    before = {path.name: path.read_bytes() for path in stored.iterdir()}
    if not can_link:

        def refused(*_: Any) -> None:
            raise OSError("another file system")

        monkeypatch.setattr(Path, "hardlink_to", refused)
    read = read_base(storage, base, tmp_path)
    first = next(read)
    links = [path.stat().st_nlink for path in stored.glob("*.sst")]
    assert links == [2 if can_link else 1]
    rest = [pair for part in read for pair in zip(part.keys, part.values, strict=True)]
    assert [*zip(first.keys, first.values, strict=True), *rest] == STATE
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == before
    assert all(path.stat().st_nlink == 1 for path in stored.iterdir())


def test_a_changed_file_of_a_database_is_not_read_in_place(tmp_path: Path) -> None:
    storage, base = stored_database(tmp_path, "v")
    (sst,) = (tmp_path / "stored" / "shared").glob("*.sst")
    changed = bytearray(sst.read_bytes())
    changed[len(changed) // 2] ^= 1
    copy = tmp_path / "changed"
    copy.write_bytes(changed)
    shutil.move(copy, sst)
    with pytest.raises(CorruptFileError, match=sst.name):
        entries(storage, base)
