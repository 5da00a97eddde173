"""An epoch's input in parts: every row once, a key group's rows together, memory bounded."""

from __future__ import annotations

import datetime
import math
import random
import weakref
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.operator.modes.calls import KeyedPart
from pyspark_ckpt.operator.modes.views import RowView
from pyspark_ckpt.operator.rows.input import KEY_GROUP, InputColumns
from pyspark_ckpt.operator.rows.parts import InputParts
from pyspark_ckpt.operator.rows.sent_rows import bytes_as_objects
from tests.unit.operator.rows.sent import sent_batch
from tests.unit.operator.rows.test_input import schema_of

UTC = datetime.timezone.utc
SCHEMA = schema_of(
    T.LongType(), T.ShortType(), T.DoubleType(), T.FloatType(), T.BooleanType(), T.StringType(),
    T.BinaryType(), T.DecimalType(38, 2), T.DateType(), T.TimestampType(),
)  # fmt: skip
COLUMNS = InputColumns(SCHEMA, ["f0"])
GROUPS = range(40, 60)


def row_of(rng: random.Random, number: int) -> tuple[Any, ...]:
    values = (
        rng.choice([2**63 - 1, -(2**63), 2**53 + 1]),
        rng.choice([-32768, 0]),
        rng.choice([math.nan, -0.0, math.inf, 0.1]),
        rng.choice([math.nan, -0.0, 1.5]),
        rng.random() < 0.5,
        rng.choice(["", "ä\0", "x" * 50]),
        rng.choice([b"", b"\xff\x00" * 9]),
        rng.choice([Decimal("1.10"), Decimal("-99999999999999999999999999999.99")]),
        rng.choice([datetime.date.min, datetime.date.max]),
        datetime.datetime(2024, 2, 29, 1, 2, 3, 999_999, tzinfo=UTC),
    )
    return (number, *(None if rng.random() < 0.2 else value for value in values[1:]))


def frames_of(
    rows: int, per_frame: int, groups: range = GROUPS
) -> tuple[list[pa.RecordBatch], list[int]]:
    """Return frames of rows numbered in the first column, and the key group of each."""
    rng = random.Random(rows)
    of_row = [rng.choice(groups) for _ in range(rows)]
    frames = [
        sent_batch(
            SCHEMA,
            [row_of(rng, number) for number in range(start, min(start + per_frame, rows))],
            *of_row[start : start + per_frame],
        )
        for start in range(0, rows, per_frame)
    ]
    return frames, of_row


def parts_of(directory: Path, limit_bytes: int, groups: range = GROUPS) -> InputParts:
    return InputParts(groups, limit_bytes, directory)


def rows_of(frames: list[pa.RecordBatch]) -> list[str]:
    """Return rows as the processor sees them, in order, exact to the last bit."""
    part = KeyedPart(RowView(), COLUMNS, frames)
    return [repr(tuple(row)) for place in range(len(part.keys)) for row in part.rows(place)]


@pytest.mark.parametrize("limit_bytes", [1, 50_000, 1 << 30])
@pytest.mark.parametrize("per_frame", [7, 60, 500])
def test_all_rows_come_back_once_with_all_their_values(
    tmp_path: Path, limit_bytes: int, per_frame: int
) -> None:
    frames, of_row = frames_of(500, per_frame)
    expected = rows_of(frames)
    parts = parts_of(tmp_path, limit_bytes)
    found: list[str] = []
    seen: list[set[int]] = []
    for part in parts.split(iter(frames)):
        found.extend(rows_of(part))
        seen.append({group for one in part for group in one[KEY_GROUP].to_pylist()})
        for one in part:
            assert one[KEY_GROUP].to_pylist() == [
                of_row[number] for number in one["c0"].to_pylist()
            ]
    assert sorted(found) == sorted(expected)
    assert sum(map(len, seen)) == len(set().union(*seen)), "a key group is in one part only"
    lowest = [min(groups) for groups in seen]
    assert lowest == sorted(lowest)
    assert (parts.spilled_bytes > 0) is (limit_bytes < 1 << 30) is (len(seen) > 1)
    assert list(tmp_path.iterdir()) == []


def test_rows_of_a_key_group_keep_their_order(tmp_path: Path) -> None:
    frames, of_row = frames_of(2000, 90, range(40, 50))
    of_group: dict[int, list[int]] = {}
    for part in parts_of(tmp_path, 1, range(40, 50)).split(iter(frames)):
        for one in part:
            for group, number in zip(
                one[KEY_GROUP].to_pylist(), one["c0"].to_pylist(), strict=True
            ):
                of_group.setdefault(group, []).append(number)
    assert of_group == {
        group: [number for number in range(2000) if of_row[number] == group]
        for group in range(40, 50)
    }


