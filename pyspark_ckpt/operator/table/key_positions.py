"""Which keys of a part a processor names: the index of a frame, or a column of an Arrow table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pyspark_ckpt.errors import StateValueError

KEY_POSITION = "key_position"
"""The column of Arrow tables that says which key of the part a row belongs to."""


def positions_of(keys: pd.DataFrame | pa.Table, where: str) -> np.ndarray[Any, Any]:
    """Return the positions of keys in their part.

    Raises
    ------
    StateValueError
        If an Arrow table of keys has no column ``key_position``; names `where`.
    """
    if isinstance(keys, pd.DataFrame):
        return keys.index.to_numpy()
    if not isinstance(keys, pa.Table) or KEY_POSITION not in keys.column_names:
        found = keys.column_names if isinstance(keys, pa.Table) else type(keys).__name__
        raise StateValueError(
            f"{where}: the given keys are {found}: give the table of keys that handleInputArrow "
            f"got, or some of its rows, with its column {KEY_POSITION!r}"
        )
    positions: np.ndarray[Any, Any] = keys.column(KEY_POSITION).to_numpy()
    return positions
