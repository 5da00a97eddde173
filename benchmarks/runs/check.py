"""Checks whether a contender's output is right: all rows, in any order."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from benchmarks.runs.run import WrongResultError


def in_order(output: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return some columns of an output, sorted by all of them."""
    return output[list(columns)].sort_values(list(columns), ignore_index=True)


def check_rows(
    name: str, output: pd.DataFrame, expected: pd.DataFrame, columns: Sequence[str]
) -> None:
    """Check that both have the same rows, each as often.

    Raises
    ------
    WrongResultError
        If they differ; names the contender and the first differences.
    """
    if expected.empty:
        raise WrongResultError(f"{name}: no output is expected, so nothing is checked")
    missing = [column for column in columns if column not in output.columns]
    if missing:
        raise WrongResultError(f"{name}: the output lacks {missing}, it has {list(output.columns)}")
    try:
        pd.testing.assert_frame_equal(in_order(output, columns), in_order(expected, columns))
    except AssertionError as exc:
        raise WrongResultError(f"{name}: the output is not what pandas computes: {exc}") from exc
