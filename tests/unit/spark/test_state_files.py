"""Files of Spark's state stores: which a version needs, and their names after a restore."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles
from pyspark_ckpt.checkpoint.query_files import CopyNames, SparkStateCopies
from pyspark_ckpt.errors import CheckpointAbortedError, RestoreError
from pyspark_ckpt.formats.metadata import SparkOperatorMetadata
from pyspark_ckpt.spark.state_files import (
    copy_first_version,
    needed_files,
    operator_name,
    version_of,
    with_operator_id,
)
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.unit.checkpoint.test_growth import metadata

METADATA = (
    b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"dedupe"},'
    b'"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":1}]}'
)
PutFile = Callable[..., Path]


@pytest.fixture
def location(storage: Storage, put_file: PutFile) -> LocalStorage:
    """An operator 0 with its name and schema, and without versions."""
    assert isinstance(storage, LocalStorage)
    put_file("state/0/_metadata/metadata", METADATA)
    put_file("state/0/_metadata/.metadata.crc")
    put_file("state/0/0/_metadata/schema")
    return storage


DESCRIPTIONS = ["0/_metadata/schema", "_metadata/metadata"]


def put(put_file: PutFile, directory: str, *names: str) -> None:
    for name in names:
        put_file(f"state/0/{directory}/{name}")
        put_file(f"state/0/{directory}/.{name}.crc")


def put_zip(location: LocalStorage, directory: str, version: int, *tables: str) -> None:
    path = location.path(f"state/0/{directory}/{version}.zip")
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [{"localFileName": "x", "dfsSstFileName": each, "sizeBytes": 1} for each in tables]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files, "numKeys": 1}))


@pytest.mark.parametrize(
    ("names", "version", "needed"),
    [
        (("1.delta", "2.delta", "3.delta"), 2, ("1.delta", "2.delta")),
        (("2.snapshot", "1.delta", "2.delta", "3.delta"), 3, ("2.snapshot", "3.delta")),
        (("2.snapshot", "9.snapshot", "3.delta"), 3, ("2.snapshot", "3.delta")),
        (("7.snapshot", "8.delta"), 7, ("7.snapshot",)),
        (("1.changelog", "2.changelog"), 2, ("1.changelog", "2.changelog")),
    ],
)
def test_a_version_needs_the_newest_whole_one_before_it_and_the_changes_since(
    location: LocalStorage,
    put_file: PutFile,
    names: tuple[str, ...],
    version: int,
    needed: tuple[str, ...],
) -> None:
    put(put_file, "0", *names)
    assert needed_files(location, 0, version, 1) == sorted(
        [*(f"0/{name}" for name in needed), *DESCRIPTIONS]
    )


@pytest.mark.parametrize(
    "names", [("1.delta", "3.delta"), ("2.delta", "3.delta"), ("4.snapshot",), ()]
)
def test_what_spark_has_cleaned_away_aborts_the_checkpoint(
    location: LocalStorage, put_file: PutFile, names: tuple[str, ...]
) -> None:
    put(put_file, "0", *names)
    with pytest.raises(CheckpointAbortedError, match="version 3"):
        needed_files(location, 0, 3, 1)


def test_a_snapshot_of_rocksdb_needs_the_tables_that_it_names(
    location: LocalStorage, put_file: PutFile
) -> None:
    put_zip(location, "0", 2, "000001-a.sst")
    put_zip(location, "0", 4, "000001-a.sst", "000002-b.sst")
    put(put_file, "0", "3.changelog", "4.changelog", "5.changelog")
    put(put_file, "0/SSTs", "000001-a.sst", "000002-b.sst")
    assert needed_files(location, 0, 3, 1) == sorted(
        ["0/2.zip", "0/3.changelog", "0/SSTs/000001-a.sst", *DESCRIPTIONS]
    )
    assert needed_files(location, 0, 5, 1) == sorted(
        ["0/4.zip", "0/5.changelog", "0/SSTs/000001-a.sst", "0/SSTs/000002-b.sst", *DESCRIPTIONS]
    )


def test_every_store_of_every_partition_counts(location: LocalStorage, put_file: PutFile) -> None:
    for partition in range(2):
        for store in ("left-keyToNumValues", "right-keyToNumValues"):
            put(put_file, f"{partition}/{store}", "1.delta")
    assert len(needed_files(location, 0, 1, 2)) == 4 + len(DESCRIPTIONS)
    with pytest.raises(CheckpointAbortedError, match="0/2 "):
        needed_files(location, 0, 1, 3)
    location.path("state/0/1/right-keyToNumValues/1.delta").unlink()
    with pytest.raises(CheckpointAbortedError, match="1/right-keyToNumValues"):
        needed_files(location, 0, 1, 2)


def test_versions_with_ids_and_checksums_are_not_taken_for_versions() -> None:
    assert version_of("12.delta") == (12, "delta")
    for name in ("12_0a-1b.zip", "12.delta.crc", ".12.delta", "x.delta", "12.sst", "schema"):
        assert version_of(name) is None


def test_the_first_version_becomes_another_one(
    location: LocalStorage, put_file: PutFile, tmp_path: Path
) -> None:
    """Spark's checksums are moved, Hadoop's are not; the operator has another id."""
    put(put_file, "0", "1.delta", "1.delta.crc")
    put(put_file, "1", "1_0a-b.zip")
    put(put_file, "1/SSTs", "000001-a.sst")
    target = LocalStorage(tmp_path / "target")
    copy_first_version(location, target, {0: 3}, 42)
    names = sorted(
        str(path.relative_to(target.root)) for path in target.root.rglob("*") if path.is_file()
    )
    assert names == [
        "state/3/0/42.snapshot", "state/3/0/42.snapshot.crc", "state/3/0/_metadata/schema",
        "state/3/1/42_0a-b.zip", "state/3/1/SSTs/000001-a.sst", "state/3/_metadata/metadata",
    ]  # fmt: skip
    assert b'"operatorId":3' in target.read("state/3/_metadata/metadata")
    assert operator_name(target, 3) == "dedupe"
    put(put_file, "0", "1.changelog")
    with pytest.raises(RestoreError, match="providerClass"):
        copy_first_version(location, LocalStorage(tmp_path / "other"), {0: 3}, 42)


def test_paths_in_the_metadata_of_transform_with_state_follow(location: LocalStorage) -> None:
    fields = {
        "operatorInfo": {"operatorId": 1, "operatorName": "transformWithStateInPySparkExec"},
        "stateStoreInfo": [
            {"storeName": "default", "stateSchemaFilePaths": ["file:/a/state/1/_stateSchema/d/0_x"]}
        ],
    }
    moved = with_operator_id(f"v2\n{json.dumps(fields)}".encode(), location, 4)
    assert f'"file:{location.root}/state/4/_stateSchema/d/0_x"' in moved.decode()


def test_spark_finds_the_schemas_of_a_location_with_any_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It writes the paths as Hadoop does, which escapes nothing, and reads them so."""
    fields = {
        "operatorInfo": {"operatorId": 1, "operatorName": "transformWithStateInPySparkExec"},
        "stateStoreInfo": [
            {"storeName": "default", "stateSchemaFilePaths": ["file:/a/state/1/_stateSchema/d/0_x"]}
        ],
    }
    metadata = f"v2\n{json.dumps(fields)}".encode()
    hadoop_path: Any = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    for name in ("plain", "day=1", "a+b", "a,b;c", "50%", "ü", "a/../b"):
        location = LocalStorage(tmp_path / name)
        moved = with_operator_id(metadata, location, 4).decode().split("\n")[1]
        (path,) = json.loads(moved)["stateStoreInfo"][0]["stateSchemaFilePaths"]
        assert path == hadoop_path(f"{location.hadoop_url}/state/4/_stateSchema/d/0_x").toString()


