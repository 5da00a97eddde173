"""Handles of a new query name copies of all files, each of which is copied once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle, Segment
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.restore.copies import HandleCopy, copy_handles
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage

OPERATOR = OperatorDescriptor(uid="op", parallelism=3, max_parallelism=8, key_schema="{}")


@pytest.fixture
def source(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "old")


def handle_of(subtask: int, files: list[FileReference], segment: FileReference | None) -> Handle:
    base = BaseSnapshot(
        "1-b", 1, 1, tuple(BaseFile(f"{n}.sst", file) for n, file in enumerate(files))
    )
    segments = () if segment is None else (Segment("2-s", 2, 1, segment.size_bytes, file=segment),)
    first = OPERATOR.first_handle("old", subtask, 2)
    return msgspec.structs.replace(first, base=base, segments=segments)


@pytest.mark.parametrize("links", [True, False])
def test_files_that_several_handles_share_are_copied_once(
    source: LocalStorage, tmp_path: Path, *, links: bool
) -> None:
    """So after a rescale, whose subtasks keep the same database."""
    one, two, own, segment = (
        source.write(f"shared/{name}", [name.encode()]) for name in ("one", "two", "own", "seg")
    )
    handles = [
        handle_of(0, [one, two], None),
        handle_of(1, [one, own], segment),
        handle_of(2, [two], segment),
    ]
    target = LocalStorage(tmp_path / "new")
    spark: Any = None  # the driver copies so few itself
    made = copy_handles(spark, handles, HandleCopy(OPERATOR, "new", 2, links), source, target)
    assert len(target.list("shared")) + len(target.list("taskowned")) == 4
    for before, after in zip(handles, made, strict=True):
        assert (after.query_id, after.subtask, after.version) == (
            "new", before.subtask, before.version,
        )  # fmt: skip
        for old, new in zip(before.files(), after.files(), strict=True):
            assert target.read(new.path) == source.read(old.path)
            assert (new.size_bytes, new.sha256) == (old.size_bytes, old.sha256)
            assert (target.root / new.path).samefile(source.root / old.path) is links
