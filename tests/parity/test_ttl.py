"""Time to live of value, list and map state, in processing time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming import StreamingQuery

from tests.parity.engines import ENDS, Both, wait_until
from tests.parity.operations import INPUT, OUTPUT, Operations, PandasOperations, look, script
from tests.query.harness import Feed

pytestmark = pytest.mark.slow

SHORT_MS, LONG_MS, MIDDLE_MS = 1, 3_600_000, 8_000
SLOW = "the machine is too slow to distinguish older entries from newer ones"


class Short(Operations):
    """All kept values are expired in the next epoch."""

    def ttl_ms(self, state: str) -> int | None:
        return SHORT_MS


class Long(Operations):
    """Nothing expires while the test runs; a duration of 0 is not a time to live."""

    def ttl_ms(self, state: str) -> int | None:
        return 0 if state == "map" else LONG_MS


class ShortPandas(Short, PandasOperations):
    """Short, for transformWithStateInPandas."""


FILL = [("value.update", 1, "v"), ("items.put", 1, "p"), ("items.appendValue", 2, "q")]
FILL += [("map.updateValue", 1, "m"), ("map.updateValue", 2, "n")]


def in_order(*scripts: list[Any]) -> list[Any]:
    """Join scripts of one key into one."""
    steps = [step for part in scripts for step in part]
    return [(k, i, *rest) for i, (k, _, *rest) in enumerate(steps)]


@pytest.mark.parametrize(
    "processor", [Short, pytest.param(Long, marks=pytest.mark.soak), ShortPandas]
)
def test_before_and_after(both: Callable[..., Both], processor: type[Operations]) -> None:
    """State is complete in the epoch that wrote it; later it is there or expired as a whole."""
    files = [
        in_order(script("a", *FILL), look("a")) + script("b", *FILL),
        # expired values can be written again, removed and cleared
        in_order(look("a"), script("a", *FILL[1:3], ("map.removeKey", 1)), look("a")),
        look("a") + in_order(script("b", "value.clear", "items.clear", "map.clear"), look("b")),
    ]
    pandas = issubclass(processor, PandasOperations)
    rows = both(
        INPUT,
        *files,
        processor=processor,
        output=OUTPUT,
        time_mode="ProcessingTime",
        pandas=pandas,
        conf=ENDS,
    ).same()
    gone = {row.result for row in rows if row.k == "b" and row.op.endswith(".exists")}
    assert gone == {"false"}
    kept = [row.result for row in rows if row.k == "a" and row.op == "value.exists"]
    expected = ["true", "false", "false", "false"]
    assert sorted(kept) == sorted(expected if "Short" in processor.__name__ else ["true"] * 4)


class Middle(Operations):
    """Values live as long as the test lets them."""

    def ttl_ms(self, state: str) -> int | None:
        return MIDDLE_MS


@pytest.mark.soak
def test_each_element_expires_on_its_own(both: Callable[..., Both]) -> None:
    """In a list or map, the older entries expire first; a write renews, a read does not."""
    first = [("value.update", 1, "v"), ("items.put", 1, "p"), ("map.updateValue", 1, "m")]
    first += [("map.updateValue", 2, "n")]
    later = [("items.appendValue", 2, "q"), ("map.updateValue", 2, "renewed")]
    later += [("map.updateValue", 0, "new"), ("map.getValue", 1), "value.get"]

    def steps(feed: Feed, query: StreamingQuery, count: Callable[[], int]) -> None:
        def epoch(rows: list[Any], not_before: float) -> tuple[float, float]:
            wait_until(query, lambda: time.time() >= not_before, "the clock has passed")
            at_least, before = count() + len(rows), time.time()
            feed.add(rows)
            wait_until(query, lambda: count() >= at_least, "the rows have come through")
            return before, time.time()

        ttl = MIDDLE_MS / 1000
        epoch(look("warm"), 0)
        began, written = epoch(in_order(script("a", *first), look("a")), 0)
        renewed, read = epoch(in_order(script("a", *later), look("a")), began + ttl / 2)
        _, read_again = epoch(look("a"), written + ttl)
        assert read < began + ttl, SLOW
        assert read_again < renewed + ttl, SLOW

    program = both(
        INPUT, processor=Middle, output=OUTPUT, time_mode="ProcessingTime", conf=ENDS, steps=steps
    )
    rows = program.same()
    items = [row.result for row in rows if row.op == "items.get" and row.k == "a"]
    assert '[[2, "q"]]' in items
    entries = [row.result for row in rows if row.op == "map.iterator" and row.k == "a"]
    assert '[[[0], ["new", 3]], [[2], ["renewed", 7]]]' in entries
    assert "null" in [row.result for row in rows if row.op == "value.get" and row.k == "a"]
