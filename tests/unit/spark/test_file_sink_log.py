"""The log of a file sink before the first epoch of a restored query."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.spark.sink import FileSinkLog


@pytest.mark.parametrize(
    ("epoch", "first", "last"),
    [
        (0, "0", "0"),
        (8, "0", "8"),
        (9, "9.compact", "9.compact"),
        (10, "9.compact", "10"),
        (18, "9.compact", "18"),
        (19, "19.compact", "19.compact"),
        (123, "119.compact", "123"),
    ],
)
def test_it_starts_with_the_last_compaction(
    tmp_path: Path, epoch: int, first: str, last: str
) -> None:
    """Spark reads all entries from there on, so each of them must exist."""
    log = FileSinkLog(str(tmp_path), 10)
    log.fill(epoch)
    names = sorted(
        (path.name for path in (tmp_path / "_spark_metadata").iterdir()),
        key=lambda name: int(name.removesuffix(".compact")),
    )
    numbers = [int(name.removesuffix(".compact")) for name in names]
    assert (names[0], names[-1]) == (first, last)
    assert numbers == list(range(numbers[0], epoch + 1))
    assert log.newest_epoch() == epoch


def test_a_path_is_fresh_until_something_else_is_written(tmp_path: Path) -> None:
    """Entries of an interrupted restore are completed; what Spark does not read does not count."""
    log = FileSinkLog(str(tmp_path), 3)
    assert log.newest_epoch() is None
    assert log.is_fresh(4)
    log.fill(4)
    entries = tmp_path / "_spark_metadata"
    (entries / "3").unlink()
    (entries / ".4.crc").touch()
    (entries / "_a_note").touch()
    assert log.is_fresh(4)
    log.fill(4)
    assert (entries / "3").read_bytes() == b"v1"
    assert not log.is_fresh(5)  # its entries would start at a later compaction
    (entries / "5.compact").write_bytes(b'v1\n{"path":"x"}')
    assert not log.is_fresh(4)
    assert log.is_fresh(4, begun=5)  # the query has begun it
    (entries / "4").write_bytes(b'v1\n{"path":"x"}')
    assert not log.is_fresh(4, begun=5)


@pytest.mark.parametrize(
    ("names", "epoch", "lacking"),
    [
        ("0 1 2 3", 3, ()),
        ("0 1 2 3 4", 3, ()),
        ("2.compact 3", 3, ()),
        ("1 2.compact 3 4 5.compact", 3, ()),
        ("2.compact 4.compact", 3, ()),  # Spark has deleted entries before its compaction
        ("0 1 2", 3, (3,)),
        ("0 1 3", 3, (2,)),
        ("1 2 3", 3, (0,)),
        ("2.compact 4", 6, (3, 5, 6)),
    ],
)
def test_what_a_log_lacks(tmp_path: Path, names: str, epoch: int, lacking: tuple[int, ...]) -> None:
    """Spark reads the newest compaction and all entries after it."""
    write(tmp_path, names)
    assert FileSinkLog(str(tmp_path), 3).lacking(epoch) == lacking


@pytest.mark.parametrize(
    ("names", "interval", "epoch", "written", "all_in"),
    [
        ("0 1", 10, 4, "2 3 4", ""),
        ("2 3", 10, 4, "0 1 4", ""),  # the first epochs went to another sink
        ("0 1 3", 10, 4, "2 4", ""),
        ("0 1", 3, 4, "2.compact 3 4", "2.compact"),
        ("0 1 2.compact 3", 3, 7, "5.compact 6 7", "5.compact"),
        ("0 1 2.compact 3", 3, 15, "11.compact 14.compact 15", "11.compact 14.compact"),
        ("2.compact 5.compact 6", 10, 9, "8.compact 9", "8.compact"),  # Spark goes by the log
        ("0 1 2 3 4 5", 3, 5, "5.compact", "5.compact"),  # written with a longer interval
        ("9.compact 10", 3, 12, "11 12", ""),  # the interval is five: twice five is ten
        ("9.compact 10", 3, 14, "14.compact", "14.compact"),
        ("9.compact 29.compact", 10, 31, "19.compact 30 31", "19.compact"),  # was interrupted
    ],
)
def test_a_log_with_gaps_is_continued(
    tmp_path: Path, names: str, interval: int, epoch: int, written: str, all_in: str
) -> None:
    """No row is lost: a compaction has the lines of all entries before it."""
    entries = write(tmp_path, names)
    lines = {name: f'{{"of":"{name}"}}' for name in names.split()}
    log = FileSinkLog(str(tmp_path), interval)
    log.fill(epoch)
    new = {path.name: path.read_text() for path in entries.iterdir() if path.name not in lines}
    new.pop("_a_note")
    assert set(new) == set(written.split())
    numbers = {name: int(name.removesuffix(".compact")) for name in lines}
    for name in new:
        last = int(name.removesuffix(".compact"))
        there = {each: number for each, number in numbers.items() if number <= last}
        first = max((there[each] for each in there if each.endswith(".compact")), default=0)
        kept = [
            each for each in sorted(there, key=lambda each: there[each]) if there[each] >= first
        ]
        wanted = [lines[each] for each in kept] if name in all_in.split() else []
        assert new[name].split("\n") == ["v1", *wanted]
    before = sorted(entries.iterdir())
    log.fill(epoch)
    assert sorted(entries.iterdir()) == before


def write(path: Path, names: str) -> Path:
    entries = path / "_spark_metadata"
    entries.mkdir()
    (entries / "_a_note").touch()
    for name in names.split():
        (entries / name).write_text(f'v1\n{{"of":"{name}"}}')
    return entries
