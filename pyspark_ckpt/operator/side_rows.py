"""A second kind of rows in an operator's only input: in one union, told apart by a flag.

A row of one side has fillers in the columns of the other, and the flag says which side it is of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.operator.input_columns import KEY_GROUP, TOKEN
from pyspark_ckpt.operator.time import NEVER_LATE, WATERMARK_DELAY

_SHARED = (KEY_GROUP, TOKEN)


class SideRows:
    """Rows beside the keyed ones.

    Parameters
    ----------
    name
        Short and the side's own; it begins the names of its columns.
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"{name}_"
        self._flag = f"__ckpt_is_{name}"

    def union(self, keyed: DataFrame, side: DataFrame) -> DataFrame:
        """Return both as one DataFrame; both have a key group and a token. Driver only."""
        renamed = side.select(
            *_SHARED,
            *[
                F.col(name).alias(self._prefix + name)
                for name in side.columns
                if name not in _SHARED
            ],
        )
        is_side, is_keyed = F.expr("true"), F.expr("false")
        return keyed.select("*", *_fillers(renamed.schema), is_keyed.alias(self._flag)).unionByName(
            renamed.select("*", *_fillers(keyed.schema), is_side.alias(self._flag))
        )

    def split(self, frames: Iterator[pd.DataFrame], side: list[pd.DataFrame]) -> Iterator[Any]:
        """Yield the keyed rows; those of the side are added to `side` on the way."""
        for frame in frames:
            is_side = frame[self._flag].to_numpy(dtype=bool)
            if not is_side.any():
                yield frame
                continue
            side.append(self._own_columns(frame[is_side]))
            if not is_side.all():
                yield frame[~is_side]

    def _own_columns(self, frame: pd.DataFrame) -> pd.DataFrame:
        own = [name for name in frame.columns if name.startswith(self._prefix)]
        names = {name: name.removeprefix(self._prefix) for name in own}
        return frame[[KEY_GROUP, *own]].rename(columns=names).reset_index(drop=True)


def _fillers(schema: T.StructType) -> list[Column]:
    return [_filler(field) for field in schema.fields if field.name not in _SHARED]


def _filler(field: T.StructField) -> Column:
    """Return a value that pandas keeps in the column's own type: null only where it can."""
    data_type = field.dataType
    if isinstance(data_type, T.BooleanType):
        value = F.expr("false")
    elif isinstance(data_type, T.NumericType) and not isinstance(data_type, T.DecimalType):
        value = F.lit(NEVER_LATE if field.metadata.get(WATERMARK_DELAY) is not None else 0)
    else:
        value = F.lit(None)
    return value.cast(data_type).alias(field.name)
