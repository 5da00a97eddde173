"""Random programs over states with a time to live, against a model of Flink's rule.

The rule (Flink's ``AbstractTtlDecorator``): a read that finds an expired entry removes it, and may
return it that once; a read renews live entries only. The model says what each call returns, and
shares no code with the library. The programs run in the public harness.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt import AggregateFunction, BatchProcessor, StateTtlConfig
from pyspark_ckpt.operator.state import removal
from pyspark_ckpt.testing import ProcessorHarness
from tests.unit.testing.handed import handed, taken

TTL_MS = 100
KEYS = ["a", "b", "c"]
MAP_KEYS = ["x", "y"]
STEPS_MS = [1, 40, 99, 100, 150]

NEVER, SOMETIMES, AT_ONCE = "never", "sometimes", "at once"
PRESENT = {NEVER: {True}, SOMETIMES: {True, False}, AT_ONCE: {False}}
"""Whether an expired entry that nobody has read may still be there, by when the sweep comes."""

BUDGETS = {NEVER: (0, 0), SOMETIMES: (2, 1), AT_ONCE: (1_000, 2)}
"""Entries that the sweep passes in an epoch, and how many more for each write."""

Call = tuple[Any, ...]


class Total(AggregateFunction):
    def create(self) -> Any:
        return (0,)

    def add(self, value: Any, accumulator: Any) -> Any:
        return (accumulator[0] + value,)

    def getResult(self, accumulator: Any) -> Any:
        return accumulator[0]

    def merge(self, a: Any, b: Any) -> Any:
        return (a[0] + b[0],)


class Calls(StatefulProcessor):
    """Make the calls that a row names, and emit what each returned."""

    def __init__(self, ttl: StateTtlConfig) -> None:
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        ttl = self.ttl
        self.states = {
            "value": handle.getValueState("value", "n long", ttl),
            "list": handle.getListState("list", "n long", ttl),
            "map": handle.getMapState("map", "k string", "n long", ttl),
            "reducing": handle.getReducingState(
                "reducing", "n long", lambda a, b: (a[0] + b[0],), ttl
            ),
            "aggregating": handle.getAggregatingState("aggregating", "n long", Total(), ttl),
        }

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            for kind, method, *arguments in taken(row.calls):
                result = getattr(self.states[kind], method)(*arguments)
                if isinstance(result, Iterator):
                    result = list(result)
                yield Row(result=plain(result))

    def close(self) -> None: ...


def plain(result: Any) -> Any:
    """Return a result without tuples of one field."""
    if isinstance(result, list):
        return [plain(item) for item in result]
    if isinstance(result, tuple):
        return plain(result[0]) if len(result) == 1 else tuple(map(plain, result))
    return result


@dataclass
class Entry:
    number: int
    written_ms: int
    is_known: int = -1
    """The epoch in which a look has shown that the entry is there, though it has expired."""


class Model:
    """What the states of one key hold, and what a call on them may return."""

    def __init__(self, ttl: StateTtlConfig, present: set[bool]) -> None:
        self.renews = ttl.update == "OnReadAndWrite"
        self.returns_expired = ttl.visibility == "ReturnExpiredIfNotCleanedUp"
        self.present = present
        self.now_ms = self.stamp_ms = self.epoch = 0
        self.ones: dict[Any, Entry] = {}  # by the kind, or the kind and the map's key
        self.items: list[Entry] = []

    def check(self, call: Call, result: Any, said: str) -> None:
        """Check what a call returned, and do to the model what it did to the state."""
        kind, method, *arguments = call
        try:
            if kind in {"list", "map"}:
                getattr(self, f"{kind}_{method}")(*arguments, result)
            else:
                getattr(self, method)(kind, *arguments, result)
        except (AssertionError, KeyError, IndexError) as exc:
            raise AssertionError(said) from exc

    def is_live(self, entry: Entry) -> bool:
        return entry.written_ms + TTL_MS > self.now_ms

    def write(self, place: Any, number: int) -> None:
        self.ones[place] = Entry(number, self.stamp_ms)

    def read(self, place: Any, result: Any) -> None:
        """Check one entry that a call returned, or ``None``."""
        entry = self.ones.get(place)
        if entry is None:
            assert result is None
        elif self.is_live(entry):
            assert result == entry.number
            if self.renews:
                entry.written_ms = max(entry.written_ms, self.stamp_ms)
        else:
            if not self.returns_expired:
                assert result is None
            elif entry.is_known == self.epoch:
                assert result == entry.number
            else:
                assert (result is not None) in self.present
                assert result in {None, entry.number}
            del self.ones[place]

    def look(self, places: list[Any], result: bool) -> None:
        """Check what was said about whether one of the places has an entry."""
        entries = [self.ones[place] for place in places if place in self.ones]
        if any(map(self.is_live, entries)):
            assert result
        elif not entries or not self.returns_expired:
            assert not result
        elif any(entry.is_known == self.epoch for entry in entries):
            assert result
        else:
            assert result in self.present
            for place in places:
                if not result:
                    self.ones.pop(place, None)
                elif len(entries) == 1 and place in self.ones:
                    self.ones[place].is_known = self.epoch

    # Value, reducing and aggregating state

    def update(self, kind: str, value: Any, _: None) -> None:
        self.write(kind, value[0])

    def get(self, kind: str, result: Any) -> None:
        self.read(kind, result)

    def exists(self, kind: str, result: bool) -> None:
        self.look([kind], result)

    def clear(self, kind: str, _: None) -> None:
        self.ones.pop(kind, None)

    def add(self, kind: str, value: Any, _: None) -> None:
        """Add to what a read gives; the program has looked whether an expired entry is there."""
        number = value if kind == "aggregating" else value[0]
        before = self.ones.get(kind)
        if before is not None and (self.is_live(before) or self.returns_expired):
            assert self.is_live(before) or before.is_known == self.epoch
            number += before.number
        self.write(kind, number)

    def merge(self, kind: str, accumulator: Any, _: None) -> None:
        self.add(kind, accumulator[0], None)

    # List state

    def list_appendValue(self, value: Any, _: None) -> None:
        self.items.append(Entry(value[0], self.stamp_ms))

    def list_put(self, values: list[Any], _: None) -> None:
        self.items = [Entry(number, self.stamp_ms) for (number,) in values]

    def list_clear(self, _: None) -> None:
        self.items = []

    def list_exists(self, result: bool) -> None:
        if any(map(self.is_live, self.items)):
            assert result
        elif not self.items or not self.returns_expired:
            assert not result
        else:
            assert result in self.present
            self.items = self.items if result else []

    def list_get(self, result: list[int]) -> None:
        left = list(result)
        for entry in self.items:
            if self.is_live(entry):
                assert left.pop(0) == entry.number
                if self.renews:
                    entry.written_ms = max(entry.written_ms, self.stamp_ms)
            elif self.returns_expired:
                is_there = left[:1] == [entry.number]
                assert is_there in self.present
                del left[:is_there]
        assert left == []
        self.items = list(filter(self.is_live, self.items))

    # Map state

    def map_updateValue(self, key: Any, value: Any, _: None) -> None:
        self.write(("map", key[0]), value[0])

    def map_getValue(self, key: Any, result: Any) -> None:
        self.read(("map", key[0]), result)

    def map_containsKey(self, key: Any, result: bool) -> None:
        self.look([("map", key[0])], result)

    def map_exists(self, result: bool) -> None:
        self.look([("map", key) for key in MAP_KEYS], result)

    def map_removeKey(self, key: Any, _: None) -> None:
        self.ones.pop(("map", key[0]), None)

    def map_clear(self, _: None) -> None:
        for key in MAP_KEYS:
            self.ones.pop(("map", key), None)

    def map_iterator(self, result: list[tuple[str, int]]) -> None:
        assert [key for key, _ in result] == sorted(key for key, _ in result)
        for key in MAP_KEYS:
            self.read(("map", key), dict(result).get(key))

    def map_keys(self, result: list[str]) -> None:
        numbers = {key: self.ones.get(("map", key)) for key in MAP_KEYS}
        assert set(result) <= {key for key, entry in numbers.items() if entry}
        self.map_iterator([(key, numbers[key].number) for key in result])  # type: ignore[union-attr]

    def map_values(self, result: list[int]) -> None:
        keys = {entry.number: place for place, entry in self.ones.items() if len(place) == 2}
        self.map_iterator([(keys[number][1], number) for number in result])


def random_calls(choose: random.Random, number: Iterator[int]) -> list[Call]:
    """Return calls on the states of one key; each written number is another."""
    key = (choose.choice(MAP_KEYS),)
    n = next(number)
    of_one = [("value", "update", (n,)), ("value", "get"), ("value", "exists"), ("value", "clear")]
    of_list: list[Call] = [("list", "appendValue", (n,)), ("list", "get"), ("list", "exists")]
    of_list += [("list", "put", [(n,), (next(number),)]), ("list", "clear")]
    of_map: list[Call] = [("map", "updateValue", key, (n,)), ("map", "getValue", key)]
    of_map += [("map", "containsKey", key), ("map", "iterator"), ("map", "keys")]
    of_map += [("map", "values"), ("map", "exists"), ("map", "removeKey", key), ("map", "clear")]
    of_sum: list[Call] = [("reducing", "add", (n,)), ("reducing", "get"), ("reducing", "exists")]
    of_total: list[Call] = [("aggregating", "add", n), ("aggregating", "get")]
    of_total += [("aggregating", "merge", (n,)), ("aggregating", "exists")]
    kinds = [of_one, of_list, of_map, of_sum, of_total]
    call = choose.choice(choose.choice(kinds))
    if call[1] in {"add", "merge"}:  # whether an expired entry is there decides the sum
        return [(call[0], "exists"), call]
    return [call]


CONFIGS = list(
    product(
        ["processing", "event"],
        ["OnCreateAndWrite", "OnReadAndWrite"],
        ["NeverReturnExpired", "ReturnExpiredIfNotCleanedUp"],
    )
)
WAYS = [("heap", NEVER), ("rocksdb", SOMETIMES), ("heap", AT_ONCE)]


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def set_budget(when: str) -> None:
        least, per_write = BUDGETS[when]
        monkeypatch.setattr(removal, "LEAST_ENTRIES", least)
        monkeypatch.setattr(removal, "ENTRIES_PER_WRITE", per_write)

    return set_budget


def follow(ttl: StateTtlConfig, backend: str, when: str, seed: int, epochs: int) -> None:
    """Run a random program, and check each result with the model."""
    choose, numbers = random.Random(seed), iter(range(1, 1_000_000))
    is_event = ttl.time == "event"
    harness = ProcessorHarness(
        Calls(ttl),
        timeMode="None",
        eventTimeExtractor=(lambda row: row.at) if is_event else None,
        backend=backend,
    )
    models = {key: Model(ttl, PRESENT[when]) for key in KEYS}
    now_ms = 0
    for epoch in range(epochs):
        now_ms += 1_000 if not epoch else choose.choice(STEPS_MS)
        (harness.setWatermark if is_event else harness.setProcessingTime)(now_ms)
        rows, made = {}, {}
        for key in choose.sample(KEYS, 2):
            ahead_ms = choose.choice([-50, 0, 60]) if is_event else 0
            calls = [call for _ in range(8) for call in random_calls(choose, numbers)]
            rows[key], made[key] = [Row(at=now_ms + ahead_ms, calls=handed(calls))], calls
            models[key].stamp_ms = max(now_ms, now_ms + ahead_ms)
        # One key at a time: the harness orders the keys of an epoch by their stored form.
        for key, calls in made.items():
            results = [row.result for row in harness.test(key, rows[key])]
            model = models[key]
            model.now_ms, model.epoch = now_ms, model.epoch + 1
            assert len(results) == len(calls)
            where = f"seed {seed}, epoch {epoch}, key {key!r}"
            for place, (call, result) in enumerate(zip(calls, results, strict=True)):
                said = f"{where}: {call} returned {result!r} after {calls[:place]}"
                model.check(call, result, f"{said}; {model.ones} {model.items} at {now_ms} ms")


@pytest.mark.parametrize(("backend", "when"), WAYS)
@pytest.mark.parametrize(("time", "update", "visibility"), CONFIGS)
def test_every_kind_of_state_follows_the_rule(
    sweeps: Callable[[str], None], time: str, update: str, visibility: str, backend: str, when: str
) -> None:
    sweeps(when)
    ttl = StateTtlConfig(TTL_MS, time, update, visibility)
    follow(ttl, backend, when, seed=7, epochs=12)


@pytest.mark.soak
@pytest.mark.parametrize(("backend", "when"), list(product(["heap", "rocksdb"], PRESENT)))
@pytest.mark.parametrize(("time", "update", "visibility"), CONFIGS)
def test_the_rule_for_long(
    sweeps: Callable[[str], None], time: str, update: str, visibility: str, backend: str, when: str
) -> None:
    sweeps(when)
    ttl = StateTtlConfig(TTL_MS, time, update, visibility)
    first = random.SystemRandom().randrange(10**6)
    for seed in range(first, first + 20):
        follow(ttl, backend, when, seed, epochs=60)


class Columns(BatchProcessor):
    """Write where a row has a number, and emit what ``getMany`` returns for all keys."""

    def __init__(self, ttl: StateTtlConfig) -> None:
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n long", self.ttl)

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        given = rows["n"].reindex(keys.index)
        if given.notna().any():
            self.value.updateMany(keys, given.to_frame("n"))
        yield keys.assign(n=self.value.getMany(keys)["n"], again=self.value.getMany(keys)["n"])

    def close(self) -> None: ...


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(("update", "visibility"), [config[1:] for config in CONFIGS[:4]])
def test_columns_of_many_keys_follow_the_rule(
    sweeps: Callable[[str], None], backend: str, update: str, visibility: str
) -> None:
    sweeps(NEVER)
    ttl = StateTtlConfig(TTL_MS, update=update, visibility=visibility)
    harness = ProcessorHarness(Columns(ttl), backend=backend)

    def at(time_ms: int, users: list[str], number: int | None = None) -> list[list[Any]]:
        harness.setProcessingTime(time_ms)
        frame = pd.DataFrame({"user": users, "n": pd.array([number] * len(users), "Int64")})
        found = harness.testInBatches(frame, "user").sort_values("user")
        return [list(map(none_for_null, found[column])) for column in ("n", "again")]

    assert at(1_000, ["a", "b", "c"], 7) == [[7, 7, 7]] * 2
    assert at(1_050, ["a"]) == [[7]] * 2
    renewed = update == "OnReadAndWrite"
    returned = visibility == "ReturnExpiredIfNotCleanedUp"
    first = [7 if renewed or returned else None, 7 if returned else None]
    then = [7 if renewed else None, None]
    assert at(1_100, ["a", "b"]) == [first, then]
    assert at(1_199, ["a", "b"]) == [then] * 2
    assert at(1_200, ["c"]) == [[7 if returned else None], [None]]


def none_for_null(number: Any) -> int | None:
    return None if pd.isna(number) else int(number)
