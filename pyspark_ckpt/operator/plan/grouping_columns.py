"""The key columns of a stream, given as ``groupBy`` takes them. Driver only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.sessions.connect_plan import column_name
from pyspark_ckpt.sessions.kind import is_connect

DERIVED_KEY = "__ckpt_key_"
"""Begins the name of a column that holds the value of a key expression."""


@dataclass(frozen=True, slots=True)
class GroupingColumns:
    """A DataFrame that has a column for each part of the key.

    `df` has the user's columns first, and then one column for each key expression. `derived` has
    the names that the user sees for the columns of key expressions, as ``groupBy`` gives them.
    """

    df: DataFrame
    names: tuple[str, ...]
    derived: dict[str, str] = field(default_factory=dict)


def grouping_columns(df: DataFrame, columns: tuple[str | Column, ...]) -> GroupingColumns:
    """Return the key columns of a DataFrame."""
    if not columns:
        raise PlanError("key_by needs at least one key column")
    duplicated = {name for name in df.columns if df.columns.count(name) > 1}
    if duplicated:
        raise PlanError(f"columns {sorted(duplicated)} appear more than once: rename them first")
    shown = [_plain_name(df, column) or _derived_name(df, column) for column in columns]
    if len(set(shown)) != len(shown):
        raise PlanError(f"key_by got a column twice: {shown}")
    keyed, names, derived = df, [], {}
    for number, (column, name) in enumerate(zip(columns, shown, strict=True)):
        if _plain_name(df, column) is not None:
            names.append(name)
            continue
        names.append(f"{DERIVED_KEY}{number}")
        derived[names[-1]] = name
        value = F.col(column) if isinstance(column, str) else column
        # A window of event time would bring its watermark along, and be a second event time.
        keyed = keyed.select("*", value.alias(names[-1], metadata={}))
    return GroupingColumns(keyed, tuple(names), derived)


def _plain_name(df: DataFrame, column: str | Column) -> str | None:
    """Return the name of a column of the DataFrame as it is, ``None`` for anything else."""
    if isinstance(column, str) and column in df.columns:
        return column
    if is_connect(df):
        name = column_name(column)
        return name if name in df.columns else None
    try:
        selected = df.select(column)
    except AnalysisException:
        return None  # `_derived_name` raises an error with the reason
    if len(selected.columns) != 1:
        return None
    wanted = _analyzed(selected).output().head().exprId()
    own = _analyzed(df).output()
    # By its id: the selected one has the name as the user wrote it, in capitals or not.
    return next(
        (name for place, name in enumerate(df.columns) if own.apply(place).exprId().equals(wanted)),
        None,
    )


def _analyzed(df: DataFrame) -> Any:
    return df._jdf.queryExecution().analyzed()  # noqa: SLF001


def _derived_name(df: DataFrame, column: str | Column) -> str:
    """Return the name that ``groupBy`` gives to a key expression."""
    text = column if isinstance(column, str) else str(column)
    try:
        *names, _ = df.groupBy(column).count().columns
    except AnalysisException as exc:
        reason = str(exc).splitlines()[0]
        raise PlanError(
            f"key column {text!r} cannot be computed from the stream, which has {df.columns}: "
            f"{reason}"
        ) from exc
    if len(names) != 1:
        raise PlanError(f"key column {text!r} is {len(names)} columns: name each of them")
    return str(names[0])
