"""Value, list and map state behave as PySpark's, operation by operation."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from tests.parity.engines import Both
from tests.parity.operations import (
    INPUT,
    OPERATIONS,
    OUTPUT,
    Operations,
    PandasOperations,
    look,
    random_scripts,
    script,
)

pytestmark = pytest.mark.slow

KEYS = ["a", "b", "", None]
EDGES = [
    *script("empty", *OPERATIONS, *OPERATIONS),
    *script("none", ("value.update", None, None), "value.exists", "value.get"),
    *script("none map", ("map.updateValue", None, None), ("map.containsKey", None), "map.keys"),
]


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
def test_every_operation(both: Callable[..., Both], pandas: bool) -> None:
    """Every method gives what PySpark's gives, in one epoch and in later ones."""
    files = [random_scripts(epoch, KEYS, 40) for epoch in range(2)]
    files[0] += EDGES
    files.append([step for key in [*KEYS, "empty", "none", "none map"] for step in look(key)])
    processor = PandasOperations if pandas else Operations
    rows = both(INPUT, *files, processor=processor, output=OUTPUT, pandas=pandas).same()
    assert len(rows) == sum(map(len, files))
    assert {row.op for row in rows} == set(OPERATIONS)
    assert len({row.result for row in rows}) > 50


class Types(StatefulProcessor):
    """Keep Python values, then the same as NumPy scalars; emit in each epoch what came back."""

    SCHEMA = (
        "b byte, s short, i int, l long, f float, d double, flag boolean, text string, raw binary, "
        "dec decimal(20,4), day date, ts timestamp, ntz timestamp_ntz"
    )
    OUTPUT = "k string, epoch long, state string"

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", self.SCHEMA)
        self.items = handle.getListState("items", self.SCHEMA)
        self.map = handle.getMapState("map", "l long, text string", self.SCHEMA)

    def values(self, kind: str) -> tuple[Any, ...]:
        time = dt.datetime.fromisoformat("2024-03-31T02:30:00.123456")
        rest = (b"\x00\xff", Decimal("1.5"), dt.date(1969, 12, 31))
        if kind == "numpy":
            numbers = (np.int8(-1), np.int16(2), np.int32(3), np.int64(2**60))
            floats = (np.float32(0.1), np.float64(-0.0), np.bool_(True), np.str_("ß"))
            return (*numbers, *floats, *rest, pd.Timestamp(time), pd.Timestamp(time))
        if kind == "null":
            return (None,) * 13
        return (-1, 2, 3, 2**60, 0.5, float("inf"), False, "ß", *rest, time, time)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.v == 0:
                values = self.values(key[0])
                self.value.update(values)
                self.items.put([values, list(values), Row(*values)])
                self.map.updateValue((values[3], values[7]), values)
            yield Row(k=key[0], epoch=row.v, state=self.state(row.v))

    def state(self, epoch: int) -> str:
        found = [self.value.get(), *self.items.get(), *map(tuple, self.map.values())]
        return repr([*found, *self.map.keys()])

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_types_nulls_and_numpy_scalars(both: Callable[..., Both]) -> None:
    """What was put comes back as the same Python types, in the same epoch and in the next."""
    kinds = ["python", "numpy", "null"]
    epochs = [[(kind, epoch) for kind in kinds] for epoch in range(2)]
    program = both("k string, v long", *epochs, processor=Types, output=Types.OUTPUT)
    rows = program.same()
    for kind in kinds:
        assert len({row.state for row in rows if row.k == kind}) == 1
