"""Spark's own logs: read as Spark writes them, refused if damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError, NotBuiltYetError
from pyspark_ckpt.spark.log import (
    SOURCE_EVOLUTION,
    OffsetsEntry,
    SourceLogFile,
    Sources,
    SparkLog,
)
from pyspark_ckpt.storage.open import Storage

PutFile = Callable[..., Path]

METADATA = {
    "batchWatermarkMs": 5,
    "batchTimestampMs": 1_700_000_000_000,
    "conf": {"spark.sql.shuffle.partitions": "7"},
}
OFFSETS = f'v1\n{json.dumps(METADATA)}\n{{"logOffset":4}}'


@pytest.fixture
def log(storage: Storage) -> SparkLog:
    return SparkLog(storage)


@pytest.fixture
def put_source_log(put_file: PutFile) -> Callable[..., None]:
    """Return a function that puts the log entries of a file source."""

    def put(*names: str, index: int = 0) -> None:
        for name in names:
            put_file(f"sources/{index}/{name}", b"v1\n" + name.encode())
            put_file(f"sources/{index}/.{name}.crc")

    return put


def needed(log: SparkLog, *offsets: str) -> list[tuple[int, str]]:
    files = log.source_log_files(OffsetsEntry({}, offsets), Sources(tuple(range(len(offsets)))))
    assert all(file.path == f"sources/{file.source_index}/{file.log_name}" for file in files)
    return [(file.source_index, file.log_name) for file in files]


def test_a_fresh_location_has_no_epochs_and_no_query(log: SparkLog) -> None:
    assert log.committed_epoch() is None
    assert log.begun_epoch() is None
    assert log.query_id() is None


def test_the_committed_epoch_is_the_greatest_number(log: SparkLog, put_file: PutFile) -> None:
    for name in ("9", "10", "8", ".11.crc", ".12.0123.tmp", "_13", "14.compact", "x"):
        put_file(f"commits/{name}")
    put_file("offsets/11")
    assert log.committed_epoch() == 10
    assert log.begun_epoch() == 11


def test_a_location_with_offsets_only_has_begun_but_committed_nothing(
    log: SparkLog, put_file: PutFile
) -> None:
    put_file("offsets/.0.crc")
    assert log.begun_epoch() is None
    put_file("offsets/0")
    assert log.begun_epoch() == 0
    assert log.committed_epoch() is None


def test_the_query_id_is_the_one_in_metadata(log: SparkLog, put_file: PutFile) -> None:
    put_file("metadata", b'{"id":"77a33b9c-0000-4000-8000-000000000000"}')
    assert log.query_id() == "77a33b9c-0000-4000-8000-000000000000"


@pytest.mark.parametrize("content", [b"", b'{"id":"77a3', b"{}", b"[]", b"\xff", b'{"id": 7}'])
def test_a_damaged_metadata_file_is_corrupt(
    log: SparkLog, put_file: PutFile, content: bytes
) -> None:
    path = put_file("metadata", content)
    with pytest.raises(CorruptFileError, match=str(path)):
        log.query_id()


def test_offsets_are_read_and_written_as_spark_does(log: SparkLog, put_file: PutFile) -> None:
    put_file("offsets/3", OFFSETS.encode() + b"\n-")
    entry = log.offsets_entry(3)
    assert entry == OffsetsEntry(METADATA, ('{"logOffset":4}', "-"))
    assert entry.parallelism == 7
    put_file("offsets/4", entry.text().encode())
    assert log.offsets_entry(4) == entry


@pytest.mark.parametrize("metadata", [{}, {"conf": {}}])
def test_offsets_without_shuffle_partitions_fix_no_number(metadata: dict[str, object]) -> None:
    assert OffsetsEntry(metadata, ()).parallelism is None


def test_offsets_cut_short_are_corrupt_and_never_shorter_offsets(
    log: SparkLog, put_file: PutFile, put_source_log: Callable[..., None]
) -> None:
    """Scenario 7: Spark's own log, cut."""
    put_source_log("0", "1", "2", "3", "4", "5")
    taken = []
    for length in range(len(OFFSETS)):
        path = put_file("offsets/3", OFFSETS[:length].encode())
        try:
            log.source_log_files(log.offsets_entry(3), Sources((0,)))
        except (CorruptFileError, NotBuiltYetError) as exc:
            if isinstance(exc, CorruptFileError) and str(path) in str(exc):
                continue
        taken.append(OFFSETS[:length])
    assert taken == []