def test_parts_are_as_small_as_key_groups_allow(tmp_path: Path) -> None:
    """More key groups than files: a part that is still too large is split again."""
    groups = range(100)
    frames, of_row = frames_of(300, 100, groups)
    seen = [
        {group for one in part for group in one[KEY_GROUP].to_pylist()}
        for part in parts_of(tmp_path, 1, groups).split(iter(frames))
    ]
    assert seen == [{group} for group in sorted(set(of_row))]


def test_held_frames_and_parts_are_bounded(tmp_path: Path) -> None:
    alive: list[weakref.ref[pa.RecordBatch]] = []
    most_alive = 0

    def fresh() -> Iterator[pa.RecordBatch]:
        nonlocal most_alive
        (pattern,), _ = frames_of(200, 200)
        for _ in range(60):
            one = pattern.slice()
            alive.append(weakref.ref(one))
            most_alive = max(most_alive, sum(ref() is not None for ref in alive))
            yield one
            del one

    limit_bytes = 5 * bytes_as_objects(frames_of(200, 200)[0][0])
    parts = 0
    for part in parts_of(tmp_path, limit_bytes).split(fresh()):
        size_bytes = sum(map(bytes_as_objects, part))
        key_groups = {group for one in part for group in one[KEY_GROUP].to_pylist()}
        assert size_bytes <= limit_bytes or len(key_groups) == 1
        parts += 1
        del part
    assert len(alive) == 60
    assert most_alive <= 5 + 3
    assert parts >= 12


def test_one_key_group_is_one_part_whatever_its_size(tmp_path: Path) -> None:
    frames, _ = frames_of(500, 50, range(7, 8))
    (part,) = parts_of(tmp_path, 1, range(7, 8)).split(iter(frames))
    assert rows_of(part) == rows_of(frames)


@pytest.mark.parametrize("limit_bytes", [1, 1 << 30])
def test_no_rows_are_no_parts(tmp_path: Path, limit_bytes: int) -> None:
    assert list(parts_of(tmp_path, limit_bytes).split(iter(()))) == []


@pytest.mark.parametrize("failing_after", [0, 1, 5])
def test_nothing_stays_on_disk_when_reading_is_given_up(tmp_path: Path, failing_after: int) -> None:
    frames, _ = frames_of(2000, 100)
    parts = parts_of(tmp_path, 1).split(iter(frames))
    for _ in range(failing_after):
        next(parts)
        assert list(tmp_path.iterdir()) != []
    parts.close()
    assert list(tmp_path.iterdir()) == []


def test_nothing_stays_on_disk_when_the_input_fails(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from frames_of(2000, 100)[0]
        raise InterruptedError

    with pytest.raises(InterruptedError):
        list(parts_of(tmp_path, 1).split(failing()))
    assert list(tmp_path.iterdir()) == []


def test_nothing_stays_on_disk_when_a_row_does_not_fit_the_schema(tmp_path: Path) -> None:
    frames, _ = frames_of(200, 100)
    place = frames[1].schema.names.index("c5")
    frames[1] = frames[1].set_column(place, "c5", pa.array([5] * len(frames[1])))
    with pytest.raises(pa.ArrowException):
        list(parts_of(tmp_path, 1).split(iter(frames)))
    assert list(tmp_path.iterdir()) == []


def test_long_strings_count() -> None:
    schema = schema_of(T.StringType(), T.BinaryType())
    small = sent_batch(schema, [("x", b"x")] * 100)
    for large in (
        sent_batch(schema, [("x" * 1000, b"x")] * 100),
        sent_batch(schema, [("x", b"x" * 1000)] * 100),
    ):
        grown = bytes_as_objects(large) - bytes_as_objects(small)
        assert 90_000 < grown < 110_000


@settings(max_examples=15)
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.none() | st.floats(width=32)), max_size=30),
    per_frame=st.integers(1, 8),
    limit_bytes=st.sampled_from([1, 2000, 10**6]),
)
def test_any_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, float | None]],
    per_frame: int,
    limit_bytes: int,
) -> None:
    directory = tmp_path_factory.mktemp("any")
    schema = schema_of(T.IntegerType(), T.FloatType())
    columns = InputColumns(schema, ["f0"])
    frames = [
        sent_batch(
            schema, rows[start : start + per_frame], *[k for k, _ in rows[start:][:per_frame]]
        )
        for start in range(0, len(rows), per_frame)
    ]
    parts = InputParts(range(10), limit_bytes, directory)
    found: dict[int, list[str]] = {}
    for part in parts.split(iter(frames)):
        keyed = KeyedPart(RowView(), columns, part)
        for place, (key,) in enumerate(keyed.keys):
            assert key not in found
            found[key] = [repr(row.f1) for row in keyed.rows(place)]
    expected: dict[int, list[str]] = {}
    for key, value in rows:
        expected.setdefault(key, []).append(repr(value))
    assert found == expected
    assert list(directory.iterdir()) == []
