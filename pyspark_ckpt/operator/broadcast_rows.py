"""Rows of a broadcast stream: once for each subtask in the plan, handled before the keyed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_ckpt.operator.input_columns import KEY_GROUP, TOKEN, InputColumns
from pyspark_ckpt.operator.side_rows import SideRows

_NO_KEY_GROUP = -1


class BroadcastRows:
    """The broadcast side of an operator's input.

    Parameters
    ----------
    columns
        How the broadcast stream's columns travel.
    as_frames
        Whether the processor gets pandas frames rather than Rows.
    """

    def __init__(self, columns: InputColumns, *, as_frames: bool) -> None:
        self._columns = columns
        self._as_frames = as_frames
        self._side = SideRows("broadcast")
        self._frames: list[pd.DataFrame] = []

    def plan(self, keyed: DataFrame, stream: DataFrame, tokens: Sequence[int]) -> DataFrame:
        """Return the keyed rows and, once for each token, the broadcast rows. Driver only."""
        key_group = F.lit(_NO_KEY_GROUP).alias(KEY_GROUP)
        every_token = F.explode(F.array(*[F.lit(token) for token in tokens])).alias(TOKEN)
        return self._side.union(
            keyed, stream.select(key_group, *self._columns.columns(), every_token)
        )

    def keyed_only(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the keyed rows and keep the broadcast rows for :meth:`rows`."""
        return self._side.split(frames, self._frames)

    def rows(self) -> Iterator[Any] | None:
        """Return the epoch's broadcast rows, once all frames were read; ``None`` for none."""
        frames, self._frames = self._frames, []
        if not frames:
            return None
        if self._as_frames:
            return (self._columns.pandas_frame(frame) for frame in frames)
        return (row for frame in frames for row in self._columns.rows(frame))
