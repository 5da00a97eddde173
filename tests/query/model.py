"""Processors of the tests, and what they must emit, computed in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

OUTPUT = "k string, n long, state string"
Event = tuple[str | None, int]


class Reveal(StatefulProcessor):
    """Keep value, list and map state; for each row emit its number and all of the key's state."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, total long")
        self.recent = handle.getListState("recent", "v long")
        self.tally = handle.getMapState("tally", "bucket int", "times long, last long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n, total = self.count.get() or (0, 0)
            self.count.update((n + 1, total + row.v))
            self.keep_recent(row.v)
            self.keep_tally(row.v)
            yield Row(k=key[0], n=n + 1, state=self.reveal())

    def keep_recent(self, v: int) -> None:
        if v % 11 == 0:
            self.recent.clear()
        elif v % 7 == 0:
            self.recent.put([(v,), (v + 1,)])
        elif v % 5 == 0:
            self.recent.appendList([(v,), (-v,)])
        else:
            self.recent.appendValue((v,))

    def keep_tally(self, v: int) -> None:
        bucket = (v % 6,)
        if v % 13 == 0:
            self.tally.clear()
        elif v % 4 == 0 and self.tally.containsKey(bucket):
            self.tally.removeKey(bucket)
        else:
            times, _ = self.tally.getValue(bucket) or (0, 0)
            self.tally.updateValue(bucket, (times + 1, v))

    def reveal(self) -> str:
        count = list(self.count.get()) if self.count.exists() else None
        recent = [item[0] for item in self.recent.get()] if self.recent.exists() else []
        tally = sorted([k[0], *v] for k, v in self.tally.iterator()) if self.tally.exists() else []
        return json.dumps([count, recent, tally])

    def close(self) -> None:
        pass


class Count(StatefulProcessor):
    """Emit (k, n) for each row; the smallest processor whose output shows a gap or a repeat."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0]
        for _ in rows:
            n += 1
            yield Row(k=key[0], n=n)
        self.count.update((n,))

    def close(self) -> None:
        pass


def expected(events: Iterable[Event]) -> list[tuple[str | None, int, str]]:
    """Compute in plain Python what Reveal emits for the events; the oracle of these tests."""
    count: dict[Any, tuple[int, int]] = {}
    recent: dict[Any, list[int]] = defaultdict(list)
    tally: dict[Any, dict[int, tuple[int, int]]] = defaultdict(dict)
    rows = []
    for k, v in events:
        n, total = count.get(k, (0, 0))
        count[k] = (n + 1, total + v)
        items, bucket = recent[k], v % 6
        if v % 11 == 0:
            items.clear()
        elif v % 7 == 0:
            items[:] = [v, v + 1]
        else:
            items.extend([v, -v] if v % 5 == 0 else [v])
        if v % 13 == 0:
            tally[k].clear()
        elif v % 4 == 0 and bucket in tally[k]:
            del tally[k][bucket]
        else:
            tally[k][bucket] = (tally[k].get(bucket, (0, 0))[0] + 1, v)
        state = [list(count[k]), items, sorted([b, *t] for b, t in tally[k].items())]
        rows.append((k, n + 1, json.dumps(state)))
    return in_order(rows)


def states_after(events: list[Event]) -> dict[Any, tuple[Any, Any, Any]]:
    """Return count, recent and tally of each key after some events, as reads of one key do."""
    newest: dict[Any, tuple[int, str]] = {}
    for key, n, state in expected(events):
        newest[key] = max(newest.get(key, (0, "")), (n, state))
    found = {}
    for key, (_, state) in newest.items():
        (n, total), recent, tally = json.loads(state)
        items = [{"position": place, "v": v} for place, v in enumerate(recent)]
        entries = [{"bucket": b, "times": times, "last": last} for b, times, last in tally]
        found[key] = {"n": n, "total": total}, items or None, entries or None
    return found


def in_order(rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Sort rows that may hold nulls; None comes first."""
    return sorted((tuple(r) for r in rows), key=lambda r: [(x is not None, x) for x in r])


def sequences(rows: Iterable[Sequence[Any]]) -> dict[Any, list[int]]:
    """Collect the second field by the first, sorted: 1..n for each key if nothing went wrong."""
    found: dict[Any, list[int]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row[1])
    return {k: sorted(v) for k, v in found.items()}


def counted(events: Iterable[Event]) -> dict[Any, list[int]]:
    """What `sequences` must be for the events."""
    return sequences((k, n) for k, n, _ in expected(events))


def counted_after(events: Sequence[Event], first: int) -> dict[Any, list[int]]:
    """What `sequences` must be for a fork that begins after the first events."""
    before = counted(events[:first])
    after = {k: n[len(before.get(k, [])) :] for k, n in counted(events).items()}
    return {k: n for k, n in after.items() if n}


def expected_after(events: Sequence[Event], first: int) -> list[Any]:
    """What Reveal emits in a fork that begins after the first events."""
    earlier = expected(events[:first])
    return [row for row in expected(events) if row not in earlier]


def events_of(epoch: int, rows: int = 20, keys: int = 5) -> list[Event]:
    """Rows of one input file, the same on every call."""
    return [(f"k{(epoch * 7 + i * i) % keys}", epoch * rows + i) for i in range(rows)]
