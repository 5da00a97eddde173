"""Every kind of state in real queries on both backends: random histories against a plain model.

A row is one operation on one state of its key; the result is the output. The model does the
same with a dict per key. Queries are stopped and started again in the middle of a history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, BACKENDS, Feed, Job

pytestmark = pytest.mark.slow

INPUT = pa.schema([("k", pa.string()), ("i", pa.int64()), ("op", pa.string()), ("a", pa.int64())])
OUTPUT = "k string, i long, result string"
Model = dict[str, Any]


class Average(ckpt.AggregateFunction):
    """The mean of what was added."""

    def create(self) -> tuple[Any, ...]:
        return (0, 0)

    def add(self, value: Any, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        return (accumulator[0] + value, accumulator[1] + 1)

    def getResult(self, accumulator: tuple[Any, ...]) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return (a[0] + b[0], a[1] + b[1])


class States(StatefulProcessor):
    """One state of each keyed kind, and an operation per row."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "a long")
        self.items = handle.getListState("items", "a long")
        self.map = handle.getMapState("map", "a long", "b long")
        self.most = handle.getReducingState("most", "a long", max)
        self.mean = handle.getAggregatingState("mean", "total long, n long", Average())

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.i):
            result = IN_STATE[row.op](self, row.a)
            yield Row(k=key[0], i=row.i, result=json.dumps(result))

    def close(self) -> None:
        pass


def plain(value: Any) -> Any:
    return None if value is None else list(value)


IN_STATE: dict[str, Callable[[Any, int], Any]] = {
    "value.get": lambda p, a: plain(p.value.get()),
    "value.exists": lambda p, a: p.value.exists(),
    "value.update": lambda p, a: p.value.update((a,)),
    "value.clear": lambda p, a: p.value.clear(),
    "items.get": lambda p, a: [item[0] for item in p.items.get()],
    "items.exists": lambda p, a: p.items.exists(),
    "items.append": lambda p, a: p.items.appendValue((a,)),
    "items.extend": lambda p, a: p.items.appendList([(a,), (a + 1,)]),
    "items.put": lambda p, a: p.items.put([(a,), (0,)]),
    "items.clear": lambda p, a: p.items.clear(),
    "map.get": lambda p, a: plain(p.map.getValue((a,))),
    "map.contains": lambda p, a: p.map.containsKey((a,)),
    "map.update": lambda p, a: p.map.updateValue((a,), (10 * a,)),
    "map.remove": lambda p, a: p.map.removeKey((a,)),
    "map.all": lambda p, a: sorted([k[0], v[0]] for k, v in p.map.iterator()),
    "map.clear": lambda p, a: p.map.clear(),
    "most.get": lambda p, a: plain(p.most.get()),
    "most.add": lambda p, a: p.most.add((a,)),
    "most.clear": lambda p, a: p.most.clear(),
    "mean.get": lambda p, a: p.mean.get(),
    "mean.add": lambda p, a: p.mean.add(a),
    "mean.merge": lambda p, a: p.mean.merge((a, 1)),
    "mean.clear": lambda p, a: p.mean.clear(),
}


def in_model(model: Model, op: str, a: int) -> Any:
    """Do with plain values what an operation does with a state."""
    state, _, verb = op.partition(".")
    if verb == "clear":
        model.pop(state, None)
        return None
    if state == "value":
        if verb == "update":
            model["value"] = [a]
        return {"get": model.get("value"), "exists": "value" in model}.get(verb)
    if state == "items":
        if verb == "put":
            model["items"] = [a, 0]
        elif verb in ("append", "extend"):
            model.setdefault("items", []).extend([a] if verb == "append" else [a, a + 1])
        items = list(model.get("items", []))
        return {"get": items, "exists": bool(items)}.get(verb)
    if state == "map":
        entries = model.setdefault("map", {})
        if verb == "update":
            entries[a] = 10 * a
        elif verb == "remove":
            entries.pop(a, None)
        found = [entries[a]] if a in entries else None
        both = sorted([k, v] for k, v in entries.items())
        return {"get": found, "contains": a in entries, "all": both}.get(verb)
    added = model.setdefault(state, [])
    if verb in ("add", "merge"):
        added.append(a)
        return None
    if not added:
        return None
    return [max(added)] if state == "most" else sum(added) / len(added)


STEP = st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(sorted(IN_STATE)), st.integers(0, 3))
HISTORIES = st.lists(st.lists(STEP, min_size=15, max_size=40), min_size=4, max_size=6)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.soak_variants
@settings(
    max_examples=3,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(history=HISTORIES)
def test_random_histories(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, backend: str, history: Any
) -> None:
    """The states of a query return what a plain model returns."""
    base: Path = tmp_path_factory.mktemp("contract")
    feed = Feed(base / "in", INPUT, "k string, i long, op string, a long")
    job = Job(spark, base, feed, processor=States, output=OUTPUT).using({BACKEND: backend})
    models: dict[str, Model] = {}
    expected = []
    for number, epoch in enumerate(history):
        rows = [(k, i + 100 * number, op, a) for i, (k, op, a) in enumerate(epoch)]
        for k, i, op, a in rows:
            emitted = in_model(models.setdefault(k, {}), op, a)
            expected.append((k, i, json.dumps(emitted)))
        feed.add(rows)
        if number in (1, len(history) - 1):  # two runs: the second continues from the first
            job.run()
    result = [tuple(row) for row in job.result()]
    assert sorted(result) == sorted(expected)
