"""An operator as a capture describes it, and the operator from its description."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import types as T

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.operator.capture.capture_file import CapturedColumns, CapturedProgram
from pyspark_ckpt.operator.modes.calls import Calls
from pyspark_ckpt.operator.modes.mode import MODES, PANDAS, mode_of_calls
from pyspark_ckpt.operator.modes.views import FrameLimits
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.table.catalog import struct_type

_ZONE = re.compile(r"[A-Za-z0-9_+:-]{1,40}(?:/[A-Za-z0-9_+:-]{1,40}){0,3}")


def described_columns(columns: InputColumns) -> CapturedColumns:
    """Return the description of the columns of a stream."""
    return CapturedColumns(
        schema=columns.schema.json(),
        keys=columns.sent_key_names,
        time_zone=columns.time_zone,
        derived_keys=columns.derived_keys,
    )


def described(
    calls: Calls,
    columns: InputColumns,
    broadcast: InputColumns | None,
    schemas: Mapping[str, T.StructType],
    identity: tuple[str, str],
    *,
    quarantines: bool,
) -> CapturedProgram:
    """Return the description of an operator.

    `identity` is the name of the processor's class and the digest of its code.
    """
    mode = mode_of_calls(calls)
    limits: FrameLimits | None = getattr(calls.view, "limits", None) if mode is PANDAS else None
    output = calls.output_rows
    return CapturedProgram(
        processor=identity[0],
        code_sha256=identity[1],
        mode=mode.name,
        columns=described_columns(columns),
        broadcast=None if broadcast is None else described_columns(broadcast),
        output_schema=output.schema.json(),
        coerces_integers=output.coerces_integers,
        schemas={text: schema.json() for text, schema in schemas.items()},
        frame_rows=None if limits is None else limits.rows,
        frame_bytes=None if limits is None else limits.size_bytes,
        quarantines=quarantines,
    )


def columns_of(captured: CapturedColumns) -> InputColumns:
    """Return the columns of a stream from their description."""
    schema = struct_type(captured.schema)
    named = {*captured.keys, *captured.derived_keys}
    if not named <= set(schema.names) or not _ZONE.fullmatch(captured.time_zone):
        raise CorruptFileError(
            f"a capture has the key columns {captured.keys} and the time zone "
            f"{captured.time_zone!r}, which do not fit its schema {schema.simpleString()}: capture "
            "the epochs again"
        )
    return InputColumns(schema, captured.keys, captured.time_zone, captured.derived_keys)


def calls_of(captured: CapturedProgram, columns: InputColumns, uid: str) -> Calls:
    """Return how the processor gets its rows, from the description of an operator."""
    mode = MODES.get(captured.mode)
    if mode is None:
        raise CorruptFileError(
            f"a capture of operator {uid!r} hands rows over as {captured.mode!r}, known are "
            f"{', '.join(MODES)}: upgrade pyspark_ckpt, or capture the epochs again"
        )
    output = OutputRows(
        struct_type(captured.output_schema),
        uid,
        coerces_integers=captured.coerces_integers,
        time_zone=columns.time_zone,
    )
    limits = None
    if captured.frame_rows is not None:
        limits = FrameLimits(captured.frame_rows, captured.frame_bytes or FrameLimits().size_bytes)
    return mode.of_operator(columns, output, limits)
