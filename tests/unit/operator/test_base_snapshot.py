"""Base snapshots: what is written is what a rebuild reads."""

from __future__ import annotations

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.on_disk.handle import CHANGES_FORMAT, BaseSnapshot, Handle, Segment
from pyspark_ckpt.on_disk.storage import Storage
from pyspark_ckpt.operator.base_snapshot import make_base, read_base
from state_backends import Changes, StateBackend


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
    assert reference.path.startswith("shared/base-3-9-")
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
