"""The table of Spark types: all that the library knows of a type, one row for each.

Arrays, maps and structs have no row: what is done with them follows from the types inside, see
:mod:`pyspark_ckpt.values.nesting`. A type that this PySpark lacks has no row, as
``TimeType`` before PySpark 4.1.

A value has a *plain form*, which is stored: times are Spark's integers, structs are tuples. To add
a type is to add a row, and its values to the conformance cases in
``tests/unit/values/test_every_type.py``.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from enum import Enum, auto
from functools import cache
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, StateValueError
from pyspark_ckpt.values import columns, hashing, user
from pyspark_ckpt.values.nesting import holds, mapped, types_in
from pyspark_ckpt.values.user import Converter


class Kind(Enum):
    """What the values of a type mean: types of one kind differ in their size, or in rules."""

    INTEGER = auto()
    FRACTION = auto()
    DECIMAL = auto()
    BOOLEAN = auto()
    TEXT = auto()
    BINARY = auto()
    DATE = auto()
    INSTANT = auto()
    LOCAL_TIME = auto()
    TIME_OF_DAY = auto()
    DURATION = auto()
    MONTHS = auto()
    VARIANT = auto()
    NULL = auto()


NUMBERS = frozenset({Kind.INTEGER, Kind.FRACTION, Kind.DECIMAL})
MOMENTS = frozenset({Kind.INSTANT, Kind.LOCAL_TIME})


class KeyForm(Enum):
    """What a value is in a stored key."""

    PLAIN = auto()
    """The plain value."""

    TEXT = auto()
    """The text that Spark's cast makes of it."""

    ENCODED = auto()
    """The bytes of a tuple that has the plain value; so are all nested types."""


class Order(Enum):
    """How the least and greatest of values are found."""

    NONE = auto()
    """Not at all, nor does Arrow group by the type."""

    ARROW = auto()
    """By Arrow's own functions."""

    RANKED = auto()
    """By their ranks: Arrow's functions do not know the type, or order it otherwise than Spark."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """Functions that make equal values the same: of a plain value, an array, a column of Spark."""

    value: Converter
    array: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    column: Callable[[Column], Column]


@dataclass(frozen=True, slots=True)
class Widening:
    """A type that holds all values of a stored type, if both are as `fits` says.

    `convert` makes the plain value of the wanted type; it returns ``None`` if it is the same.
    """

    wanted: type[T.DataType]
    fits: Callable[[Any, Any], bool] = lambda _stored, _wanted: True
    convert: Callable[[Any, Any], Converter | None] = lambda _stored, _wanted: None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafType:
    """A row of the table; functions of a type get the type with its parameters."""

    spark: type[T.DataType]
    kind: Kind
    arrow: Callable[[Any], pa.DataType]
    """The Arrow type. Arrow has no type for an interval of months that other libraries read: it is
    the number of months. A variant is a struct of its two binaries."""
    plain: type
    """The Python type of plain values, which are stored."""
    bits: int = 0
    """The size of plain values that are integers."""
    take: Converter
    """Makes the type's own Python value of what a user gives, or raises."""
    python: str | None = None
    """What a user gives, as errors say it; without it they name the Spark type."""
    is_stored_as_taken: bool = False
    """Whether a Python value of the type `plain` is its own plain value."""
    write: Callable[[Any], Converter] | None = None
    """What makes the plain value of what a user gives; `take` if it is ``None``."""
    write_shown: Converter | None = None
    """As `write`, for values that have to be readable in this process's time zone."""
    read: Callable[[Any], Converter] | None = None
    """What makes the type's own value of the plain one, ``None`` if they are the same. An instant
    is shown as the reader's style says."""
    widens: tuple[Widening, ...] = ()
    """The types that a stored schema can evolve into."""
    is_key: bool = True
    """Whether it can be a key, or part of one."""
    key_form: KeyForm = KeyForm.ENCODED
    key_texts: Callable[[np.ndarray[Any, Any]], list[str]] | None = None
    """Makes the texts of an array of plain values, for `KeyForm.TEXT`."""
    hasher: Callable[[Any], Callable[[Any, int], int]] | None = None
    """Spark's hash of a plain value and a seed."""
    hashed_as: T.DataType | None = None
    """The type whose values Spark hashes as the plain values of this one, if it is another one."""
    canonical: Canonical | None = None
    """Makes equal values the same, if they may differ."""
    order: Order = Order.NONE
    sum_type: Callable[[Any], T.DataType | None] = lambda _: None
    """The type of a sum, ``None`` if it cannot be summed up."""
    shown: Callable[[pa.Array], list[Any]] | None = None
    """Makes a column's values as rows show them, where they are not those that Arrow gives."""
    of_arrow: type | None = None
    """A Python type whose values Arrow takes for a column, though they are not stored as is."""
    in_words: Callable[[Any], str] = str
    """Makes the text of a plain value that errors show."""
    pandas: str | None = None
    """The nullable dtype of columns of states in pandas; they are of objects without it."""
    is_filtered: bool = False
    """Whether equal values have one form in the filters that Spark gives to a data source."""
    exact_up_to: float | None = None
    """Above it, a value may stand for several integers."""
    whole_text: Callable[[Any], str] | None = None
    """The pattern of texts that are one value: Spark takes more, and drops digits or a zone."""
    in_python: T.DataType | None = None
    """The type to which Spark has to cast it for Python, if it is another one."""
    sent_as: T.DataType | None = None
    """The type that Spark reads back from Arrow, if it may be another one of the same kind."""

    @property
    def wire(self) -> Any:
        """The msgspec type of its plain values."""
        return _wire_of(self.plain, self.bits)

    @property
    def in_columns(self) -> frozenset[type]:
        """The Python types of whose values Arrow makes a column as they are."""
        return self.as_they_are | ({self.of_arrow} if self.of_arrow else frozenset())

    @property
    def as_they_are(self) -> frozenset[type]:
        """The Python types whose values are their own plain values."""
        return frozenset({self.plain} if self.is_stored_as_taken else ())


