"""The log of a file sink before the first epoch of a restored query."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.errors import RestoreError
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
    """Entries of an interrupted restore are completed; a path with a query's output is refused."""
    log = FileSinkLog(str(tmp_path), 3)
    assert log.newest_epoch() is None
    log.check_fresh(4)
    log.fill(4)
    entries = tmp_path / "_spark_metadata"
    (entries / "3").unlink()
    (entries / ".4.crc").touch()
    log.check_fresh(4)
    log.fill(4)
    assert (entries / "3").read_bytes() == b"v1"
    with pytest.raises(RestoreError, match="new path"):
        log.check_fresh(5)  # its entries would start at a later compaction
    (entries / "4").write_bytes(b'v1\n{"path":"x"}')
    with pytest.raises(RestoreError, match="new path"):
        log.check_fresh(4)
