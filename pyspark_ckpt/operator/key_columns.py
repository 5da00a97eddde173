"""Key columns in the plan: which types can be keys, and the form in which Spark hashes them."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.values.codec import holds

_NAN = float("nan")
_FLOATS = (T.FloatType, T.DoubleType)


def check_key(field: T.StructField) -> None:
    """Check that a column can be a key; called on the driver.

    Raises
    ------
    PlanError
        If its type has a map or a variant, which Spark does not hash.
    """
    if holds(field.dataType, (T.MapType, T.VariantType)):
        raise PlanError(
            f"key column {field.name!r} is {field.dataType.simpleString()}: maps and variants "
            "cannot be (part of) a key; key by values taken out of them"
        )


def canonical_column(column: Column, data_type: T.DataType) -> Column:
    """Return a key column in which equal keys hash alike: -0.0 is 0.0 and all NaNs are one."""
    if not holds(data_type, _FLOATS):
        return column
    if isinstance(data_type, T.ArrayType):
        return F.transform(column, lambda item: canonical_column(item, data_type.elementType))
    if isinstance(data_type, T.StructType):
        by_position = column.cast(_named_by_position(data_type))
        fields = [
            canonical_column(by_position[f"c{index}"], field.dataType).alias(f"c{index}")
            for index, field in enumerate(data_type.fields)
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    # -0.0 + 0.0 is 0.0, so that equal keys hash alike.
    return F.when(F.isnan(column), F.lit(_NAN)).otherwise(column + F.lit(0.0))


def _named_by_position(data_type: T.StructType) -> T.StructType:
    return T.StructType(
        [T.StructField(f"c{index}", field.dataType) for index, field in enumerate(data_type.fields)]
    )