@cache
def _wire_of(plain: type, bits: int) -> Any:
    if plain is int:
        bound = 1 << (bits - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    return tuple[bytes, bytes] if plain is tuple else plain


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _integer(
    spark: type[T.DataType], bits: int, pandas: str, arrow: pa.DataType, *wider: type[T.DataType]
) -> LeafType:
    in_float = Widening(T.DoubleType, convert=lambda _stored, _wanted: float)
    return LeafType(
        spark=spark, kind=Kind.INTEGER, plain=int, bits=bits, python="int",
        arrow=_always(arrow), take=user.as_integer, is_stored_as_taken=True,
        widens=(*map(Widening, wider), in_float) if wider else (),
        key_form=KeyForm.PLAIN, order=Order.ARROW, sum_type=_always(T.LongType()),
        hasher=_always(hashing.hash_long if bits == 64 else hashing.hash_integer),
        pandas=pandas, is_filtered=True,
    )  # fmt: skip


_NAN = float("nan")

_FLOATS_CANONICAL = Canonical(
    # One NaN object, so that dictionaries find it. -0.0 + 0.0 is 0.0.
    value=lambda value: _NAN if math.isnan(value) else value + 0.0,
    array=lambda numbers: np.where(np.isnan(numbers), np.nan, numbers + 0.0).astype(
        numbers.dtype, copy=False
    ),
    column=lambda column: F.when(F.isnan(column), F.lit(_NAN)).otherwise(column + F.lit(0.0)),
)


def _fraction(
    spark: type[T.DataType], take: Converter, pandas: str, arrow: pa.DataType, digits: int
) -> LeafType:
    is_double = spark is T.DoubleType
    return LeafType(
        spark=spark, kind=Kind.FRACTION, plain=float, python="float",
        arrow=_always(arrow), take=take, is_stored_as_taken=is_double,
        widens=() if is_double else (Widening(T.DoubleType),),
        key_form=KeyForm.PLAIN, order=Order.RANKED, sum_type=_always(T.DoubleType()),
        hasher=_always(hashing.hash_float), canonical=_FLOATS_CANONICAL,
        pandas=pandas, exact_up_to=float(1 << digits), of_arrow=float,
    )  # fmt: skip


def _is_binary_text(_: T.DataType, wanted: T.StringType) -> bool:
    return bool(wanted.isUTF8BinaryCollation())


def _text(spark: type[T.DataType], **fields: Any) -> LeafType:
    return LeafType(
        spark=spark, kind=Kind.TEXT, plain=str, python="str",
        arrow=_always(pa.string()), take=user.as_text, is_stored_as_taken=True,
        hasher=_always(hashing.hash_text), **fields,
    )  # fmt: skip


def _text_with_length(spark: type[T.DataType]) -> LeafType:
    """Return the row of a string as in Spark's rows; Spark checks the length in tables only."""
    return _text(
        spark,
        widens=(Widening(T.StringType, fits=_is_binary_text),),
        hashed_as=T.StringType(),
        in_python=T.StringType(),
    )


_SUM_DIGITS = 10
"""A sum of decimals has so many digits more, as in Spark."""

MOST_SUMMED_DIGITS = 28
"""A sum has ten digits more, and Arrow's decimals have 38."""


def _sum_of_decimals(data_type: T.DecimalType) -> T.DecimalType | None:
    if data_type.precision > MOST_SUMMED_DIGITS:
        return None
    return T.DecimalType(data_type.precision + _SUM_DIGITS, data_type.scale)


def _holds_decimals(stored: T.DecimalType, wanted: T.DecimalType) -> bool:
    more_digits = wanted.precision - stored.precision
    more_decimals = wanted.scale - stored.scale
    return 0 <= more_decimals <= more_digits and more_digits > 0


def _rescale(stored: T.DecimalType, wanted: T.DecimalType) -> Converter | None:
    if stored.scale == wanted.scale:
        return None
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


def _time(
    spark: type[T.DataType],
    kind: Kind,
    take: Converter,
    arrow: pa.DataType,
    **fields: Any,
) -> LeafType:
    """Return the row of a time, whose plain values are the integers that Spark has for them."""
    bits = fields.pop("bits", 64)

    def write(data_type: T.DataType) -> Converter:
        to_integer = data_type.toInternal
        return lambda value: to_integer(take(value))

    given = {"write": write, "read": lambda data_type: data_type.fromInternal, **fields}
    return LeafType(
        spark=spark, kind=kind, plain=int, bits=bits, arrow=_always(arrow), take=take,
        hasher=_always(hashing.hash_integer if bits == 32 else hashing.hash_long),
        hashed_as=T.IntegerType() if bits == 32 else T.LongType(), **given,
    )  # fmt: skip


_YEAR_0, _YEAR_10000 = (
    int(np.datetime64(day, "us").astype(np.int64)) for day in ("0000-01-01", "10000-01-01")
)


_FIRST_MOMENT = "-290308-12-21T19:59:05.224192"


def _local_time_texts(microseconds: np.ndarray[Any, Any]) -> list[str]:
    """Return timestamps without a zone as Spark casts them to text."""
    texts = np.datetime_as_string(microseconds.astype("datetime64[us]")).tolist()
    plain = [text.replace("T", " ").rstrip("0").rstrip(".") for text in texts]
    if ((microseconds >= _YEAR_0) & (microseconds < _YEAR_10000)).all():
        return plain
    return list(map(_with_year_of_spark, plain))


def _moment_in_words(microseconds: int) -> str:
    is_first = microseconds == columns.NUMBER_OF_NAT
    return _FIRST_MOMENT if is_first else str(np.datetime64(microseconds, "us"))


def _with_year_of_spark(text: str) -> str:
    if text.startswith("Na"):  # NumPy has another meaning for the least integer
        return _FIRST_MOMENT.replace("T", " ")
    if text.startswith("-"):
        year, rest = text[1:].split("-", 1)
        return f"-{year.zfill(4)}-{rest}"
    return f"+{text}" if len(text.split("-", 1)[0]) > 4 else text


_DATE = r"\s*[+-]?\d+-\d{1,2}-\d{1,2}"
_CLOCK = r"[ T]\d{1,2}:\d{1,2}(:\d{1,2}(\.\d{1,6}0*)?)?"


def _whole_time_of_day(data_type: Any) -> str:
    return rf"^\s*\d{{1,2}}:\d{{1,2}}(:\d{{1,2}}(\.\d{{0,{data_type.precision}}}0*)?)?\s*$"


_VARIANT_PARTS = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)

