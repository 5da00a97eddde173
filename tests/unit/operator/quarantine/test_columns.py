"""The columns of quarantined rows may change once no key is quarantined, and not before."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.quarantined import QuarantinedRows
from pyspark_ckpt.testing import ProcessorHarness
from tests.unit.operator.quarantine.flaky import BAD, Flaky
from tests.unit.operator.quarantine.test_quarantine import rows

LONG, DOUBLE, TEXT = T.LongType(), T.DoubleType(), T.StringType()


def struct(*names: str) -> T.StructType:
    return T.StructType([T.StructField(name, LONG) for name in names])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (struct("debit", "credit"), struct("credit", "debit")),
        (struct("debit", "credit"), struct("debit", "fee", "credit")),
        (T.ArrayType(LONG), T.ArrayType(DOUBLE)),
        (T.ArrayType(T.DateType()), T.ArrayType(TEXT)),
        (T.TimestampNTZType(), TEXT),
        (T.MapType(TEXT, LONG), T.MapType(TEXT, TEXT)),
        (T.MapType(LONG, LONG), T.ArrayType(struct("key", "value"))),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_columns_of_other_types_are_kept_as_other_columns(
    one: T.DataType, other: T.DataType
) -> None:
    """What is kept of their values may look the same."""
    kept = [
        QuarantinedRows(
            InputColumns(T.StructType([T.StructField("k", TEXT), T.StructField("s", kind)]), ["k"])
        ).schema.json()
        for kind in (one, other, one)
    ]
    assert kept[0] == kept[2] != kept[1]


def test_no_schema_of_quarantined_rows_is_left_after_the_last_release() -> None:
    harness = ProcessorHarness(Flaky(), onError="quarantine")
    harness.testMany(rows({"a": [BAD], "b": [1]}))
    assert len(harness.quarantinedKeys()) == 1

    def names(of: ProcessorHarness) -> set[str]:
        states = of._epochs._subtask.handle.states
        return {state.name for state in states if state.sweeps is None}

    assert {"__quarantine", "__quarantine_rows"} <= names(harness)
    mended = ProcessorHarness.restored(
        Flaky(is_mended=True), harness.snapshot(), onError="quarantine"
    )
    mended.release()
    assert not mended.quarantinedKeys()
    assert not {"__quarantine", "__quarantine_rows"} & names(mended)
