"""State of Spark's operator as rows of typed tables.

An entry with a time to live has the time at which it expires, as in Spark. The entry's time of
writing, which this library stores, follows from it by the duration that the processor declares.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.editing.table_columns import TableColumns
from pyspark_ckpt.importing.spark_operator import SparkStatefulOperator, StateVariable, struct_of
from pyspark_ckpt.operator.state.kinds import StateKind

VALUE_COLUMNS = {
    StateKind.VALUE: "value",
    StateKind.LIST: "list_element",
    StateKind.MAP: "user_map_value",
}
"""Where Spark's data source has the values."""

_MAP_KEY = "user_map_key"
_EXPIRES_AT = "ttlExpirationMs"
_FIRES_AT = "expiration_timestamp_ms"


def is_stamped(values: T.StructType, variable: StateVariable) -> bool:
    """Return whether values carry the time at which they expire."""
    return variable.has_ttl and values.names == ["value", _EXPIRES_AT]


def state_rows(
    operator: SparkStatefulOperator, variable: StateVariable, columns: TableColumns
) -> DataFrame:
    """Return a state variable as rows of its typed table; list elements are in their order.

    Times are in milliseconds, which may be more than a timestamp holds.
    """
    rows = operator.variable(variable)
    name = VALUE_COLUMNS[variable.kind]
    value, values = F.col(name), struct_of(rows.schema[name])
    selected = fields_of(F.col("key"), struct_of(rows.schema["key"]), columns.keys)
    if columns.map_keys:
        map_key = struct_of(rows.schema[_MAP_KEY])
        selected += fields_of(F.col(_MAP_KEY), map_key, columns.map_keys)
    if is_stamped(values, variable):
        assert columns.expires_at is not None  # the declared states were checked
        selected += fields_of(value["value"], struct_of(values["value"]), columns.values)
        selected.append(value[_EXPIRES_AT].alias(columns.expires_at))
    else:
        selected += fields_of(value, values, columns.values)
    return rows.select(*selected)


def timer_rows(operator: SparkStatefulOperator, columns: TableColumns) -> DataFrame:
    """Return the timers of Spark's operator as rows of their table, times in milliseconds."""
    assert columns.fires_at is not None
    rows = operator.timers()
    keys = fields_of(F.col("key"), struct_of(rows.schema["key"]), columns.keys)
    return rows.select(*keys, F.col(_FIRES_AT).alias(columns.fires_at))


def fields_of(
    column: Column, schema: T.StructType, wanted: tuple[T.StructField, ...]
) -> list[Column]:
    """Return the fields of a struct column under the names that they have in a table."""
    pairs = zip(schema.fields, wanted, strict=True)
    return [column.getField(field.name).alias(named.name) for field, named in pairs]
