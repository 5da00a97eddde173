"""Numbers for keys are equal exactly if Python's equality of keys says so."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.operator.rows.key_columns import (
    codes_of_numbers,
    codes_of_texts,
    combined,
    first_places,
    stable_order,
)

_texts = st.none() | st.sampled_from(["", "a", "ä", "a\0b", "\U0001f600"]) | st.text(max_size=2)


def same_groups(codes: np.ndarray[Any, Any], values: list[Any]) -> bool:
    """Return whether codes are 0 to n-1 and distinguish the same values."""
    pairs = set(zip(codes.tolist(), values, strict=True))
    numbers = {code for code, _ in pairs}
    return numbers == set(range(len(set(values)))) and len(pairs) == len(numbers)


@given(st.lists(_texts))
def test_texts(values: list[str | None]) -> None:
    assert same_groups(codes_of_texts(pa.array(values, pa.string())), values)


@given(st.lists(st.none() | st.binary(max_size=2)))
def test_bytes(values: list[bytes | None]) -> None:
    assert same_groups(codes_of_texts(pa.array(values, pa.binary())), values)


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 1)))
def test_integers_and_nulls_whatever_stands_in_their_place(values: list[int | None]) -> None:
    nulls = np.array([value is None for value in values], dtype=bool)
    numbers = np.array([0 if value is None else value for value in values], dtype=np.int64)
    assert same_groups(codes_of_numbers(numbers, nulls), values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_have_one_nan_and_one_zero(dtype: Any) -> None:
    values = [math.nan, 0.0, -0.0, -math.nan, math.inf, -math.inf, 1.5, 0.0]
    codes = codes_of_numbers(np.array(values, dtype=dtype), None).tolist()
    assert codes[0] == codes[3]
    assert codes[1] == codes[2] == codes[7]
    assert len(set(codes)) == 5


def test_booleans() -> None:
    codes = codes_of_numbers(np.array([True, False, True]), None).tolist()
    assert codes[0] == codes[2] != codes[1]


def codes_of(values: list[Any]) -> np.ndarray[Any, Any]:
    """Return a number for each object, by a dictionary."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.booleans())))
def test_columns_together(rows: list[tuple[int, str, bool]]) -> None:
    columns = [codes_of([row[place] for row in rows]) for place in range(3)]
    assert same_groups(combined(columns), rows)


@given(st.lists(st.integers(0, 2**17)))
def test_order_and_first_places(values: list[int]) -> None:
    codes = np.array(values, dtype=np.int64)
    assert stable_order(codes).tolist() == np.argsort(codes, kind="stable").tolist()
    dense = codes_of(values)
    assert first_places(dense).tolist() == [values.index(value) for value in dict.fromkeys(values)]


def test_wide_codes_are_sorted_too() -> None:
    codes = np.array([2**31, 5, 2**16, 5, 0, 2**31], dtype=np.int64)
    assert stable_order(codes).tolist() == [4, 1, 3, 2, 0, 5]