def test_paths_are_of_the_place_where_a_staged_location_will_lie(
    location: LocalStorage, put_file: PutFile, tmp_path: Path
) -> None:
    """A rollback fills a directory inside the location and moves its content afterwards."""
    fields = {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPySparkExec"},
        "stateStoreInfo": [
            {"storeName": "default", "stateSchemaFilePaths": ["file:/a/state/0/_stateSchema/d/0_x"]}
        ],
    }
    put_file("state/0/_metadata/metadata", f"v2\n{json.dumps(fields)}".encode())
    staged = LocalStorage(tmp_path / "staged")
    copy_first_version(location, staged, {0: 2}, 7, place=location)
    path = f'"file:{location.root}/state/2/_stateSchema/d/0_x"'
    assert path in staged.read("state/2/_metadata/metadata").decode()


def test_a_file_is_copied_once_until_spark_replaces_it(
    location: LocalStorage, put_file: PutFile, tmp_path: Path
) -> None:
    """It is also copied again after its copy was cleaned away; a missing file aborts."""
    checkpoints = LocalStorage(tmp_path / "copies")
    copies = SparkStateCopies(location, checkpoints, CopyNames())
    path = put_file("state/0/0/1.delta", b"first")
    first = copies.keep(0, "0/1.delta")
    assert checkpoints.read(first.file.path) == b"first"
    assert copies.keep(0, "0/1.delta") == first
    checkpoints.delete([first.file.path])
    assert copies.keep(0, "0/1.delta") == first
    assert checkpoints.exists(first.file.path)
    new = path.with_name("new")
    new.write_bytes(b"other")
    new.replace(path)
    other = copies.keep(0, "0/1.delta")
    assert other.file.path != first.file.path
    assert checkpoints.read(other.file.path) == b"other"
    path.unlink()
    with pytest.raises(CheckpointAbortedError, match=r"1\.delta"):
        copies.keep(0, "0/1.delta")


def test_copies_that_were_cleaned_take_no_memory(
    location: LocalStorage, put_file: PutFile, tmp_path: Path
) -> None:
    checkpoints = LocalStorage(tmp_path / "copies")
    copies = SparkStateCopies(location, checkpoints, CopyNames())
    files = CheckpointFiles(checkpoints, CompletedCheckpoints(checkpoints), copies.forget)
    for number in range(1, 30):
        put_file(f"state/0/0/{number}.delta", b"content")
        kept = copies.keep(0, f"0/{number}.delta")
        operator = SparkOperatorMetadata(0, "stateStoreSave", (kept,))
        taken = msgspec.structs.replace(metadata(number, number, []), spark_operators=(operator,))
        files.store.reserve(number)
        files.store.add(number, taken)
        files.remember(number, taken)
        files.clean([number], [], number)
        assert len(checkpoints.list("shared")) == 1
        assert copies.remembered == 1
