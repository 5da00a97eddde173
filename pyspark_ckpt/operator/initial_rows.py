"""Rows of an initial state: given to ``handleInitialState``, key by key, before any other row."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame

from pyspark_ckpt.operator.input_columns import InputColumns
from pyspark_ckpt.operator.input_mode import InputMode
from pyspark_ckpt.operator.side_rows import SideRows


class InitialRows:
    """The initial state of an operator.

    Parameters
    ----------
    columns
        How its columns travel.
    mode
        How the processor receives its rows.
    """

    def __init__(self, columns: InputColumns, mode: InputMode) -> None:
        self.columns = columns
        self.mode = mode
        self._side = SideRows("initial")
        self._frames: list[pd.DataFrame] = []

    def plan(self, keyed: DataFrame, initial: DataFrame) -> DataFrame:
        """Return the keyed rows and those of the initial state together. Driver only."""
        return self._side.union(keyed, initial)

    def keyed_only(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the keyed rows and keep those of the initial state for :meth:`parts`."""
        return self._side.split(frames, self._frames)

    def parts(self) -> Iterator[list[pd.DataFrame]]:
        """Yield the rows of the initial state, once all frames were read."""
        frames, self._frames = self._frames, []
        if frames:
            yield frames
