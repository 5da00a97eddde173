"""Keys encode to fixed bytes: they are stored, and any Python anywhere must find them again."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.types import TIME_OF_DAY
from tests.unit.operator.spark_values import struct

MAP = T.MapType(T.StringType(), T.FloatType())
NESTED = T.ArrayType(struct(T.DoubleType(), T.BinaryType(), T.DecimalType(5, 2)))
KEYS: list[tuple[T.DataType, Any, str]] = [
    (T.ByteType(), -128, "91d080"),
    (T.ShortType(), 2**15 - 1, "91cd7fff"),
    (T.IntegerType(), -(2**31), "91d280000000"),
    (T.LongType(), 2**63 - 1, "91cf7fffffffffffffff"),
    (T.LongType(), None, "91c0"),
    (T.FloatType(), 0.1, "91cb3fb99999a0000000"),
    (T.FloatType(), -0.0, "91cb0000000000000000"),
    (T.DoubleType(), 0.1, "91cb3fb999999999999a"),
    (T.DoubleType(), -0.0, "91cb0000000000000000"),
    (T.DoubleType(), -math.nan, "91cb7ff8000000000000"),
    (T.DoubleType(), -math.inf, "91cbfff0000000000000"),
    (T.DecimalType(38, 18), Decimal(0), "91a530452d3138"),
    (T.DecimalType(5, 2), Decimal("-1.5"), "91a52d312e3530"),
    (T.StringType(), "", "91a0"),
    (T.StringType(), "h\u0000äß\U0001f600", "91aa6800c3a4c39ff09f9880"),
    (T.CharType(3), "ab", "91a26162"),
    (T.VarcharType(3), "ab", "91a26162"),
    (T.BinaryType(), b"\x00\xff", "91c40200ff"),
    (T.BooleanType(), True, "91c3"),
    (T.DateType(), dt.date(1600, 2, 29), "91d2fffdf057"),
    (
        T.TimestampType(),
        dt.datetime(1600, 1, 1, 0, 0, 0, 1, dt.timezone.utc),
        "91d3ffd684a70d8e8001",
    ),
    (T.TimestampNTZType(), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), "91cf0384440ccc735fff"),  # noqa: DTZ001
    *[(kind(), dt.time(12, 34, 56, 789), "91cf000029324c096a08") for kind in TIME_OF_DAY],
    (T.DayTimeIntervalType(), dt.timedelta(-1, 5), "91d3ffffffebe274eb40"),
    (T.YearMonthIntervalType(), -14, "91f2"),
    (T.NullType(), None, "91c0"),
    (
        T.ArrayType(T.FloatType()),
        [-0.0, math.nan, None, 0.1],
        "9194cb0000000000000000cb7ff8000000000000c0cb3fb99999a0000000",
    ),
    (
        struct(T.StringType(), struct(T.DoubleType())),
        ("ä", (-0.0,)),
        "9192a2c3a491cb0000000000000000",
    ),
    (struct(T.StringType(), struct(T.DoubleType())), (None, None), "9192c0c0"),
    (
        NESTED,
        [(math.nan, b"\xff", Decimal(1)), None, (None, None, None)],
        "919393cb7ff8000000000000c401ffa4312e3030c093c0c0c0",
    ),
    (
        MAP,
        {"b": -0.0, "a": None, "c": math.nan, "": 1},
        "9184a0cb3ff0000000000000a161c0a162cb0000000000000000a163cb7ff8000000000000",
    ),
]


def encoded() -> list[str]:
    return [TupleCodec(struct(k), "keys", is_key=True).encode((v,)).hex() for k, v, _ in KEYS]


@pytest.mark.slow
def test_bytes_are_fixed_in_every_process() -> None:
    """Scenario 40: keys of every type."""
    root = Path(__file__).parents[4]
    program = f"import json; from {__name__} import encoded; print(json.dumps(encoded()))"
    environment = {
        **os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": str(root), "TZ": "Asia/Tokyo",
        "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
    }  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True, cwd=root
    )
    assert json.loads(result.stdout) == [golden for _, _, golden in KEYS]
