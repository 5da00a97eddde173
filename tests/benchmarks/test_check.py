"""A wrong output is found, whatever the error is."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.runs.check import check_rows
from benchmarks.runs.run import WrongResultError

COLUMNS = ("key", "n")
EXPECTED = pd.DataFrame({"key": [1, 1, 2, 3], "n": [5, 5, 6, 7]})


def test_the_same_rows_in_another_order_are_right() -> None:
    check_rows("x", EXPECTED.sample(frac=1, random_state=1), EXPECTED, COLUMNS)


def test_columns_that_are_not_compared_do_not_count() -> None:
    check_rows("x", EXPECTED.assign(other=1), EXPECTED, COLUMNS)


@pytest.mark.parametrize(
    "wrong",
    [
        EXPECTED.iloc[1:],
        EXPECTED.iloc[:0],
        pd.concat([EXPECTED, EXPECTED.iloc[:1]]),
        EXPECTED.assign(n=[5, 5, 6, 8]),
        EXPECTED.assign(key=[1, 2, 2, 3]),
        EXPECTED.assign(n=[5.0, 5.0, 6.0, 7.0]),
        EXPECTED.drop(columns="n"),
    ],
    ids=["a row less", "none", "a row twice", "a value", "a key", "another type", "a column less"],
)
def test_everything_else_is_wrong_and_says_whose(wrong: pd.DataFrame) -> None:
    with pytest.raises(WrongResultError, match="the slow one"):
        check_rows("the slow one", wrong, EXPECTED, COLUMNS)


def test_nothing_expected_checks_nothing() -> None:
    with pytest.raises(WrongResultError, match="no output is expected"):
        check_rows("x", EXPECTED.iloc[:0], EXPECTED.iloc[:0], COLUMNS)
