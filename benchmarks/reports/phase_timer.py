"""A stopwatch with phases: at every moment exactly one runs, the innermost one entered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from types import GeneratorType, TracebackType
from typing import Any


class PhaseTimer:
    """Adds up seconds by phase; the time of an inner phase does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._entered: list[str] = []
        self._since = 0.0

    def enter(self, phase: str) -> None:
        """Begin a phase, inside the one that runs."""
        self._charge()
        self._entered.append(phase)

    def leave(self) -> None:
        """End the running phase and continue the one around it."""
        self._charge()
        self._entered.pop()

    def _charge(self) -> None:
        now = perf_counter()
        if self._entered:
            phase = self._entered[-1]
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    def timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Return a function whose calls are a phase, with the steps of what it returns.

        The steps of a generator are the ones that its caller asks for. The steps of a context
        manager are its begin and its end, without the block.
        """

        def wrapper(*arguments: Any, **named: Any) -> Any:
            self.enter(phase)
            try:
                result = function(*arguments, **named)
            finally:
                self.leave()
            if isinstance(result, GeneratorType):
                return self.steps(result, phase)
            if hasattr(result, "__exit__") and hasattr(result, "gen"):  # of a contextmanager
                return _TimedContext(result, phase, self)
            return result

        return wrapper

    def steps(self, iterator: Iterator[Any], phase: str) -> Iterator[Any]:
        """Yield what an iterator yields; its steps are a phase."""
        end = object()
        while True:
            self.enter(phase)
            try:
                item = next(iterator, end)
            finally:
                self.leave()
            if item is end:
                return
            yield item


class _TimedContext:
    def __init__(self, context: Any, phase: str, timer: PhaseTimer) -> None:
        self._context = context
        self._phase = phase
        self._timer = timer

    def __enter__(self) -> Any:
        self._timer.enter(self._phase)
        try:
            return self._context.__enter__()
        finally:
            self._timer.leave()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        self._timer.enter(self._phase)
        try:
            return self._context.__exit__(kind, error, trace)
        finally:
            self._timer.leave()
