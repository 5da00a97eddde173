"""Arrays, maps and structs in rows, in state and in the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from tests.parity.engines import Both

pytestmark = pytest.mark.slow

NESTED = (
    "a array<int>, m map<string,double>, s struct<p:int,q:struct<r:string,t:array<string>>>, "
    "l array<struct<p:int,q:string>>"
)
INPUT = f"k string, v long, {NESTED}"
KEYS = "s struct<p:int,q:string>, n struct<p:int,q:struct<r:string>>"
ROWS = [
    ("x", 0, [1, None], [("one", 1.0), ("none", None)], {"p": 1, "q": {"r": "r", "t": ["t"]}}, []),
    ("x", 1, [], [], {"p": None, "q": None}, [{"p": 1, "q": "q"}, None]),
    ("y", 2, None, None, None, None),
]


class Pair(NamedTuple):
    p: int
    q: str


class Nested(StatefulProcessor):
    """Keep nested values as state and map keys; emit what came in and what came back."""

    OUTPUT = f"k string, emitted string, {NESTED}"

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", NESTED)
        self.items = handle.getListState("items", NESTED)
        self.map = handle.getMapState("map", "s struct<p:int,q:string>", NESTED)

    def states(self) -> list[tuple[Any, ...]]:
        inner = Row(r="r", t=["a", None])
        return [
            ([1, 2], {"a": 1.5, "b": None}, (1, ("r", ["t"])), [(1, "q"), None]),
            ([np.int64(3)], {np.str_("k"): np.float64(0.5)}, Row(p=2, q=inner), [Pair(1, "q")]),
            ((), {}, [3, None], [Row(p=None, q=None)]),
            (None, None, None, None),
        ]

    def emitted(self, given: str) -> str:
        emitted = [given, self.value.get(), *self.items.get()]
        emitted += [self.map.getValue(((1, "q"),)), self.map.getValue((None,))]
        emitted += sorted(map(repr, self.map.iterator()))
        return repr(emitted)

    def keep(self, v: int) -> None:
        states = self.states()
        self.value.update(states[v % len(states)])
        self.items.put(states)
        self.map.updateValue((Pair(1, "q"),), states[0])
        self.map.updateValue((None,), states[(v + 1) % len(states)])

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.v):
            before = self.emitted(repr(row))
            self.keep(row.v)
            a, m, s, n = self.states()[row.v % 4]
            yield Row(k=key[0], emitted=before + self.emitted(""), a=a, m=m, s=self.struct(s), l=n)

    @staticmethod
    def struct(value: Any) -> Any:
        """Name the fields of an output struct, which PySpark takes by name."""
        if value is None or isinstance(value, Row):
            return value
        p, q = value
        return {"p": p, "q": None if q is None else {"r": q[0], "t": q[1]}}

    def close(self) -> None:
        pass


class NestedPandas(Nested):
    """The same, for transformWithStateInPandas."""

    OUTPUT = "k string, emitted string, a array<int>"

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        frame = pd.concat(rows).sort_values("v")
        for record in frame.to_dict("records"):
            before = self.emitted(f"{frame.dtypes.to_dict()} {record}")
            self.keep(int(record["v"]))
            yield pd.DataFrame(
                {"k": key[0], "emitted": before + self.emitted(""), "a": [record["a"]]}
            )


@pytest.mark.slow
@pytest.mark.parametrize("processor", [Nested, NestedPandas])
def test_nested_types(both: Callable[..., Both], processor: type[Nested]) -> None:
    """Nested values arrive, are kept and come back as the same Python values."""
    later = [(k, v + 3, *rest) for k, v, *rest in ROWS]
    program = both(
        INPUT,
        ROWS,
        later,
        processor=processor,
        output=processor.OUTPUT,
        pandas=processor is NestedPandas,
    )
    assert len(program.same()) == 2 * len(ROWS)


class RowsInRows(StatefulProcessor):
    """Yield Rows whose fields are in another order than the schema's, or lack one."""

    PAIR = "struct<p:int,q:string>"
    OUTPUT = f"k string, s {PAIR}, l array<{PAIR}>, m map<string,{PAIR}>, d struct<inner:{PAIR}>"

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.v):
            one = Row(q="one", p=row.v)
            yield Row(
                k=key[0],
                s=one,
                l=[one, None, Row(p=2, q="two"), Row(q="three")],
                m={"four": Row(q="four", p=4), "five": Row(q="five", p=5)},
                d={"inner": one},
            )
            yield Row(d=Row(inner=Row(q="six", p=None)), m=None, k=key[0])

    def close(self) -> None:
        pass


def test_rows_in_a_row_are_taken_by_name(both: Callable[..., Both]) -> None:
    program = both(
        "k string, v long", [("x", 1), ("x", 2)], processor=RowsInRows, output=RowsInRows.OUTPUT
    )
    rows = program.same()
    assert {row.s.q for row in rows if row.s is not None} == {"one"}
    assert len(rows) == 4


class NestedKeys(StatefulProcessor):
    """Count the rows of each key."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.n.update(((self.n.get() or (0,))[0] + sum(1 for _ in rows),))
        yield Row(k=repr(key), n=self.n.get()[0])

    def close(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("column", [pytest.param("s", marks=pytest.mark.soak), "n"])
def test_nested_keys(both: Callable[..., Both], column: str) -> None:
    """Structs as keys, also null ones and with null fields; PySpark fails on arrays as keys."""
    full = ({"p": 1, "q": "q"}, {"p": 1, "q": {"r": "r"}})
    other = ({"p": None, "q": "q"}, {"p": None, "q": {"r": None}})
    epoch = [full, other, (None, None), full]
    program = both(
        KEYS,
        epoch,
        epoch[1:],
        processor=NestedKeys,
        output="k string, n long",
        keys=(column,),
    )
    assert sorted(row.n for row in program.same()) == [1, 1, 2, 2, 2, 3]
