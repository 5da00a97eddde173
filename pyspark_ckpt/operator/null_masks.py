"""Which values of sent rows are null: bits in columns of their own, which pandas leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

MASK = "__ckpt_nulls_"
"""Begins the names of the mask columns."""

_BITS = 62


class NullMasks:
    """The masks of a stream's rows, made in the plan and read on the executor.

    Parameters
    ----------
    nullable
        Places of the columns whose nulls travel as bits, with a filler in the column itself.
    """

    def __init__(self, nullable: Sequence[int]) -> None:
        self.nullable = tuple(nullable)
        self._parts = [nullable[start : start + _BITS] for start in range(0, len(nullable), _BITS)]

    @property
    def fields(self) -> list[T.StructField]:
        """The mask columns' part of the sent schema."""
        return [T.StructField(f"{MASK}{n}", T.LongType()) for n in range(len(self._parts))]

    def columns(self, all_columns: Sequence[Column]) -> list[Column]:
        """Return the expressions of the masks over a stream's columns; called on the driver."""
        return [
            _mask([all_columns[index] for index in part]).alias(f"{MASK}{number}")
            for number, part in enumerate(self._parts)
        ]

    def flags(self, frame: pd.DataFrame) -> dict[int, np.ndarray[Any, Any]]:
        """Return, for each column that has nulls, which rows they are in."""
        flags = {}
        for number, part in enumerate(self._parts):
            mask = frame[f"{MASK}{number}"].to_numpy()
            if mask.any():
                for bit, index in enumerate(part):
                    column = (mask >> bit & 1).astype(bool)
                    if column.any():
                        flags[index] = column
        return flags


def _mask(columns: Sequence[Column]) -> Column:
    mask = F.lit(0).cast("long")
    for bit, column in enumerate(columns):
        mask = mask + F.when(column.isNull(), F.lit(1 << bit)).otherwise(F.lit(0)).cast("long")
    return mask
