"""A restore takes the entries of source logs up to the offsets, and checks them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import source_log_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata, SourceLog
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.restore.offsets import plan_sources
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.restore.spark_files import other_compactions, place_source_logs
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.storage.open import LocalStorage
from tests.unit.restore.tampered import tampered

SECRET = "file:///elsewhere/secret.txt"


def entry(batch: int, path: str = "file:///in/x", **more: Any) -> str:
    return json.dumps({"path": path, "timestamp": 1, "batchId": batch, **more})


def log(*entries: str) -> bytes:
    return "\n".join(("v1", *entries)).encode()


class Savepoint:
    """A savepoint whose source logs a stranger has written."""

    def __init__(self, root: Path, storage: LocalStorage, snapshot: CheckpointMetadata) -> None:
        without = msgspec.structs.replace(snapshot, source_logs=())
        made = write_savepoint(without, storage, str(root / "sp"), SavepointFormat.NATIVE)
        self.root = Path(made.path)
        self.location = LocalStorage(root / "location")
        self.metadata = RestoreSource(made.path).metadata

    def restored(self, offsets: list[str], logs: dict[str, bytes]) -> dict[str, bytes]:
        """Restore with these offsets and logs by ``<index>/<name>``; return what is copied."""
        references = []
        for name, content in logs.items():
            index, log_name = name.split("/")
            path = source_log_path(int(index), log_name, hashlib.sha256(content).hexdigest())
            reference = LocalStorage(self.root).write(path, [content])
            references.append(SourceLog(int(index), log_name, reference))
        times = '{"batchWatermarkMs":3,"batchTimestampMs":2}'
        entries = "\n".join(["v1", times, *offsets])
        tampered(
            self.root,
            msgspec.structs.replace(
                self.metadata,
                source_logs=tuple(references),
                offsets_entry=entries,
                source_ids=tuple(range(len(offsets))),
            ),
        )
        source = RestoreSource(str(self.root))
        place_source_logs(source.storage, self.location, plan_sources(source))
        root = self.location.root / "sources"
        return {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def savepoint(tmp_path: Path, storage: LocalStorage, snapshot: CheckpointMetadata) -> Savepoint:
    return Savepoint(tmp_path, storage, snapshot)


def test_entries_beyond_the_offset_are_left_behind(savepoint: Savepoint) -> None:
    logs = {f"0/{n}": log(entry(n)) for n in range(3)}
    beyond = {"0/3": log(entry(3, SECRET)), "0/9.compact": log(entry(3, SECRET))}
    assert savepoint.restored(['{"logOffset":2}'], {**logs, **beyond}) == logs


def test_of_compacted_logs_the_last_one_and_its_tail(savepoint: Savepoint) -> None:
    old = {f"0/{n}": log(entry(n)) for n in (7, 8)}
    compacted = {"0/9.compact": log(*(entry(n) for n in range(10)))}
    tail = {"0/10": log(entry(10), entry(10, "file:///in/ä b")), "0/11": log(entry(11))}
    beyond = {"0/12": log(entry(12)), "0/19.compact": log(entry(12, SECRET))}
    found = savepoint.restored(['{"logOffset":11}'], {**old, **compacted, **tail, **beyond})
    assert found == {**compacted, **tail}


def test_of_several_sources_each_its_own(savepoint: Savepoint) -> None:
    """A source that is not a file source is copied whole; one without an offset, not at all."""
    kafka = '{"events":{"0":4,"1":3}}'
    logs = {
        "0/0": log(entry(0)),
        "1/0": b'v1\n{"events":{"0":0,"1":0}}',
        "2/0": log(entry(0)),
        "3/0": log(entry(0)),
    }
    found = savepoint.restored(['{"logOffset":0}', kafka, "-"], logs)
    assert found == {name: logs[name] for name in ("0/0", "1/0")}


@pytest.mark.parametrize(
    "content",
    [
        log(entry(2, SECRET)),  # it comes to light when entry 2 is compacted
        log(entry(-1)),
        log('{"path":"file:///in/x","timestamp":1,"batchId":1,"batchId":2}'),
        log(entry(1, action="add")),
        log('{"path":"file:///in/x","timestamp":1,"batchId":1.0}'),
        log('{"path":"file:///in/x","timestamp":1,"batchId":true}'),
        log('{"path":["x"],"timestamp":1,"batchId":1}'),
        log(entry(1) + "\r" + entry(2, SECRET)),
        log("[" * 100_000),
        log("1"),
        b"v2\n" + entry(1).encode(),
        b"\x80\x04pickle",
        b"",
    ],
)
def test_an_entry_that_is_not_sparks(savepoint: Savepoint, content: bytes) -> None:
    logs = {"0/0": log(entry(0)), "0/1": content}
    with pytest.raises(CorruptFileError, match="source-0-1"):
        savepoint.restored(['{"logOffset":1}'], logs)
    assert not savepoint.location.exists("sources/0/1")


@pytest.mark.parametrize("position", [1, 10**17])
def test_a_log_that_is_not_whole(savepoint: Savepoint, position: int) -> None:
    with pytest.raises(CorruptFileError, match="not whole"):
        savepoint.restored([f'{{"logOffset":{position}}}'], {"0/0": log(entry(0))})


@pytest.mark.parametrize(
    "offset",
    [
        '{"logOffset":2,"logOffset":9}',
        '{"logOffset":2,"more":1}',
        '{"logOffset":"2"}',
        '{"logOffset":-1}',
        '{"logOffset":02}',
        '{"logOffset":2}\r{"logOffset":9}',
        "not JSON",
    ],
)
def test_an_offset_that_is_not_sparks(savepoint: Savepoint, offset: str) -> None:
    logs = {f"0/{n}": log(entry(n)) for n in range(10)}
    with pytest.raises(CorruptFileError):
        savepoint.restored([offset], logs)
    assert not savepoint.location.exists("sources")


def interval_of(compactions: list[int], default: int = 10) -> int:
    """Return the interval that Spark takes, by the three cases of its CompactibleFileStreamLog."""
    if not compactions:
        return default
    if len(compactions) > 1:
        return compactions[-1] - compactions[-2]
    size = compactions[0] + 1
    if size <= default:
        return size
    divisors = [n for n in range(default, size // 2 + 1) if size % n == 0]
    return divisors[0] if default < size // 2 and divisors else size


@pytest.mark.parametrize("interval", range(1, 41))
def test_spark_expects_the_names_that_a_restored_log_has(interval: int) -> None:
    """Whatever interval the log was written with, which Spark chose for another restored log."""
    for last in range(130):
        newest = (last + 1) // interval * interval - 1
        stored = newest if newest >= 0 else None
        older, is_merged = other_compactions(stored, last)
        compactions = (
            [last] if is_merged else [each for each in (older, stored) if each is not None]
        )
        plain = [] if is_merged else range((-1 if stored is None else stored) + 1, last + 1)
        expected = interval_of(compactions)
        assert expected > 0
        assert all((each + 1) % expected for each in plain), (last, compactions, expected)
        assert all((each + 1) % expected == 0 for each in compactions[-1:])


def test_an_older_compaction_shows_the_interval(savepoint: Savepoint) -> None:
    """From entry 39 alone Spark guesses an interval of ten, and asks for a compaction at 49."""
    compacted = {"0/39.compact": log(*(entry(n) for n in range(40)))}
    tail = {f"0/{n}": log(entry(n)) for n in range(40, 51)}
    found = savepoint.restored(['{"logOffset":50}'], {**compacted, **tail})
    older = {"0/19.compact": log(*(entry(n) for n in range(20)))}
    assert found == {**older, **compacted, **tail}


def test_where_no_compaction_can_show_it_all_entries_become_one(savepoint: Savepoint) -> None:
    tail = {f"0/{n}": log(entry(n)) for n in range(13)}
    found = savepoint.restored(['{"logOffset":12}'], tail)
    assert found == {"0/12.compact": log(*(entry(n) for n in range(13)))}