@pytest.mark.parametrize("content", [b"v1\n[]\n-", b"v1\n{\xff}\n-", b"v1\nnull\n-"])
def test_offsets_of_another_shape_are_corrupt(
    log: SparkLog, put_file: PutFile, content: bytes
) -> None:
    path = put_file("offsets/3", content)
    with pytest.raises(CorruptFileError, match=str(path)):
        assert log.offsets_entry(3).parallelism is None


def test_a_missing_entry_is_corrupt_and_named(log: SparkLog, storage: Storage) -> None:
    for read in (log.offsets_entry, log.commits_entry, log.watermark_ms):
        with pytest.raises(CorruptFileError, match=rf"{storage.root}/\w+/3 is missing"):
            read(3)


@pytest.mark.parametrize(
    ("name", "version"), [("offsets", "v3"), ("offsets", "v9"), ("commits", "v3")]
)
def test_a_log_version_of_a_newer_spark_is_refused_by_name(
    log: SparkLog, put_file: PutFile, name: str, version: str
) -> None:
    put_file(f"{name}/3", f"{version}\n{{}}\n-".encode())
    with pytest.raises(NotBuiltYetError, match=version):
        (log.offsets_entry if name == "offsets" else log.commits_entry)(3)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_commits_have_the_next_watermark(log: SparkLog, put_file: PutFile, version: str) -> None:
    text = version + '\n{"nextBatchWatermarkMs":1234}'
    put_file("commits/3", text.encode())
    put_file("commits/4", f"{version}\n{{}}".encode())
    assert log.commits_entry(3) == text
    assert log.watermark_ms(3) == 1234
    assert log.watermark_ms(4) == 0


def test_commits_name_operators_if_versions_of_state_have_ids(
    log: SparkLog, put_file: PutFile
) -> None:
    put_file("commits/3", b'v2\n{"stateUniqueIds":{"1":[["a"],["b"]],"0":[["c"],["d"]]}}')
    put_file("commits/4", b'v2\n{"nextBatchWatermarkMs":1}')
    assert log.committed_operator_ids(3) == [0, 1]
    assert log.committed_operator_ids(4) == []


@pytest.mark.parametrize("content", [b"", b"v1", b"v1\n", b'v1\n{"next', b"v1\n[]", b"v1\n\xff"])
def test_damaged_commits_are_corrupt(log: SparkLog, put_file: PutFile, content: bytes) -> None:
    path = put_file("commits/3", content)
    with pytest.raises(CorruptFileError, match=str(path)):
        log.watermark_ms(3)


def test_a_file_source_needs_its_entries_up_to_the_offset_and_none_after(
    log: SparkLog, put_source_log: Callable[..., None]
) -> None:
    put_source_log("0", "1", "2", "3")
    assert needed(log, '{"logOffset":2}') == [(0, "0"), (0, "1"), (0, "2")]
    assert needed(log, '{"logOffset":0}') == [(0, "0")]
    assert needed(log, '{"logOffset":-1}') == []


def test_a_compacted_log_is_needed_from_the_last_compaction_on(
    log: SparkLog, put_source_log: Callable[..., None]
) -> None:
    put_source_log("7", "8", "9.compact", "10", "18", "19.compact", "20", "21")
    assert needed(log, '{"logOffset":20}') == [(0, "19.compact"), (0, "20")]
    assert needed(log, '{"logOffset":19}') == [(0, "19.compact")]
    assert needed(log, '{"logOffset":10}') == [(0, "9.compact"), (0, "10")]


@pytest.mark.parametrize(
    ("present", "position", "missing"),
    [
        (["1", "2"], 2, r"\[0\]"),
        (["0", "2"], 2, r"\[1\]"),
        (["0", "1"], 3, r"\[2, 3\]"),
        (["9.compact", "11"], 11, r"\[10\]"),
        (["9.compact"], 8, "0, 1, 2"),
        ([], 0, r"\[0\]"),
    ],
)
def test_entries_that_spark_has_cleaned_away_abort_the_checkpoint(
    log: SparkLog,
    put_source_log: Callable[..., None],
    present: list[str],
    position: int,
    missing: str,
) -> None:
    put_source_log(*present)
    with pytest.raises(CheckpointAbortedError, match=missing):
        needed(log, f'{{"logOffset":{position}}}')


