"""What watches an epoch from outside: contexts of its steps, time by phase, the slowest keys.

The cost does not grow with the keys: nothing is done per key, and a look takes some microseconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from functools import wraps
from inspect import isgeneratorfunction
from time import perf_counter_ns
from typing import Any, TypeVar, cast

from pyspark_ckpt.formats.handle import SlowKey, SlowKeys
from pyspark_ckpt.values.words import shown

Method = TypeVar("Method", bound=Callable[..., Any])

PERIOD_S = 0.05
"""How often a look is taken at the key under way."""

_MOST_KEYS = 500
_KEPT_KEYS = 8
_KEY_CHARACTERS = 100

_KEPT_SHARE = 31 / 32
"""Each epoch, so much of the time before still counts: the last 32 epochs matter most."""


def observed_by(
    watch: Callable[[Any], AbstractContextManager[object]],
) -> Callable[[Method], Method]:
    """Return a decorator: a method runs inside a context of its object, also while it yields."""

    def decorated(method: Callable[..., Any]) -> Any:
        @wraps(method)
        def yielding(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            with watch(self):
                yield from method(self, *args, **kwargs)

        @wraps(method)
        def returning(self: Any, *args: Any, **kwargs: Any) -> Any:
            with watch(self):
                return method(self, *args, **kwargs)

        return yielding if isgeneratorfunction(method) else returning

    return cast("Callable[[Method], Method]", decorated)


class Phase(IntEnum):
    """What a subtask does between the opening of its state and the barrier."""

    READ = 0
    USER = 1
    WRITE = 2


class Laps:
    """A stop watch: all time is of a phase, of :attr:`Phase.READ` outside of :meth:`phase`."""

    def __init__(self) -> None:
        self._phase = Phase.READ
        self._took_ns = [0] * len(Phase)
        self._began_ns = perf_counter_ns()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Count the time of the context to a phase, and then go on with the phase before it."""
        before = self._phase
        self._begin(phase)
        try:
            yield
        finally:
            self._begin(before)

    def _begin(self, phase: Phase) -> None:
        now_ns = perf_counter_ns()
        self._took_ns[self._phase] += now_ns - self._began_ns
        self._phase, self._began_ns = phase, now_ns

    def milliseconds(self, phase: Phase) -> int:
        """Return the time of a phase, without the time since a phase began last."""
        return round(self._took_ns[phase] / 1_000_000)


def in_phase(phase: Phase) -> Callable[[Method], Method]:
    """Return a decorator: the time of a method is of a phase of its object's `laps`."""
    return observed_by(lambda it: it.laps.phase(phase))


class KeyTimes:
    """The time of the keys of an epoch, as far as samples found them."""

    def __init__(self, key: Callable[[], tuple[Any, ...] | None]) -> None:
        self._key = key
        self._took_ns: dict[str, int] = {}
        self._sampled_ns = time.perf_counter_ns()

    def sample(self) -> None:
        """Add the time since the sample before to the key under way."""
        key, now_ns = self._key(), time.perf_counter_ns()
        took_ns, self._sampled_ns = now_ns - self._sampled_ns, now_ns
        if key is None:
            return
        # A text is shown bare, except what a null is shown as.
        parts = (each if isinstance(each, str) and each != "None" else shown(each) for each in key)
        text = ", ".join(parts)[:_KEY_CHARACTERS]
        if text in self._took_ns or len(self._took_ns) < _MOST_KEYS:
            self._took_ns[text] = self._took_ns.get(text, 0) + took_ns

    def after(self, before: SlowKeys | None) -> SlowKeys | None:
        """Return the slowest keys of this epoch and the epochs before, if any was sampled."""
        found = list(self._took_ns.items())
        if not found and before is None:
            return None
        sampled = before or SlowKeys(0)
        took_ms = {each.key: _KEPT_SHARE * each.ms for each in sampled.keys}
        for text, took_ns in found:
            took_ms[text] = took_ms.get(text, 0) + took_ns / 1_000_000
        total_ms = _KEPT_SHARE * sampled.sampled_ms + sum(ns for _, ns in found) / 1_000_000
        slowest = sorted(took_ms.items(), key=lambda item: -item[1])[:_KEPT_KEYS]
        keys = tuple(SlowKey(text, int(ms)) for text, ms in slowest if ms >= 1)
        return SlowKeys(int(total_ms), keys)


class _Sampler:
    """A thread of this process, which sleeps while no epoch is under way."""

    def __init__(self) -> None:
        self._times: KeyTimes | None = None
        self._is_under_way = threading.Event()
        self._process_id: int | None = None

    def begin(self, times: KeyTimes) -> None:
        if self._process_id != os.getpid():  # threads do not live on in a forked process
            self._process_id = os.getpid()
            self._is_under_way = threading.Event()
            threading.Thread(target=self._run, name="pyspark_ckpt key times", daemon=True).start()
        self._times = times
        self._is_under_way.set()

    def end(self) -> None:
        self._is_under_way.clear()
        self._times = None

    def _run(self) -> None:
        while self._is_under_way.wait():
            time.sleep(PERIOD_S)
            times = self._times
            if times is not None:
                times.sample()


_sampler = _Sampler()


@contextmanager
def sampled(times: KeyTimes) -> Iterator[None]:
    """Sample the key under way in a task, every :data:`PERIOD_S`."""
    _sampler.begin(times)
    try:
        yield
    finally:
        _sampler.end()
