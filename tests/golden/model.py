"""What the golden query must emit, computed in plain Python from its input alone.

Shares nothing with the library: it knows neither formats nor processors. It runs once, when golden
data is made; tests read what it found from ``expected.json``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

ORIGIN_MS = 1_704_067_200_000  # 2024-01-01, UTC
MAX_PARALLELISM = 128
KEYS = [f"k{i:03}" for i in range(11)]
GOLDEN_EPOCHS, LATER_EPOCHS = range(4), range(4, 6)
RULES: list[list[tuple[str, int | None]]] = [
    [("a", 1)],
    [("b", 2), ("a", 3)],
    [("a", None), ("d", 7)],
    [("c", 4)],
    [("b", 5)],
    [("c", None)],
]
SECONDS = [0, 10, 20, 30, 40, 90]
"""Event time of all rows of an epoch."""

_ROW_KEYS = [KEYS, KEYS[:4], KEYS[3:9], KEYS[::2], KEYS, KEYS]


def rows_of(epoch: int) -> list[tuple[str, int, int]]:
    """Return key, value and event time in milliseconds of an epoch's rows, one per key."""
    at_ms = ORIGIN_MS + 1000 * SECONDS[epoch]
    return [(k, 100 * epoch + 7 * i, at_ms) for i, k in enumerate(_ROW_KEYS[epoch])]


def subtask_of(key: str, parallelism: int) -> int:
    """Return the subtask of a key of four letters by Spark's hash: Murmur3, seed 42."""
    mask = 0xFFFFFFFF

    def rotated(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (32 - bits))) & mask

    block = int.from_bytes(key.encode("ascii"), "little")
    assert len(key) == 4
    block = rotated(block * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    state = (rotated(42 ^ block, 13) * 5 + 0xE6546B64) & mask
    state ^= len(key)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> shift)) * factor & mask
    state ^= state >> 16
    signed = state - (1 << 32) if state >> 31 else state
    return signed % MAX_PARALLELISM * parallelism // MAX_PARALLELISM


class _Key:
    def __init__(self) -> None:
        self.values: list[int] = []
        self.last_ms = 0
        self.tally: dict[tuple[int, bool], tuple[int, str]] = {}
        self.timers: set[int] = set()
        self.aging: list[tuple[int, int]] = []

    def told(self, watermark_ms: int) -> dict[str, Any]:
        alive = [v for v, written_ms in self.aging if written_ms + 15_000 > watermark_ms]
        tags = [None if v % 3 else f"t{v}" for v in self.values][-3:]
        total = [len(self.values), f"{sum(self.values)}.00", self.last_ms, tags]
        return {
            "total": total if self.values else None,
            "items": [[v / 2, str(v) if v % 4 else None] for v in self.values],
            "tally": sorted([*bucket, *entry] for bucket, entry in self.tally.items()),
            "lasting": self.values[:],
            "short": alive,
            "aging": [[v, 2 * v] for v in alive],
        }

    def add(self, v: int, ts_ms: int, number: int) -> None:
        self.values.append(v)
        self.last_ms = ts_ms
        bucket = (v % 4, v % 2 == 1)
        times = self.tally.get(bucket, (0, ""))[0]
        if times == 2:
            del self.tally[bucket]
        else:
            self.tally[bucket] = (times + 1, f"of {v}")
        self.aging.append((v, ts_ms))
        self.timers |= {ts_ms + 3_000 + 137 * number, ts_ms + 25_000 + 137 * number}
        if number % 5 == 0:
            self.timers.discard(ts_ms + 15_000 + 137 * number)


class Model:
    """The query, epoch by epoch.

    Parameters
    ----------
    parallelism
        The number of its subtasks.
    """

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism
        self._keys: dict[str, _Key] = defaultdict(_Key)
        self._rules: dict[str, int] = {}
        self._dealt: list[list[int]] | None = [[] for _ in range(parallelism)]
        self._united: list[list[int]] = [[] for _ in range(parallelism)]
        self._fired = [0] * parallelism
        self._counted: dict[str, int] = defaultdict(int)
        self._watermark_ms = 0
        self.told: list[dict[str, Any]] = []

    def continue_at(self, parallelism: int) -> None:
        """Forget what was emitted; at another parallelism, state without a key moves.

        Every subtask gets the whole of a union list. Which subtask gets which part of the other
        lists is not specified, so it is not emitted.
        """
        self.told = []
        if parallelism != self._parallelism:
            united = [v for part in self._united for v in part]
            self._parallelism = parallelism
            self._united = [united[:] for _ in range(parallelism)]
            self._dealt, self._fired = None, [0] * parallelism

    def epoch(self, number: int) -> None:
        """Process the rules, then the rows, then the timers, at the watermark of earlier epochs."""
        for name, factor in RULES[number]:
            if factor is None:
                self._rules.pop(name, None)
            else:
                self._rules[name] = factor
        for subtask in range(self._parallelism):
            told = {
                "rules": sorted([k, v] for k, v in self._rules.items()),
                "dealt": None if self._dealt is None else sorted(self._dealt[subtask]),
                "united": sorted(self._united[subtask]),
                "fired": self._fired[subtask],
            }
            self._tell(None, "rules", subtask, told)
        rows = rows_of(number)
        for k, v, ts_ms in rows:
            subtask, key = subtask_of(k, self._parallelism), self._keys[k]
            told = {**key.told(self._watermark_ms), "timers": sorted(key.timers), "v": v}
            self._tell(k, "row", subtask, told)
            key.add(v, ts_ms, int(k[1:]))
            if self._dealt is not None:
                self._dealt[subtask].append(v)
            self._united[subtask].append(v)
        self._fire()
        self._watermark_ms = max([self._watermark_ms, *(ts_ms for _, _, ts_ms in rows)])

    def idle_epoch(self) -> None:
        """Process the epoch without rows that Spark adds after the watermark has moved."""
        self._fire()

    def timers(self) -> list[tuple[int, str]]:
        """Return all pending timers in the order of time."""
        return sorted((at_ms, k) for k, key in self._keys.items() for at_ms in key.timers)

    def _fire(self) -> None:
        for at_ms, k in self.timers():
            if at_ms <= self._watermark_ms:
                subtask, key = subtask_of(k, self._parallelism), self._keys[k]
                self._fired[subtask] += 1
                told = {
                    **key.told(self._watermark_ms), "at": at_ms, "number": self._fired[subtask],
                }  # fmt: skip
                self._tell(k, "timer", subtask, told)
                key.timers.discard(at_ms)

    def _tell(self, k: str | None, what: str, subtask: int, told: dict[str, Any]) -> None:
        # As it is after JSON: tuples are lists.
        told = json.loads(json.dumps(told))
        self.told.append({"k": k, "what": what, "subtask": subtask, "told": told})
        self._counted[what] += 1

    @property
    def counted(self) -> dict[str, int]:
        """Return how many of each kind were emitted, restored ones included."""
        return dict(self._counted)


def run(epochs: Sequence[int], model: Model) -> Model:
    """Run epochs, and the epoch without rows after them."""
    for number in epochs:
        model.epoch(number)
    model.idle_epoch()
    return model
