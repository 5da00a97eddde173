"""Which of Spark's files are damaged, by their names and bytes; files as Spark writes them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt.spark.damage import (
    damaged_file,
    damaged_log,
    damaged_sink_log,
    orphaned_checksums,
    unread_file,
)
from pyspark_ckpt.spark.log import Sources, SparkLog
from pyspark_ckpt.spark.sink import FileSinkLog
from pyspark_ckpt.storage.open import LocalStorage

NEWEST = 12
SOURCES = Sources((0, 1))
"""A file source, and one of Kafka, whose file begins with a zero byte."""

STATE = "state/0/1"


def put(location: Path, path: str, text: str | bytes) -> None:
    file = location / path
    file.parent.mkdir(parents=True, exist_ok=True)
    content = text if isinstance(text, bytes) else text.encode()
    file.write_bytes(content)
    checksum = zlib.crc32(content).to_bytes(4, "big")
    sums = b"crc\x00" + (1 << 16).to_bytes(4, "big") + checksum
    file.with_name(f".{file.name}.crc").write_bytes(sums)


def offsets(epoch: int) -> str:
    common = json.dumps({"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": "2"}})
    return f'v1\n{common}\n{{"logOffset":{epoch}}}\n{{"topic":{{"0":{epoch}}}}}'


@pytest.fixture
def location(tmp_path: Path) -> Path:
    put(tmp_path, "metadata", '{"id":"a"}')
    for epoch in range(NEWEST - 2, NEWEST + 1):
        put(tmp_path, f"offsets/{epoch}", offsets(epoch))
        put(tmp_path, f"commits/{epoch}", 'v1\n{"nextBatchWatermarkMs":0}')
    for name in ("9.compact", "10", "11", "12"):
        put(tmp_path, f"sources/0/{name}", 'v1\n{"path":"a","batchId":9}')
    put(tmp_path, "sources/1/0", b"\x00v1\n{}")
    put(tmp_path, "state/0/_metadata/metadata", 'v1\n{"operatorInfo":{"operatorName":"x"}}')
    put(tmp_path, "state/0/0/_metadata/schema", "schema")
    for partition in range(2):
        put(tmp_path, f"state/0/{partition}/11.snapshot", b"all of it")
        for version in range(9, NEWEST + 2):
            put(tmp_path, f"state/0/{partition}/{version}.delta", b"changes")
    return tmp_path


def logs_of(location: Path) -> str | None:
    damage = damaged_log(SparkLog(LocalStorage(location)), SOURCES)
    return None if damage is None else str(damage)


def files_of(location: Path) -> str | None:
    damage = damaged_file(SparkLog(LocalStorage(location)), SOURCES, {0: 2})
    return None if damage is None else str(damage)


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garbage(path: Path) -> None:
    path.write_bytes(b"\x93no such\x00\xfffile\n")


WORDS = {
    delete: "is missing",
    truncate: "is not what Spark writes",
    empty: "is empty",
    zeros: "zero bytes",
    garbage: "is not what Spark writes",
}
Damaging = Callable[[Path], None]


@pytest.mark.parametrize("damage", WORDS)
@pytest.mark.parametrize(
    "path", ["metadata", "offsets/12", "offsets/11", "sources/0/9.compact", "sources/0/12"]
)
def test_a_log_that_spark_needs_is_named(location: Path, path: str, damage: Damaging) -> None:
    assert logs_of(location) is None
    damage(location / path)
    found = logs_of(location)
    assert found is not None
    assert WORDS[damage] in found
    name = path if damage is not delete else path.removesuffix(".compact")
    # Without the compaction, the log has to begin with the first entry.
    assert str(location / ("sources/0/0" if name == "sources/0/9" else name)) in found


@pytest.mark.parametrize("damage", WORDS)
def test_the_newest_commit(location: Path, damage: Damaging) -> None:
    """Without it Spark runs the epoch again; one that is damaged ends the query."""
    damage(location / "commits/12")
    found = logs_of(location)
    assert (found is None) == (damage is delete)
    assert found is None or str(location / "commits/12") in found


@pytest.mark.parametrize("damage", WORDS)
@pytest.mark.parametrize("path", ["offsets/10", "commits/11", "commits/10", "sources/1/0"])
def test_what_spark_does_not_read_is_not_missed(
    location: Path, path: str, damage: Damaging
) -> None:
    damage(location / path)
    assert logs_of(location) is None


def test_an_offset_of_a_source_is_cut_off_at_the_end_of_a_line(location: Path) -> None:
    put(location, "offsets/12", offsets(12).rpartition("\n")[0])
    assert "offsets/12 is cut short" in str(logs_of(location))


def test_a_query_that_reads_other_sources_is_left_to_spark(location: Path) -> None:
    (location / "sources/0/12").unlink()
    other = damaged_log(SparkLog(LocalStorage(location)), Sources((0, 1, 2)))
    assert other is None


def test_locations_that_have_only_begun_are_whole(tmp_path: Path) -> None:
    assert logs_of(tmp_path) is None
    put(tmp_path, "metadata", '{"id":"a"}')
    assert logs_of(tmp_path) is None
    put(tmp_path, "sources/0/0", 'v1\n{"path":"a","batchId":0}')
    put(tmp_path, "offsets/0", offsets(0))
    assert logs_of(tmp_path) is None


@pytest.mark.parametrize("damage", WORDS)
@pytest.mark.parametrize("path", [f"{STATE}/11.snapshot", f"{STATE}/12.delta", f"{STATE}/13.delta"])
def test_a_file_of_the_state_is_named(location: Path, path: str, damage: Damaging) -> None:
    """One whose bytes look like any others is found by Hadoop's checksums."""
    assert files_of(location) is None
    damage(location / path)
    is_whole = path.endswith("snapshot") and damage is delete  # else there are all changes
    assert str(location / (f"{STATE}/1.delta" if is_whole else path)) in str(files_of(location))