@pytest.mark.parametrize("offset", ["17", '{"topic":{"0":5}}', '{"logOffset":1,"more":2}', '"x"'])
def test_another_source_keeps_all_its_entries(
    log: SparkLog, put_source_log: Callable[..., None], offset: str
) -> None:
    put_source_log("0", "5")
    assert needed(log, offset) == [(0, "0"), (0, "5")]


def test_each_source_has_its_own_entries_and_one_without_offset_none(
    log: SparkLog, put_source_log: Callable[..., None]
) -> None:
    for index in range(3):
        put_source_log("0", "1", index=index)
    offsets = ('{"logOffset":1}', "-", '{"logOffset":0}')
    assert needed(log, *offsets) == [(0, "0"), (0, "1"), (2, "0")]
    first = log.source_log_files(OffsetsEntry({}, offsets), Sources((0, 1, 2)))[0]
    assert first == SourceLogFile(0, "0", "sources/0/0")


def test_a_source_that_is_read_twice_has_one_log(
    log: SparkLog, put_source_log: Callable[..., None]
) -> None:
    for index in range(2):
        put_source_log("0", "1", "2", index=index)
    offsets = OffsetsEntry({}, ('{"logOffset":1}', '{"logOffset":1}', '{"logOffset":0}'))
    files = log.source_log_files(offsets, Sources((0, 0, 1)))
    assert [file.path for file in files] == ["sources/0/0", "sources/0/1", "sources/1/0"]
    with pytest.raises(CheckpointAbortedError, match="3 offsets"):
        log.source_log_files(offsets, Sources((0, 1)))


@pytest.mark.parametrize("path", ["offsets/0", "metadata"])
def test_a_replaced_file_loses_hadoops_checksum_of_the_old_one(
    log: SparkLog, storage: Storage, put_file: PutFile, path: str
) -> None:
    place = put_file(path, b"old")
    checksum = put_file(str(Path(path).with_name(f".{place.name}.crc")))
    log.replace(path, "new ä")
    assert place.read_bytes() == "new ä".encode()
    assert not checksum.exists()


def entry_v2(*lines: str, named: bool = False) -> bytes:
    conf = {**METADATA["conf"], SOURCE_EVOLUTION: str(named).lower()}
    return "\n".join(["v2", json.dumps({**METADATA, "conf": conf}), *lines]).encode()


def test_offsets_of_v2_have_the_numbers_of_places(log: SparkLog, put_file: PutFile) -> None:
    text = entry_v2('2:{"logOffset":4}', "1:-")
    put_file("offsets/3", text)
    entry = log.offsets_entry(3)
    assert not entry.is_named
    assert json.loads(entry.text().split("\n")[1]) == json.loads(text.split(b"\n")[1])
    assert entry.text().split("\n")[2:] == text.decode().split("\n")[2:]
    in_order = entry.in_order(Sources((0, 1, 0)))
    assert in_order.source_offsets == ('{"logOffset":4}', "-", '{"logOffset":4}')
    assert in_order.text().startswith("v1\n")
    for others in ((0, 1, 2), (0,)):
        with pytest.raises(CheckpointAbortedError, match="sources 2, 1"):
            entry.in_order(Sources(others))


def test_offsets_of_v2_have_the_names_of_sources(
    log: SparkLog, put_file: PutFile, put_source_log: Callable[..., None]
) -> None:
    put_file("offsets/3", entry_v2('b:{"a":1}', 'a:{"logOffset":0}', "gone:7", named=True))
    put_file("sources/a/0", b"v1\n")
    entry, sources = log.offsets_entry(3), Sources((0, 1, 2), ("a", "b", "new"))
    assert entry.is_named
    offsets = entry.in_order(sources)
    assert offsets.source_offsets == ('{"logOffset":0}', '{"a":1}', "-")
    files = log.source_log_files(offsets, sources)
    assert files == [SourceLogFile(0, "0", "sources/a/0")]


@pytest.mark.parametrize("line", ["0", "0:", '{"logOffset":4}', "0:{"])
def test_an_entry_of_v2_that_was_cut_is_refused(
    log: SparkLog, put_file: PutFile, line: str
) -> None:
    put_file("offsets/3", entry_v2('1:{"logOffset":4}', line))
    with pytest.raises(CorruptFileError, match="cut short"):
        log.offsets_entry(3)
