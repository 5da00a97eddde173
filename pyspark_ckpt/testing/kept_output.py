"""The output of an epoch in a harness: checked as in a query, kept as it was yielded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.kept_values import kept_frame, kept_row
from pyspark_ckpt.operator.rows.mode import Output


class KeptOutput:
    """The output of an epoch.

    Parameters
    ----------
    checked
        The library's own buffer, which refuses wrong values; ``None`` without a schema.
    in_frames
        Whether the processor yields frames.
    after_call
        Called after each call of the processor.
    where
        The operator, for errors.
    """

    def __init__(
        self,
        checked: Output | None,
        after_call: Callable[[], None],
        where: str,
        *,
        in_frames: bool,
    ) -> None:
        self._checked = checked
        self._after_call = after_call
        self._where = where
        self._in_frames = in_frames
        self._kept: list[Any] = []

    @property
    def rows(self) -> int:
        """How many rows are not checked yet."""
        return 0 if self._checked is None else self._checked.rows

    def extend(self, output: Iterable[Any] | None) -> None:
        """Add what one call of the processor yields."""
        if isinstance(output, pd.DataFrame):
            raise StateValueError(
                f"{self._where}: the processor returned a DataFrame: yield it, or return a list "
                "of frames"
            )
        # Each is copied before the processor continues: a query has it as it is now, too.
        yielded = [self._as_it_is(item) for item in output or ()]
        if self._checked is not None:
            self._checked.extend(yielded)
        self._kept.extend(yielded)
        self._after_call()

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add all that one call yields: a harness returns an epoch's output as a whole."""
        self.extend(output)
        return None

    def cut(self, rows: int) -> None:
        """Remove the checked rows of a call that raised; its output is not kept."""
        if self._checked is not None:
            self._checked.cut(rows)

    def take(self) -> pa.RecordBatch:
        """Check the rows that are not checked yet; :meth:`result` returns what was yielded."""
        return pa.RecordBatch.from_pydict({}) if self._checked is None else self._checked.take()

    def result(self) -> Any:
        """Return all of the epoch's output, as a list of Rows or as one frame."""
        if not self._in_frames:
            return self._kept
        return pd.concat(self._kept, ignore_index=True) if self._kept else pd.DataFrame()

    def _as_it_is(self, item: Any) -> Any:
        if not self._in_frames:
            return kept_row(item)
        if not isinstance(item, pd.DataFrame):
            raise StateValueError(
                f"{self._where}: the processor yielded {type(item).__name__}: yield pandas "
                "DataFrames"
            )
        return kept_frame(item)
