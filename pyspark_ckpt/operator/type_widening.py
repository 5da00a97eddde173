"""Which type may take the place of a stored one without a value being lost, and how values follow.

Nested types are the business of :mod:`pyspark_ckpt.operator.schema_evolution`.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError

_WIDER: dict[type[T.DataType], tuple[type[T.DataType], ...]] = {
    T.ByteType: (T.ShortType, T.IntegerType, T.LongType, T.DoubleType),
    T.ShortType: (T.IntegerType, T.LongType, T.DoubleType),
    T.IntegerType: (T.LongType, T.DoubleType),
    T.FloatType: (T.DoubleType,),
}
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType)


def widens(stored: T.DataType, wanted: T.DataType) -> bool:
    """Tell whether every value of one type is a value of another, wider one; no nested types."""
    if isinstance(stored, T.DecimalType) and isinstance(wanted, T.DecimalType):
        more_digits = wanted.precision - stored.precision
        more_decimals = wanted.scale - stored.scale
        return 0 <= more_decimals <= more_digits and more_digits > 0
    if isinstance(stored, T.CharType | T.VarcharType):
        return isinstance(wanted, T.StringType) and wanted.isUTF8BinaryCollation()
    return type(wanted) in _WIDER.get(type(stored), ())


def widening_function(stored: T.DataType, wanted: T.DataType) -> Callable[[Any], Any] | None:
    """Return what makes a value, never null, one of the wider type; ``None`` if it is one."""
    if isinstance(stored, T.DecimalType) and isinstance(wanted, T.DecimalType):
        return None if stored.scale == wanted.scale else _rescale(wanted)
    if isinstance(stored, _INTEGERS) and isinstance(wanted, T.DoubleType):
        return float
    return None


def _rescale(wanted: T.DecimalType) -> Callable[[Decimal], Decimal]:
    exponent = Decimal(1).scaleb(-wanted.scale)
    context = Context(prec=wanted.precision, rounding=ROUND_HALF_UP)

    def rescale(value: Decimal) -> Decimal:
        try:
            return value.quantize(exponent, context=context)
        except InvalidOperation as exc:
            raise StateValueError(
                f"the stored decimal {value} has more digits than its schema says and does not fit "
                f"{wanted.simpleString()}; give the state a Migration with value="
            ) from exc

    return rescale
