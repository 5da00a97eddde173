"""One seeded scheduler for all actors of a simulation: which one runs next, and what time it is.

Every actor is a greenlet of one thread, so one of them runs at a time. An actor may lose its turn
at a point, that is before each operation of a storage, and while it waits. All choices come from
one random generator, so a seed gives the same history each time.

A process has several actors. A process that is killed never has an effect again: each of its actors
gets :class:`Killed` at its next point. A process that is paused runs on later, as a zombie.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import getcurrent, greenlet

CONTINUES = 0.8
"""How likely an actor keeps its turn at a point."""


class Killed(BaseException):
    """The process of this actor was killed; nothing that follows has an effect."""


class StuckError(AssertionError):
    """No actor can ever run again, or a simulation takes far too many steps."""


class Process:
    """A driver, an executor, or the world itself.

    Parameters
    ----------
    name
        For the trace.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.paused_until_ms = 0
        self.writes_below: tuple[str, ...] | None = None


class Actor:
    """One thread of a process; `is_over` once its function has ended."""

    def __init__(self, process: Process, name: str, work: Callable[[], Any]) -> None:
        self.process = process
        self.name = name
        self.work = work
        self.is_over = False
        self.ready: Callable[[], bool] | None = None
        self.wakes_at_ms: int | None = None
        self.greenlet: greenlet | None = None


def current_actor() -> Actor | None:
    """Return the actor that calls, ``None`` outside of a simulation."""
    return getattr(getcurrent(), "actor", None)


class Scheduler:
    """Runs actors one at a time.

    Parameters
    ----------
    seed
        Determines everything.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 1_700_000_000_000
        self.steps = 0
        self.most_steps = 400_000
        self.trace: list[str] = []
        self.failure: BaseException | None = None
        self.is_quiet = False
        self.at_point: Callable[[Actor, str], None] = lambda actor, what: None
        self._actors: list[Actor] = []
        self._main = getcurrent()

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        actor = current_actor()
        who = "" if actor is None else f"{actor.process.name}/{actor.name}: "
        self.trace.append(f"{self.steps} {self.now_ms % 10_000_000} {who}{text}")

    def spawn(self, process: Process, name: str, work: Callable[[], Any]) -> Actor:
        """Add an actor; it runs when its turn comes."""
        actor = Actor(process, name, work)
        self._actors.append(actor)
        return actor

    def run(self, process: Process, work: Callable[[], Any]) -> None:
        """Run an actor, and all that it spawns, until all have ended or one check failed."""
        self.spawn(process, "main", work)
        self._main = getcurrent()
        while self._actors:  # an actor that has ended returns here
            self._turn(self._next())
        if self.failure is not None:
            raise self.failure

    def point(self, what: str) -> None:
        """Let the scheduler choose who runs next; called before an operation has its effect."""
        actor = current_actor()
        if actor is None or self.is_quiet:
            return
        self._check(actor)
        self.steps += 1
        if self.steps > self.most_steps:
            raise StuckError(f"more than {self.most_steps} steps")
        self.at_point(actor, what)
        self._check(actor)
        if self.chance.random() >= CONTINUES:
            self._switch(actor)

    def wait(self, ready: Callable[[], bool], timeout_ms: float | None = None) -> bool:
        """Wait until something is true, or for a time; return whether it is true."""
        actor = current_actor()
        assert actor is not None, "only an actor waits"
        self._check(actor)
        if ready():
            return True
        actor.ready = ready
        actor.wakes_at_ms = None if timeout_ms is None else self.now_ms + max(1, int(timeout_ms))
        try:
            self._switch(actor)
        finally:
            actor.ready = actor.wakes_at_ms = None
        return ready()

    def sleep(self, time_ms: float) -> None:
        """Wait for a time."""
        self.wait(lambda: False, time_ms)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Let nobody else run, and nothing fail, while a check reads."""
        before, self.is_quiet = self.is_quiet, True
        try:
            yield
        finally:
            self.is_quiet = before

    def kill(self, process: Process) -> None:
        """Kill a process; its actors end at their next point."""
        if process.is_alive:
            self.note(f"killed {process.name}")
        process.is_alive = False
        process.paused_until_ms = 0

    def _check(self, actor: Actor) -> None:
        if self.failure is not None or not actor.process.is_alive:
            raise Killed

    def _switch(self, actor: Actor) -> None:
        following = self._next()
        if following is not actor:
            self._turn(following)
        self._check(actor)

    def _turn(self, actor: Actor) -> None:
        """Let an actor run; return when this greenlet has the next turn."""
        if actor.greenlet is None:
            actor.greenlet = greenlet(self._live, self._main)
            actor.greenlet.actor = actor
            actor.greenlet.switch(actor)
        else:
            actor.greenlet.switch()

    def _live(self, actor: Actor) -> None:
        try:
            if actor.process.is_alive and self.failure is None:
                actor.work()
        except Killed:
            pass
        except BaseException as exc:
            if self.failure is None:
                self.failure = exc
        finally:
            actor.is_over = True
            self._actors.remove(actor)

    def _next(self) -> Actor:
        while True:
            able = [actor for actor in self._actors if self._is_able(actor)]
            if able:
                return able[0] if len(able) == 1 else able[int(self.chance.random() * len(able))]
            times = [self._earliest_ms(actor) for actor in self._actors]
            known = [time_ms for time_ms in times if time_ms is not None and time_ms > self.now_ms]
            if not known:
                waiting = ", ".join(f"{a.process.name}/{a.name}" for a in self._actors)
                self.failure = self.failure or StuckError(f"nobody can run: {waiting}")
                continue  # everybody can end now
            self.now_ms = min(known)

    def _is_able(self, actor: Actor) -> bool:
        if self.failure is not None or not actor.process.is_alive:
            return True
        if actor.process.paused_until_ms > self.now_ms:
            return False
        if actor.ready is None:
            return True
        is_late = actor.wakes_at_ms is not None and actor.wakes_at_ms <= self.now_ms
        return is_late or actor.ready()

    def _earliest_ms(self, actor: Actor) -> int | None:
        times = [actor.process.paused_until_ms]
        if actor.ready is not None and actor.wakes_at_ms is not None:
            times.append(actor.wakes_at_ms)
        return max(times)
