"""The output of two programs whose types differ is compared without losing digits."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_ckpt.shadowing import output
from pyspark_ckpt.shadowing.output import ComparedOutput, KeptOutput, Output
from pyspark_ckpt.shadowing.report import Rules
from pyspark_ckpt.spark.own_session import own_session
from pyspark_ckpt.testing.schema_text import parse_schema

LARGE = 2**53
LONG_DIGITS = "12345678901234567.12"


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """A session of the test's own: what keeps and compares output changes its conf."""
    return own_session(spark, {})


@pytest.fixture
def differing(spark: SparkSession, tmp_path: Path) -> Any:
    def between(types: tuple[str, str], old: list[Any], new: list[Any], tolerance: float) -> Any:
        outputs, notes = [], []
        for name, data_type, values in zip(("old", "new"), types, (old, new), strict=True):
            schema = parse_schema(f"k string, x {data_type}")
            kept = KeptOutput(str(tmp_path / name))
            kept(spark.createDataFrame(list(zip("abc", values, strict=False)), schema), 1)
            outputs.append(Output(kept, schema))
        rules = Rules(tolerance=tolerance)
        compared = ComparedOutput(spark, *outputs, ["k"], rules, notes.append, notes.append)
        pairs, more = compared.differing(1)
        assert more == 0
        return {key["k"]: (old["x"], new["x"]) for key, old, new in pairs}, notes

    return between


@pytest.mark.slow
@pytest.mark.parametrize(
    ("types", "common", "old", "new", "expected"),
    [
        (
            ("decimal(20, 2)", "decimal(38, 2)"),
            "decimal(38,2)",
            [Decimal(LONG_DIGITS), Decimal(1)],
            [Decimal(LONG_DIGITS) + Decimal("0.01"), Decimal(1)],
            ["a"],
        ),
        (
            ("bigint", "decimal(20, 1)"),
            "decimal(20,1)",
            [LARGE, LARGE, -1],
            [Decimal(LARGE + 1), Decimal(LARGE), Decimal("-1.0")],
            ["a"],
        ),
        (
            ("decimal(38, 0)", "decimal(38, 2)"),  # no decimal holds all values of both
            "double",
            [Decimal(9), Decimal(1)],
            [Decimal("9.25"), Decimal("1.00")],
            ["a"],
        ),
        (("float", "decimal(10, 2)"), "double", [0.5, 1.5], [Decimal("0.5"), Decimal(1)], ["b"]),
        (("int", "bigint"), "bigint", [1, 2], [1, LARGE], ["b"]),
    ],
)
def test_numbers_of_two_types(
    differing: Any,
    types: tuple[str, str],
    common: str,
    old: list[Any],
    new: list[Any],
    expected: list[str],
) -> None:
    found, (note,) = differing(types, old, new, 0.0)
    assert list(found) == expected
    assert note.endswith(f"compared as {common}")


@pytest.mark.slow
def test_decimals_that_are_one_float(differing: Any) -> None:
    old, new = Decimal("12345678901234.123456"), Decimal("12345678901234.123457")
    types = ("decimal(30, 6)", "decimal(30, 6)")
    assert differing(types, [old], [new], 0.0) == ({"a": (old, new)}, [])
    assert differing(types, [old], [new], 1e-12) == ({}, [])


@pytest.mark.slow
def test_one_row_that_differs_often_fills_no_memory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MOST_ROWS", 5)
    schema = parse_schema("k string, x bigint")
    outputs = []
    for name, times in (("old", 100), ("new", 1)):
        kept = KeptOutput(str(tmp_path / name))
        kept(spark.createDataFrame([("a", 1)] * times, schema), 1)
        outputs.append(Output(kept, schema))
    compared = ComparedOutput(spark, *outputs, ["k"], Rules(), print, print)
    pairs, more = compared.differing(1)
    assert (len(list(pairs)), more) == (5, 94)


PARQUET = "spark.sql.parquet."
LOSSY = {
    f"{PARQUET}outputTimestampType": "TIMESTAMP_MILLIS",
    f"{PARQUET}datetimeRebaseModeInWrite": "EXCEPTION",
    f"{PARQUET}writeLegacyFormat": "true",
    f"{PARQUET}fieldId.write.enabled": "false",
    f"{PARQUET}fieldId.read.enabled": "true",
    f"{PARQUET}fieldId.read.ignoreMissing": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
}
"""What a user may set for files of the user's own."""


@pytest.fixture
def streamed(spark: SparkSession, tmp_path: Path) -> Any:
    """Return outputs that queries of a lossy session have kept, and that session."""
    session = own_session(spark, LOSSY)

    def kept(*columns: str) -> tuple[SparkSession, list[Output]]:
        spark.range(1).write.parquet(str(tmp_path / "in"))
        outputs = []
        for name, column in zip(("old", "new"), columns, strict=True):
            rows = session.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
            df = rows.select(F.lit("a").alias("k"), F.expr(column).alias("x", metadata=ID))
            side = Output(KeptOutput(str(tmp_path / name)), df.schema)
            writer = df.writeStream.foreachBatch(side.kept).trigger(availableNow=True)
            writer.option(
                "checkpointLocation", str(tmp_path / f"{name}-loc")
            ).start().awaitTermination()
            outputs.append(side)
        assert {key: session.conf.get(key) for key in LOSSY} == LOSSY  # the query's own has others
        return session, outputs

    return kept


ID = {"parquet.field.id": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TIMESTAMP '2024-01-01 00:00:00.000001'", "TIMESTAMP '2024-01-01 00:00:00.000999'"),
        ("DATE '1500-02-28'", "DATE '1500-03-01'"),
        ("array(1.25BD, NULL)", "array(1.25BD, 2.25BD)"),
        ("1", "2"),
    ],
)
def test_the_users_conf_does_not_decide_what_is_kept(streamed: Any, old: str, new: str) -> None:
    session, outputs = streamed(old, new)
    compared = ComparedOutput(own_session(session, {}), *outputs, ["k"], Rules(), print, print)
    pairs, more = compared.differing(0)
    ((key, before, after),) = pairs
    assert (key, more) == ({"k": "a"}, 0)
    assert before is not None
    assert None not in before.values()
    assert before != after


def test_output_that_cannot_be_read_is_not_passed_over(streamed: Any) -> None:
    session, outputs = streamed("1", "1")
    for side in outputs:
        for file in Path(side.kept.path(0)).glob("*.parquet"):
            file.write_bytes(b"not Parquet")
            file.with_name(f".{file.name}.crc").unlink()
    compared = ComparedOutput(own_session(session, {}), *outputs, ["k"], Rules(), print, print)
    with pytest.raises(Py4JJavaError, match="is not a Parquet file"):
        compared.differing(0)
