"""Compares what the golden query emitted with what it must emit."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tests.golden.program import Sink


def check(sink: Sink, told: Sequence[Mapping[str, Any]], counted: Mapping[str, int]) -> None:
    """Check all rows that the query emitted at the parallelism that the golden data is of.

    Rules and rows of an epoch may come in any order of keys. Timers of a subtask are numbered, so
    their order is compared too. `counted` is how many of each kind came before.
    """
    _compare(_lines(sink), [dict(row) for row in told])
    numbers: dict[str, list[int]] = defaultdict(list)
    for row in sink.rows():
        numbers[row["what"]].append(row["nth"])
    for what, seen in numbers.items():
        first = counted.get(what, 0) + 1
        assert sorted(seen) == [*range(first, first + len(seen))], what


def check_rescaled(
    sink: Sink, told: Sequence[Mapping[str, Any]], counted: Mapping[str, int], dealt: set[int]
) -> None:
    """Check the same at another parallelism; `dealt` is all that lists of subtasks had before."""
    lines = _lines(sink)
    first_dealt: dict[int, list[int]] = {}
    first_fired: dict[int, int] = {}
    for line in lines:
        if line["what"] == "rules":
            first_dealt.setdefault(line["subtask"], line["told"]["dealt"])
            first_fired.setdefault(line["subtask"], line["told"]["fired"])
    assert sorted(v for part in first_dealt.values() for v in part) == sorted(dealt)
    # All streams of raw state went somewhere, and none twice.
    assert sum(first_fired.values()) == counted["timer"]
    for line in lines:
        if line["what"] == "rules":
            line["told"]["dealt"] = None
            line["told"]["fired"] -= first_fired[line["subtask"]]
        elif line["what"] == "timer":
            line["told"]["number"] -= first_fired[line["subtask"]]
    _compare(lines, [dict(row) for row in told])


def _lines(sink: Sink) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in sink.rows()]
    return [{**row, "told": json.loads(row["told"])} for row in rows]


def _compare(found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> None:
    seen, wanted = Counter(map(_text, found)), Counter(map(_text, expected))
    missing, unexpected = sorted((wanted - seen).elements()), sorted((seen - wanted).elements())
    assert not missing, f"missing: {missing}; in their place: {unexpected}"
    assert not unexpected, f"unexpected: {unexpected}"


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps([line[name] for name in ("what", "k", "subtask", "told")], sort_keys=True)


def check_timers(sink: Sink, waiting: Sequence[tuple[int, str]]) -> None:
    """Check that the query emitted these timers only, in the order of time in each subtask."""
    lines = [line for line in _lines(sink) if line["what"] == "timer"]
    assert sorted((line["told"]["at"], line["k"]) for line in lines) == sorted(waiting)
    for subtask in {line["subtask"] for line in lines}:
        fired = [line["told"] for line in lines if line["subtask"] == subtask]
        in_order = sorted(fired, key=lambda told: told["number"])
        assert [told["at"] for told in in_order] == sorted(told["at"] for told in fired)
        assert len({told["number"] for told in fired}) == len(fired)
