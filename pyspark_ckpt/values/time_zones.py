"""The session's time zone: from the names that Spark takes to those that Python takes.

Spark takes what Java takes: regions, offsets in several forms, and Java's short names. Python,
pandas and Arrow take regions and offsets such as ``+08:00``.
"""

from __future__ import annotations

import datetime
import re
from inspect import signature
from typing import Any

import pyarrow as pa
from pyarrow.lib import string_to_tzinfo
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_ckpt.errors import PlanError

SESSION_ZONE = "spark.sql.session.timeZone"

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)
"""PySpark 4.0 has no such argument: its timestamps are in UTC by default."""

_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{1,2})|(\d{2}))?(?::?(\d{2}))?"
)  # fmt: skip
"""An offset: sign, hours, minutes after a colon or not, seconds."""

_SHORT_NAMES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris", "EST": "-05:00", "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia", "MST": "-07:00", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "UT": "UTC",
    "VST": "Asia/Ho_Chi_Minh", "Z": "UTC",
}  # fmt: skip
"""Java's short names, which Spark takes (``java.time.ZoneId.SHORT_IDS``), and names of UTC."""


def python_zone(name: str) -> str:
    """Return Python's name of a zone that Spark takes; the name itself if Python has none."""
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        return _SHORT_NAMES.get(name, name)
    sign, hours, after_colon, minutes, seconds = offset.groups()
    if int(seconds or 0):
        return name
    return f"{sign}{int(hours):02}:{int(after_colon or minutes or 0):02}"


def zone_of(name: str) -> datetime.tzinfo:
    """Return a zone by its name in Spark."""
    try:
        zone: datetime.tzinfo = string_to_tzinfo(python_zone(name))
    except Exception as exc:  # of pytz or zoneinfo, whichever Arrow finds
        raise PlanError(
            f"{SESSION_ZONE} is {name!r}, and Python has no such time zone ({type(exc).__name__}: "
            f"{exc}): set it to a region such as Asia/Shanghai, or an offset such as +08:00"
        ) from exc
    return zone


def in_python_zones(kind: pa.DataType) -> pa.DataType:
    """Return an Arrow type, as Spark sends it, with Python's names of the zones in it."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, python_zone(kind.tz))
    if pa.types.is_map(kind):
        return pa.map_(in_python_zones(kind.key_type), in_python_zones(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(in_python_zones(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(in_python_zones(field.type)) for field in kind])
    return kind


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return the Arrow schema of rows that a task gives to Spark, whose timestamps are in UTC.

    Later versions of PySpark take no schema with timestamps without a zone to write them in.
    """
    return to_arrow_schema(schema, **_IN_UTC)
