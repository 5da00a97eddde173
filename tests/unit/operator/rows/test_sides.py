"""The sides of an input come back from the call that reads it, and stay nowhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import KEY_GROUP, InputColumns
from pyspark_ckpt.operator.rows.mode import RowForm
from pyspark_ckpt.operator.rows.parts import InputParts
from pyspark_ckpt.operator.rows.sides import BroadcastRows, SideRows, read_divided

COLUMNS = InputColumns(T.StructType([T.StructField("n", T.LongType(), nullable=False)]), [])
BROADCAST = BroadcastRows(COLUMNS, RowForm.ROWS)
WAKE = SideRows("wake")
SIDES = [WAKE, BROADCAST.side]


def sent(kinds: list[str], numbers: list[int]) -> pa.RecordBatch:
    """Return a batch of the union: rows of each kind have their number in the kind's own column."""

    def column(kind: str) -> list[int | None]:
        return [n if each == kind else None for each, n in zip(kinds, numbers, strict=True)]

    return pa.RecordBatch.from_pydict(
        {
            KEY_GROUP: pa.array([number % 8 for number in numbers], pa.int32()),
            "c0": pa.array(column("keyed"), pa.int64()),
            "broadcast_c0": pa.array(column("broadcast"), pa.int64()),
            # A row that another union added later has no flag of this one.
            "__ckpt_is_wake": pa.array(
                [None if kind == "broadcast" else kind == "wake" for kind in kinds], pa.bool_()
            ),
            "__ckpt_is_broadcast": pa.array([kind == "broadcast" for kind in kinds], pa.bool_()),
        }
    )


def read(
    frames: Iterator[pa.RecordBatch], directory: Path, limit_bytes: int = 1 << 30
) -> tuple[list[int], list[int], int]:
    """Return the numbers of the keyed and of the broadcast rows, and the count of wake rows."""
    parts = InputParts(range(8), limit_bytes, directory)
    keyed, sides = read_divided(frames, COLUMNS, SIDES, parts)
    # The sides are whole before any keyed row is asked for.
    broadcast = [row[0] for row in BROADCAST.received(sides["broadcast"]) or ()]
    wake = sum(map(len, sides["wake"]))
    return [n for part in keyed for frame in part for n in frame["c0"].to_pylist()], broadcast, wake


@pytest.mark.parametrize("limit_bytes", [1, 1 << 30], ids=["spilled", "in memory"])
def test_each_row_is_of_one_side_in_the_order_of_its_arrival(
    tmp_path: Path, limit_bytes: int
) -> None:
    rng = random.Random(1)
    kinds = [rng.choice(["keyed", "broadcast", "wake"]) for _ in range(1000)]
    frames = [
        sent(kinds[start : start + 7], list(range(start, min(start + 7, 1000))))
        for start in range(0, 1000, 7)
    ]
    keyed, broadcast, wake = read(iter(frames), tmp_path, limit_bytes)
    assert sorted(keyed) == [n for n, kind in enumerate(kinds) if kind == "keyed"]
    assert broadcast == [n for n, kind in enumerate(kinds) if kind == "broadcast"]
    assert wake == kinds.count("wake")


def test_an_interrupted_input_leaves_no_broadcast_row_to_the_next_one(tmp_path: Path) -> None:
    def breaks_off() -> Iterator[pa.RecordBatch]:
        yield sent(["broadcast", "keyed"], [1, 2])
        raise ConnectionError

    with pytest.raises(ConnectionError):
        read(breaks_off(), tmp_path)
    assert read(iter([sent(["keyed", "broadcast"], [3, 4])]), tmp_path) == ([3], [4], 0)


def test_without_rows_of_a_side_the_processor_is_not_called_for_them(tmp_path: Path) -> None:
    assert read(iter([sent(["keyed"], [1])]), tmp_path) == ([1], [], 0)
    assert read(iter([sent([], [])]), tmp_path) == ([], [], 0)
    assert BROADCAST.received([]) is None
