"""The arguments of a keyed stream's methods, checked on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.declared_states import parse_schema
from pyspark_ckpt.operator.descriptor import DEFAULT_UID
from pyspark_ckpt.operator.time import TimeMode

_OUTPUT_MODES = {"append": "append", "update": "update"}
_TIME_MODES = {mode.value.lower(): mode for mode in TimeMode}


@dataclass(frozen=True, slots=True)
class OperatorArguments:
    """What every way of adding an operator is given."""

    processor: StatefulProcessor
    output_schema: T.StructType
    output_mode: str
    time_mode: TimeMode
    uid: str
    migrations: Mapping[str, Migration]
    event_time_column: str
    has_default_uid: bool = False

    @classmethod
    def checked(
        cls,
        processor: StatefulProcessor,
        output_struct_type: T.StructType | str,
        output_mode: str,
        time_mode: str,
        uid: str | None,
        migrations: Mapping[str, Migration] | None,
        event_time_column: str = "",
    ) -> OperatorArguments:
        """Return checked arguments.

        Raises
        ------
        PlanError
            If one is not allowed; names it and what is.
        """
        has_default_uid = uid is None
        uid = DEFAULT_UID if uid is None else uid
        if not isinstance(uid, str) or not uid.strip():
            raise PlanError(f"uid is {uid!r}: give every operator a stable name")
        mode = _OUTPUT_MODES.get(str(output_mode).lower())
        if mode is None:
            raise PlanError(
                f"operator {uid!r}: outputMode is {output_mode!r}, allowed are Append and Update"
            )
        time = _TIME_MODES.get(str(time_mode).lower())
        if time is None:
            raise PlanError(
                f"operator {uid!r}: timeMode is {time_mode!r}, allowed are None, ProcessingTime "
                "and EventTime"
            )
        schema = output_struct_type
        if not isinstance(schema, T.StructType):
            schema = parse_schema(schema)
        for name, migration in (migrations or {}).items():
            if not isinstance(migration, Migration):
                raise PlanError(
                    f"operator {uid!r}: the migration of state {name!r} is "
                    f"{type(migration).__name__}: give a pyspark_ckpt.Migration"
                )
        _check_event_time(schema, event_time_column, uid)
        return cls(
            processor,
            schema,
            mode,
            time,
            uid,
            dict(migrations or {}),
            event_time_column,
            has_default_uid,
        )


def _check_event_time(schema: T.StructType, column: str, uid: str) -> None:
    if column and not (
        column in schema.names and isinstance(schema[column].dataType, T.TimestampType)
    ):
        raise PlanError(
            f"operator {uid!r}: eventTimeColumnName is {column!r}, which is no timestamp column of "
            f"its outputStructType {schema.simpleString()}"
        )
