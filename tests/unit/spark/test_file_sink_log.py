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
    ("names", "reaches"),
    [
        ("0 1 2 3", True),
        ("0 1 2 3 4", True),
        ("2.compact 3", True),
        ("1 2.compact 3 4 5.compact", True),
        ("2.compact 4.compact", True),  # Spark has deleted entries before its compaction
        ("", False),
        ("0 1 2", False),
        ("0 1 3", False),
        ("1 2 3", False),
        ("2.compact 4", False),
    ],
)
def test_spark_reads_the_newest_compaction_and_all_after_it(
    tmp_path: Path, names: str, reaches: bool
) -> None:
    entries = tmp_path / "_spark_metadata"
    entries.mkdir()
    for name in ["_a_note", *names.split()]:
        (entries / name).touch()
    assert FileSinkLog(str(tmp_path), 3).reaches(3) is reaches
