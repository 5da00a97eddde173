"""The faults of the torture, one function each."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.external.front import Front
from tests.faults.confined import Ballast
from tests.torture.life import Life

PAUSE_S = (0.2, 1.5)
LONG_PAUSE_S = (4.5, 6.0)
"""Past an executor's heartbeat: the driver has given it up before it continues."""


@dataclass
class Scene:
    """What faults act on."""

    life: Life
    chance: random.Random
    disk: Path | None
    front: Front | None
    meanwhile: Callable[[], None]

    def wait(self, seconds: float) -> None:
        """Let time pass in which input goes on."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.meanwhile()
            time.sleep(0.02)

    def victim(self, kind: str) -> int | None:
        """Return one process of a kind; workers come and go with their executors."""
        give_up_at = time.monotonic() + 30
        while time.monotonic() < give_up_at and self.life.process.poll() is None:
            if found := self.life.pids(kind):
                return self.chance.choice(found)
            self.wait(0.05)
        return None


def kill_driver(scene: Scene) -> bool:
    """The driver's host goes away: all its processes end at once, or the JVM before the others."""
    jvms = scene.life.pids("driver")
    if jvms and scene.chance.random() < 0.5:
        _signal(jvms[0], signal.SIGKILL)
        scene.wait(scene.chance.uniform(0.0, 0.5))
    scene.life.kill()
    return True


def kill_executor(scene: Scene) -> bool:
    victim = scene.victim("executor")
    return victim is not None and _signal(victim, signal.SIGKILL)


def kill_worker(scene: Scene) -> bool:
    victim = scene.victim("worker")
    return victim is not None and _signal(victim, signal.SIGKILL)


def pause_driver(scene: Scene) -> bool:
    return _pause(scene, "driver", PAUSE_S)


def pause_executor(scene: Scene) -> bool:
    is_long = scene.chance.random() < 0.25
    return _pause(scene, "executor", LONG_PAUSE_S if is_long else PAUSE_S)


def pause_worker(scene: Scene) -> bool:
    return _pause(scene, "worker", PAUSE_S)


def fill_disk(scene: Scene) -> bool:
    """The disk of the location, the output and the local copies has room for a few pages only."""
    assert scene.disk is not None
    ballast = Ballast(scene.disk)
    with suppress(OSError):  # the query may take the last room in between
        ballast.leave(scene.chance.randrange(2, 60))
    scene.wait(scene.chance.uniform(0.3, 2.0))
    ballast.drop()
    return True


def slow_disk(scene: Scene) -> bool:
    """Each file of the library waits."""
    slow = scene.life.marks / "slow"
    slow.touch()
    scene.wait(scene.chance.uniform(0.5, 2.0))
    slow.unlink(missing_ok=True)
    return True


def s3_goes_away(scene: Scene) -> bool:
    """Connections to the object store break, and new ones are refused."""
    assert scene.front is not None
    scene.front.kill()
    scene.wait(scene.chance.uniform(0.2, 2.5))
    scene.front.start()
    return True


def s3_cuts_off(scene: Scene) -> bool:
    """The object store's front dies in the middle of a request."""
    assert scene.front is not None
    scene.front.kill()
    scene.front.start(dies_after=scene.chance.randrange(200, 20_000))
    scene.wait(scene.chance.uniform(0.5, 2.5))
    scene.front.kill()
    scene.front.start()
    return True


FAULTS: dict[str, tuple[int, Callable[[Scene], bool]]] = {
    "driver killed": (14, kill_driver),
    "executor killed": (20, kill_executor),
    "worker killed": (26, kill_worker),
    "driver stands still": (7, pause_driver),
    "executor stands still": (10, pause_executor),
    "worker stands still": (10, pause_worker),
    "disk full": (3, fill_disk),
    "disk slow": (5, slow_disk),
    "S3 gone": (5, s3_goes_away),
    "S3 cut off": (5, s3_cuts_off),
}
"""How often each comes, and what it does."""


def choose(chance: random.Random, scene: Scene) -> str:
    """Return the next fault of those that the scene has."""
    left_out = set()
    if scene.disk is None:
        left_out.add("disk full")
    if scene.front is None:
        left_out |= {"S3 gone", "S3 cut off"}
    names = [name for name in FAULTS if name not in left_out]
    return chance.choices(names, [FAULTS[name][0] for name in names])[0]


def _pause(scene: Scene, kind: str, seconds: tuple[float, float]) -> bool:
    victim = scene.victim(kind)
    if victim is None or not _signal(victim, signal.SIGSTOP):
        return False
    scene.wait(scene.chance.uniform(*seconds))
    _signal(victim, signal.SIGCONT)
    return True


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
