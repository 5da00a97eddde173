"""Frames of the shuffle as Arrow tables and back, with every value as it was.

Only variants need more than Arrow's own conversion: in pandas they are objects of PySpark's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.json_in_spark import JSON, VARIANTS


def to_table(frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """Return the columns of a frame that `schema` has; called on an executor."""
    own = _with_variants(frame[schema.names], schema, _in_arrow)
    return pa.Table.from_pandas(own, schema, preserve_index=False)


def to_frame(batch: pa.RecordBatch) -> pd.DataFrame:
    """Return rows of :func:`to_table` as the frame they were."""
    return _with_variants(batch.to_pandas(date_as_object=True), batch.schema, _in_pandas)


def _with_variants(
    frame: pd.DataFrame, schema: pa.Schema, convert: Callable[[Any], Any]
) -> pd.DataFrame:
    """Return a frame with the columns converted that travel as text and variants."""
    converted = {
        field.name: pd.Series(list(map(convert, frame[field.name])), frame.index, dtype=object)
        for field in schema
        if pa.types.is_struct(field.type)
    }
    return frame.assign(**converted) if converted else frame


def _in_arrow(value: Any) -> dict[str, Any]:
    variants = [{"value": one.value, "metadata": one.metadata} for one in value[VARIANTS]]
    return {JSON: value[JSON], VARIANTS: variants}


def _in_pandas(value: Any) -> dict[str, Any]:
    variants = [T.VariantVal(one["value"], one["metadata"]) for one in value[VARIANTS]]
    return {JSON: value[JSON], VARIANTS: variants}