# fmt: off
LEAVES: tuple[LeafType, ...] = (
    _integer(T.ByteType, 8, "Int8", pa.int8(), T.ShortType, T.IntegerType, T.LongType),
    _integer(T.ShortType, 16, "Int16", pa.int16(), T.IntegerType, T.LongType),
    _integer(T.IntegerType, 32, "Int32", pa.int32(), T.LongType),
    _integer(T.LongType, 64, "Int64", pa.int64()),
    _fraction(T.FloatType, user.narrowed, "Float32", pa.float32(), 24),
    _fraction(T.DoubleType, user.as_fraction, "Float64", pa.float64(), 53),
    LeafType(
        spark=T.DecimalType, kind=Kind.DECIMAL, plain=Decimal, python="Decimal",
        arrow=lambda data_type: pa.decimal128(data_type.precision, data_type.scale),
        take=user.as_decimal, write=user.decimal_writer, sum_type=_sum_of_decimals,
        of_arrow=Decimal,
        widens=(Widening(T.DecimalType, fits=_holds_decimals, convert=_rescale),),
        key_form=KeyForm.PLAIN, order=Order.ARROW,
        hasher=lambda data_type: hashing.decimal_hash(data_type.precision, data_type.scale),
    ),
    LeafType(
        spark=T.BooleanType, kind=Kind.BOOLEAN, plain=bool, python="bool",
        arrow=_always(pa.bool_()), take=user.as_truth, is_stored_as_taken=True,
        key_form=KeyForm.PLAIN, order=Order.ARROW, hasher=_always(hashing.hash_integer),
        pandas="boolean", is_filtered=True,
    ),
    _text(
        T.StringType, key_form=KeyForm.PLAIN, order=Order.RANKED, is_filtered=True,
        sent_as=T.StringType(),
    ),
    _text_with_length(T.CharType),
    _text_with_length(T.VarcharType),
    LeafType(
        spark=T.BinaryType, kind=Kind.BINARY, plain=bytes, python="bytes",
        arrow=_always(pa.binary()), take=user.as_binary, is_stored_as_taken=True,
        key_form=KeyForm.PLAIN, order=Order.RANKED, hasher=_always(hashing.hash_bytes),
        is_filtered=True,
    ),
    _time(
        T.DateType, Kind.DATE, user.as_day, pa.date32(), bits=32, python="date",
        key_form=KeyForm.PLAIN, order=Order.ARROW, is_filtered=True,
        shown=columns.days, of_arrow=datetime.date,
        in_words=lambda days: str(np.datetime64(days, "D")),
        whole_text=_always(rf"^{_DATE}([ T][0:.]*)?\s*$"),
    ),
    _time(
        T.TimestampType, Kind.INSTANT, user.as_moment, pa.timestamp("us", "UTC"),
        python="datetime", key_form=KeyForm.PLAIN, order=Order.ARROW,
        write=_always(user.microseconds_of), write_shown=user.shown_microseconds_of,
        in_words=lambda microseconds: f"{_moment_in_words(microseconds)}Z",
        whole_text=_always(rf"^{_DATE}({_CLOCK}\s*([A-Za-z+-].*)?)?\s*$"),
    ),
    _time(
        T.TimestampNTZType, Kind.LOCAL_TIME, user.as_local_time, pa.timestamp("us"),
        python="datetime", key_form=KeyForm.TEXT, key_texts=_local_time_texts, order=Order.ARROW,
        shown=columns.local_times,
        in_words=lambda microseconds: _moment_in_words(microseconds).replace("T", " "),
        whole_text=_always(rf"^{_DATE}({_CLOCK})?\s*$"),
    ),
    *(
        _time(
            T.TimeType, Kind.TIME_OF_DAY, user.as_time_of_day, pa.time64("ns"),
            whole_text=_whole_time_of_day, shown=columns.times_of_day, sent_as=T.TimeType(),
        )
        for _ in range(hasattr(T, "TimeType"))  # since PySpark 4.1
    ),
    _time(
        T.DayTimeIntervalType, Kind.DURATION, user.as_duration, pa.duration("us"),
        python="timedelta", shown=columns.durations, sent_as=T.DayTimeIntervalType(),
    ),
    LeafType(
        spark=T.YearMonthIntervalType, kind=Kind.MONTHS, plain=int, bits=32,
        arrow=_always(pa.int32()), take=user.as_integer, is_stored_as_taken=True,
        hasher=_always(hashing.hash_integer), hashed_as=T.IntegerType(),
        in_python=T.IntegerType(),  # which has no type for them
    ),
    LeafType(
        spark=T.VariantType, kind=Kind.VARIANT, plain=tuple, arrow=_always(_VARIANT_PARTS),
        take=user.as_variant, write=_always(user.variant_parts),
        read=_always(lambda parts: T.VariantVal(*parts)), is_key=False,
        shown=columns.variants,
    ),
    LeafType(
        spark=T.NullType, kind=Kind.NULL, plain=type(None), arrow=_always(pa.null()),
        take=user.as_nothing,
    ),
)
# fmt: on