def test_a_schema_and_a_partition_are_missed(location: Path) -> None:
    (location / "state/0/0/_metadata/schema").unlink()
    assert "schema is missing" in str(files_of(location))
    (location / STATE).rename(location / "aside")
    assert f"{STATE} is missing" in str(files_of(location))


def test_a_changed_byte_in_a_log_is_found_by_its_checksum(location: Path) -> None:
    (location / "offsets/11").write_text(offsets(13))
    assert logs_of(location) is None
    assert "offsets/11 was changed" in str(files_of(location))


def test_checksums_that_were_left_behind(location: Path) -> None:
    """Those of the next entries would stop Spark; those of older entries stay."""
    log = SparkLog(LocalStorage(location))
    assert orphaned_checksums(log, [0]) == []
    for path in ("offsets/12", "commits/12", "commits/10", "state/0/_metadata/metadata"):
        (location / path).unlink()
    wanted = ["offsets/.12.crc", "commits/.12.crc", "state/0/_metadata/.metadata.crc"]
    assert orphaned_checksums(log, [0]) == wanted


@pytest.mark.parametrize("damage", WORDS)
@pytest.mark.parametrize("name", ["1.compact", "2"])
def test_the_log_of_a_file_sink(tmp_path: Path, name: str, damage: Damaging) -> None:
    sink, directory = FileSinkLog(str(tmp_path), 2), tmp_path / "_spark_metadata"
    for each in ("0", "1.compact", "2"):
        put(directory, each, 'v1\n{"path":"a"}')
    assert damaged_sink_log(sink) is None
    truncate(directory / "0")
    assert damaged_sink_log(sink) is None
    damage(directory / name)
    if damage is delete:  # a start looks for gaps itself
        assert int(name.removesuffix(".compact")) in sink.lacking(2)
    else:
        assert str(directory / name) in str(damaged_sink_log(sink))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "[CANNOT_LOAD_STATE_STORE.X] file:/loc/state/0/1/6.delta does not exist. SQLSTATE: 5",
            "/loc/state/0/1/6.delta",
        ),
        ("[STREAM_FAILED] terminated with exception: batch 4 doesn't exist SQLSTATE: X", "other"),
        # A storage that is away is not a reason to go back.
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED]\nCaused by: SocketTimeoutException: x", None),
        # A worker that was killed.
        (
            "Python worker exited unexpectedly\nCaused by: java.io.EOFException\n\tat X.state.Y",
            None,
        ),
    ],
)
def test_what_spark_says_counts_only_if_a_file_is_not_whole(text: str, named: str | None) -> None:
    found = unread_file(RuntimeError(text), "file:/loc", "other")
    assert (None if found is None else found.name) == named
    assert found is None or "SQLSTATE" not in found.what
