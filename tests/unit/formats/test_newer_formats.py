"""Every stored format has a number or a name, and a later one is refused by it.

The files are golden data with the number raised: what this version sees of a later one. None of
them is half read.
"""

from __future__ import annotations

import io
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import Location
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.canonical_file import CANONICAL_FORMAT_VERSION, decode_canonical
from pyspark_ckpt.formats.change_file import decode_changes, decode_changes_below
from pyspark_ckpt.formats.handle import HANDLE_FORMAT_VERSION, Handle, decode_handle, encode_handle
from pyspark_ckpt.formats.in_progress import InProgress, encode_in_progress, read_in_progress
from pyspark_ckpt.formats.layout import store_note_path
from pyspark_ckpt.formats.metadata_file import (
    METADATA_FORMAT_VERSION,
    decode_metadata,
    encode_metadata,
)
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.open import StoreNote, find_store
from tests.golden import archives
from tools import read_savepoint

GOLDEN = Path(__file__).parents[2] / "golden" / "1"
VERSION_AT = 8  # after the magic of _metadata


@pytest.fixture(params=["canonical", "native", "location/pyspark_ckpt/chk-*"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    whole = Path(shutil.copytree(archives.newest("heap"), tmp_path / "whole"))
    return next(whole.glob(request.param))


def change_files() -> list[Path]:
    """Return the segments, and the base snapshots of the heap."""
    found = [*GOLDEN.glob("heap-native/savepoint/*/*.chg"), *GOLDEN.glob("heap-native/**/*.part")]
    assert len({path.suffix for path in found}) == 2
    return found


def raise_version_of_metadata(path: Path) -> None:
    data = bytearray((path / "_metadata").read_bytes())
    struct.pack_into(">I", data, VERSION_AT, METADATA_FORMAT_VERSION + 1)
    (path / "_metadata").write_bytes(data)


@pytest.mark.parametrize(
    "read",
    [Location.state, Location.verify, lambda location: location.diff(location)],
    ids=["state", "verify", "diff"],
)
def test_metadata(stored: Path, read: Callable[[Location], object]) -> None:
    read_before = read(ckpt.location(stored))
    getattr(read_before, "close", lambda: None)()
    raise_version_of_metadata(stored)
    with pytest.raises(CorruptFileError, match=r"format 2 is newer than .* 1; upgrade"):
        read(ckpt.location(stored))


def test_metadata_by_the_reader_without_the_library(tmp_path: Path) -> None:
    path = Path(shutil.copytree(archives.newest("heap") / "canonical", tmp_path / "savepoint"))
    assert list(read_savepoint.read_entries(path))
    raise_version_of_metadata(path)
    with pytest.raises(ValueError, match="no _metadata of a format up to 1"):
        list(read_savepoint.read_entries(path))


def handles_of(path: Path) -> list[Handle]:
    metadata = decode_metadata((path / "_metadata").read_bytes(), "m")
    return [handle for operator in metadata.operators for handle in operator.handles]


@pytest.mark.parametrize("name", ["canonical", "native"])
def test_handles(name: str) -> None:
    for handle in handles_of(archives.newest("rocksdb") / name):
        assert decode_handle(encode_handle(handle)) == handle
        newer = msgspec.structs.replace(handle, format_version=HANDLE_FORMAT_VERSION + 1)
        with pytest.raises(CorruptFileError, match=r"handle format 2 .* newer .* 1: upgrade"):
            decode_handle(encode_handle(newer))


@pytest.mark.parametrize("path", change_files(), ids=lambda path: path.name)
def test_change_files(path: Path) -> None:
    data = path.read_bytes()
    assert list(decode_changes(io.BytesIO(data), path.name))
    newer = data[:7] + b"2" + data[8:]
    for decode in (decode_changes, lambda file, name: decode_changes_below(file, name, b"")):
        with pytest.raises(CorruptFileError, match=r"format 2 is newer than .* 1; upgrade"):
            list(decode(io.BytesIO(newer), path.name))
    other = b"X" + data[1:]
    with pytest.raises(CorruptFileError, match="does not start as a change file"):
        list(decode_changes(io.BytesIO(other), path.name))


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("heap-canonical/**/*.parquet")), ids=lambda path: path.name
)
def test_canonical_files(path: Path) -> None:
    table = pq.read_table(path)
    assert list(decode_canonical(io.BytesIO(path.read_bytes()), path.name, table.num_rows))
    metadata = {**(table.schema.metadata or {})}
    metadata[b"pyspark_ckpt.format_version"] = str(CANONICAL_FORMAT_VERSION + 1).encode()
    newer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), newer)
    newer.seek(0)
    with pytest.raises(CorruptFileError, match=r"format 2 is newer than .* 1; upgrade"):
        list(decode_canonical(newer, path.name, table.num_rows))


def test_a_base_snapshot_of_an_unknown_format(tmp_path: Path) -> None:
    path = Path(shutil.copytree(GOLDEN / "rocksdb-native" / "savepoint", tmp_path / "savepoint"))
    metadata = decode_metadata((path / "_metadata").read_bytes(), "m")
    (operator,) = metadata.operators
    handles = tuple(
        msgspec.structs.replace(
            handle, base=handle.base and msgspec.structs.replace(handle.base, format="tree")
        )
        for handle in operator.handles
    )
    operators = (msgspec.structs.replace(operator, handles=handles),)
    newer = encode_metadata(msgspec.structs.replace(metadata, operators=operators))
    (path / "_metadata").write_bytes(newer)
    with pytest.raises(CorruptFileError, match=r"'tree', .* not know: upgrade"):
        with ckpt.location(str(path)).state() as snapshot:
            snapshot.state("op", "n").to_arrow().read_all()


def test_a_savepoint_in_progress(tmp_path: Path) -> None:
    begun = InProgress(query_id="q", run="r", epoch=1, began_at_ms=1, token="t", format=2)
    (tmp_path / "_in_progress").write_bytes(encode_in_progress(begun))
    with pytest.raises(CorruptFileError, match="not know format 2; upgrade"):
        read_in_progress(LocalStorage(tmp_path))


def test_a_store_of_checkpoints_of_an_unknown_type(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    note = StoreNote(type="tree", node="n", quorum="q")
    storage.write(store_note_path(1), [msgspec.json.encode(note)])
    with pytest.raises(CorruptFileError, match=r"tree.*upgrade"):
        find_store(storage)
