"""Runs simulated histories by their seeds: ``python -m tests.simulation.run 1-1000``."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World

HASHES = "0"
"""The order of sets of texts is part of a history, so it is the same in every process."""


def main(arguments: list[str]) -> int:
    """Run seeds, and shrink those that fail; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", default=["1-300"], help="numbers, and ranges a-b")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--fates", type=int, help="only so many things happen")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--break", dest="line", help="break a line of safety; see breaks.py")
    parser.add_argument("--stop", action="store_true", help="stop at the first seed that fails")
    given = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != HASHES:
        os.environ["PYTHONHASHSEED"] = HASHES
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *arguments])
    seeds = [seed for text in given.seeds for seed in _seeds(text)]
    if given.jobs > 1:
        return _in_processes(seeds, given.jobs)
    from tests.simulation.breaks import broken

    with broken(given.line):
        return _run(seeds, given.fates, trace=given.trace, stops=given.stop)


def _seeds(text: str) -> Iterator[int]:
    first, _, last = text.partition("-")
    yield from range(int(first), int(last or first) + 1)


def _in_processes(seeds: list[int], jobs: int) -> int:
    size = -(-len(seeds) // jobs)
    parts = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    processes = [
        subprocess.Popen([sys.executable, "-m", "tests.simulation.run", f"{part[0]}-{part[-1]}"])
        for part in parts
    ]
    return sum(process.wait() != 0 for process in processes)


def _run(seeds: list[int], fates: int | None, *, trace: bool, stops: bool) -> int:
    from tests.simulation.world import World

    logging.disable(logging.CRITICAL)
    began, used = time.monotonic(), time.process_time()
    checkpoints, steps, failed = 0, 0, 0
    for seed in seeds:
        world = World(seed, fates)
        error = _error_of(world)
        if error is not None:
            failed += 1
            _report(seed, world.fates, error)
        if trace:
            print("\n".join(world.scheduler.trace))
        checkpoints += world.checkpoints
        steps += world.scheduler.steps
        if failed and stops:
            break
    seconds, used = time.monotonic() - began, time.process_time() - used
    lived = seeds.index(seed) + 1
    print(
        f"{lived} seeds, {failed} failed, {checkpoints} checkpoints, {steps} steps, "
        f"{seconds:.1f} s, {used:.1f} s of a processor, {checkpoints / used:.0f} checkpoints/s"
    )
    return failed


def _error_of(world: World) -> str | None:
    try:
        world.run()
    except Exception:
        return traceback.format_exc()
    return None


def _report(seed: int, fates: int, error: str) -> None:
    from tests.simulation.world import World

    fewer = fates
    for number in range(fates):
        found = _error_of(World(seed, number))
        if found is not None:
            fewer, error = number, found
            break
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"seed {seed} fails at commit {commit}; it needs {fewer} of {fates} fates. Replay:")
    print(f"  python -m tests.simulation.run {seed} --fates {fewer} --trace")
    print(error, flush=True)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