_ROWS = {row.spark: row for row in LEAVES}


def find_leaf(data_type: T.DataType) -> LeafType | None:
    """Return the row of a type, ``None`` if it is nested or not built yet."""
    return _ROWS.get(type(data_type))


def leaf_of(data_type: T.DataType) -> LeafType:
    """Return the row of a type that is not nested."""
    try:
        return _ROWS[type(data_type)]
    except KeyError:
        raise NotBuiltYetError(
            f"values of type {data_type.simpleString()} are not built yet"
        ) from None


def classes_of(*kinds: Kind) -> tuple[type[T.DataType], ...]:
    """Return the Spark classes of kinds."""
    return tuple(row.spark for row in LEAVES if row.kind in kinds)


TEXTS = classes_of(Kind.TEXT)
INSTANTS = classes_of(Kind.INSTANT)
TIME_OF_DAY = classes_of(Kind.TIME_OF_DAY)
"""The type of a time without a date, if this PySpark has it."""

NO_KEYS = tuple(row.spark for row in LEAVES if not row.is_key)
"""Types that cannot be keys, or part of them."""

WITH_OTHER_EQUALS = tuple(row.spark for row in LEAVES if row.canonical)
"""Types that have values which are equal and not the same."""


def kind_of(data_type: T.DataType) -> Kind | None:
    """Return the kind of a leaf, ``None`` of other types."""
    row = find_leaf(data_type)
    return None if row is None else row.kind


