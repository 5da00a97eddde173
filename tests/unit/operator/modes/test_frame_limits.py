"""How many rows make a frame, by Spark's settings."""

from __future__ import annotations

import pytest

from pyspark_ckpt.operator.modes.views import FrameLimits

ROWS = 100
SIZE_BYTES = 16 * ROWS


@pytest.mark.parametrize(
    ("rows", "size_bytes", "wanted"),
    [
        ("10000", 2**31 - 1, 10_000),
        ("7", 2**31 - 1, 7),
        ("0", 2**31 - 1, 100),
        ("-1", 2**31 - 1, 100),
        ("10000", 1, 1),
        ("10000", 16, 1),
        ("10000", 17, 2),
        ("10000", 160, 10),
        ("3", 160, 3),
        ("-1", 160, 10),
        ("10000", "1kb", 64),
        ("10000", "64mb", 10_000),
    ],
)
def test_the_smaller_limit_counts(rows: str, size_bytes: int | str, wanted: int) -> None:
    conf = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": rows,
        "spark.sql.execution.arrow.maxBytesPerBatch": str(size_bytes),
    }
    limits = FrameLimits.of_session(lambda key, default: conf.get(key, default))
    assert limits.rows_of_frames(ROWS, SIZE_BYTES) == wanted


def test_defaults_are_sparks() -> None:
    assert FrameLimits.of_session(lambda _, default: default) == FrameLimits()


def test_no_rows() -> None:
    assert FrameLimits(-1, 16).rows_of_frames(0, 0) == 1
