"""The columns of the table of types that rows and JSON read."""

from __future__ import annotations

from pyspark.sql import types as T

from pyspark_ckpt.values.types import LEAVES, leaf_of
from pyspark_ckpt.values.types import TEXTS as TEXTS
from pyspark_ckpt.values.types import TIME_OF_DAY as TIME_OF_DAY
from pyspark_ckpt.values.user import Converter
from pyspark_ckpt.values.user import decimal_writer as decimal_writer
from pyspark_ckpt.values.user import microseconds_of as microseconds_of
from pyspark_ckpt.values.user import variant_parts as variant_parts

PLAIN_TYPES = {row.spark: row.wire for row in LEAVES}
OWN_KINDS = {row.spark: row.as_they_are for row in LEAVES if row.as_they_are}


def taken(data_type: T.DataType) -> Converter:
    """Return a function from what a user gives for a leaf to the type's own Python value."""
    return leaf_of(data_type).take