def key_form_of(data_type: T.DataType) -> KeyForm:
    """Return what values of a type are in a stored key."""
    row = find_leaf(data_type)
    return KeyForm.ENCODED if row is None else row.key_form


def stored_key_type(fields: Sequence[T.StructField]) -> Any:
    """Return the msgspec type of a stored key; decimals are stored as text."""
    types = [Decimal | None if kind_of(each.dataType) is Kind.DECIMAL else Any for each in fields]
    return tuple.__class_getitem__(tuple(types))


def in_python(data_type: T.DataType) -> T.DataType:
    """Return the type in which a column comes to Python; Spark has to cast it.

    Spark has no texts of fixed length there. Intervals of years and months, which PyArrow cannot
    read, are numbers of months.
    """
    return mapped(data_type, _leaf_in_python)


def _leaf_in_python(data_type: T.DataType) -> T.DataType:
    row = find_leaf(data_type)
    return data_type if row is None or row.in_python is None else row.in_python


def hashed_as(data_type: T.DataType) -> T.DataType:
    """Return the type of plain values of a leaf that Spark hashes as values of the leaf."""
    row = find_leaf(data_type)
    return data_type if row is None or row.hashed_as is None else row.hashed_as


def is_collated(data_type: T.DataType) -> bool:
    """Return whether it has texts that are equal, or ordered, otherwise than by their bytes."""
    kinds = (getattr(each, "collation", "UTF8_BINARY") for each in types_in(data_type))
    return any(kind != "UTF8_BINARY" for kind in kinds)


def is_grouped(data_type: T.DataType) -> bool:
    """Return whether Arrow groups and orders a type as Spark does, so that it can be combined."""
    row = find_leaf(data_type)
    return row is not None and row.order is not Order.NONE and not is_collated(data_type)


def is_key_in_python(data_type: T.DataType) -> bool:
    """Return whether a Python dict can have keys of a type."""
    return not holds(data_type, (T.ArrayType, T.MapType, *NO_KEYS))


def widening_of(stored: T.DataType, wanted: T.DataType) -> Widening | None:
    """Return how values of a stored type become those of a wider one, ``None`` if it is not."""
    row = find_leaf(stored)
    for widening in () if row is None else row.widens:
        if widening.wanted is type(wanted) and widening.fits(stored, wanted):
            return widening
    return None
