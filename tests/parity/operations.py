"""A processor that runs the operations in its input rows, and scripts for it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

INPUT = "k string, i long, op string, a long, b string"
OUTPUT = "k string, i long, op string, result string"
Step = tuple[Any, int, str, Any, Any]


def plain(value: Any) -> Any:
    """Make the results of a state comparable: tuples and Rows become lists."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


class Operations(StatefulProcessor):
    """Run one state operation per input row, in the order of `i`, and emit its result."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "a long, b string", self.ttl_ms("value"))
        self.items = handle.getListState("items", "a long, b string", self.ttl_ms("items"))
        self.map = handle.getMapState("map", "a long", "b string, n int", self.ttl_ms("map"))

    def ttl_ms(self, state: str) -> int | None:
        return None

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.i):
            yield Row(k=key[0], i=row.i, op=row.op, result=self.result(row.op, row.a, row.b))

    def result(self, op: str, a: Any, b: Any) -> str:
        a, b = (None if x is None or x != x else x for x in (a, b))  # pandas has NaN for null
        return json.dumps(plain(OPERATIONS[op](self, None if a is None else int(a), b)))

    def first_items(self, n: int) -> list[Any]:
        """Take some of the list while it is changed, and leave the rest."""
        taken = []
        for item in self.items.get():
            if len(taken) >= n:
                break
            taken.append(item)
            self.value.update((len(taken), "taken"))
        return taken

    def types(self) -> list[Any]:
        """Return the types in which the states return their values."""
        found: list[Any] = [isinstance(self.value.get(), tuple | None)]
        found += [isinstance(x, tuple) for x in self.items.get()]
        found += [isinstance(x, tuple) for pair in self.map.iterator() for x in pair]
        for iterator in (self.items.get(), self.map.iterator(), self.map.keys()):
            found.append(iter(iterator) is iterator)
        return found

    def close(self) -> None:
        pass


class PandasOperations(Operations):
    """The same, for transformWithStateInPandas."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for frame in [pd.concat(rows).sort_values("i")]:
            results = map(self.result, frame["op"], frame["a"], frame["b"])
            yield pd.DataFrame(
                {"k": key[0], "i": frame["i"], "op": frame["op"], "result": list(results)}
            )


OPERATIONS: dict[str, Callable[[Operations, Any, Any], Any]] = {
    "value.get": lambda p, a, b: p.value.get(),
    "value.exists": lambda p, a, b: p.value.exists(),
    "value.update": lambda p, a, b: p.value.update((a, b)),
    "value.clear": lambda p, a, b: p.value.clear(),
    "items.get": lambda p, a, b: list(p.items.get()),
    "items.exists": lambda p, a, b: p.items.exists(),
    "items.appendValue": lambda p, a, b: p.items.appendValue((a, b)),
    "items.appendList": lambda p, a, b: p.items.appendList([(a, b), (None, b), (a, None)]),
    "items.put": lambda p, a, b: p.items.put([(a, b), (0, "put")]),
    "items.first": lambda p, a, b: p.first_items(2),
    "items.clear": lambda p, a, b: p.items.clear(),
    "map.getValue": lambda p, a, b: p.map.getValue((a,)),
    "map.containsKey": lambda p, a, b: p.map.containsKey((a,)),
    "map.updateValue": lambda p, a, b: p.map.updateValue((a,), (b, len(b) if b else None)),
    "map.removeKey": lambda p, a, b: p.map.removeKey((a,)),
    "map.iterator": lambda p, a, b: sorted(p.map.iterator(), key=str),
    "map.keys": lambda p, a, b: sorted(p.map.keys(), key=str),
    "map.values": lambda p, a, b: sorted(p.map.values(), key=str),
    "map.exists": lambda p, a, b: p.map.exists(),
    "map.clear": lambda p, a, b: p.map.clear(),
    "all.types": lambda p, a, b: p.types(),
}
CLEARING = [op for op in OPERATIONS if op.endswith(".clear")]
ALL_OF = ["value.get", "value.exists", "items.get", "items.exists", "map.iterator", "map.exists"]


def script(key: Any, *ops: str | tuple[Any, ...]) -> list[Step]:
    """Write rows for one key: an op is a name, or a name with its arguments."""
    steps = []
    for i, op in enumerate(ops):
        name, *args = (op,) if isinstance(op, str) else op
        a, b = [*args, None, None][:2]
        steps.append((key, i, name, a, b))
    return steps


def look(key: Any) -> list[Step]:
    """Read everything that the key has."""
    return script(key, *ALL_OF, *[("map.getValue", a) for a in range(3)], "all.types")


def random_scripts(seed: int, keys: Iterable[Any], length: int) -> list[Step]:
    """Write random operations, the same for the same seed, fewer that clear than others."""
    rng = random.Random(seed)
    names = [op for op in OPERATIONS if op not in CLEARING] * 4 + CLEARING
    texts: Sequence[str | None] = ["", "x", "häß", None]
    steps = []
    for key in keys:
        ops = [(rng.choice(names), rng.choice([0, 1, 2, None]), rng.choice(texts))]
        while len(ops) < length:
            ops.append((rng.choice(names), rng.choice([0, 1, 2, None]), rng.choice(texts)))
        steps += script(key, *ops)
    return steps
