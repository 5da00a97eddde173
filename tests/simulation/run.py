"""Runs simulated histories by their seeds: ``python -m tests.simulation.run 1-1000``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.measured_commit import measured_commit

if TYPE_CHECKING:
    from tests.simulation.world import World

HASHES = "0"
"""The order of sets of texts is part of a history, so it is the same in every process."""

_COUNTED = ("checkpoints", "restarts", "promotions", "rollbacks")
"""What a world counts."""

_SUMMED = ("seeds", "failed", *_COUNTED, "steps", "processor_seconds")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was simulated, and what it took."""

    commit: str
    processes: int
    seeds: int
    failed: int
    checkpoints: int
    restarts: int
    promotions: int
    rollbacks: int
    steps: int
    seconds: float
    processor_seconds: float

    @property
    def text(self) -> str:
        """The figures in one line."""
        return (
            f"{self.seeds} seeds, {self.failed} failed, {self.checkpoints} checkpoints, "
            f"{self.restarts} restarts in place, {self.promotions} promotions, "
            f"{self.rollbacks} rollbacks, "
            f"{self.steps} steps, {self.seconds} s, {self.processor_seconds} s of a processor, "
            f"{self.checkpoints / max(self.processor_seconds, 0.1):.0f} checkpoints/s"
        )


def main(arguments: list[str]) -> int:
    """Run seeds, and shrink those that fail; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", default=["1-300"], help="numbers, and ranges a-b")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--fates", type=int, help="only so many things happen")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--break", dest="line", help="break a line of safety; see breaks.py")
    parser.add_argument("--stop", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--results", type=Path, help="a file for the figures, as JSON")
    given = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != HASHES:
        os.environ["PYTHONHASHSEED"] = HASHES
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *arguments])
    seeds = [seed for text in given.seeds for seed in _seeds(text)]
    if given.jobs > 1:
        figures = _in_processes(seeds, given)
        print("together: ", end="")
    else:
        from tests.simulation.breaks import broken

        with broken(given.line):
            figures = _run(seeds, given.fates, trace=given.trace, stops=given.stop)
    print(figures.text, flush=True)
    if given.results is not None:
        given.results.write_text(json.dumps(asdict(figures), indent=1) + "\n")
    return figures.failed


def _seeds(text: str) -> Iterator[int]:
    first, _, last = text.partition("-")
    yield from range(int(first), int(last or first) + 1)


def _in_processes(seeds: list[int], given: argparse.Namespace) -> Figures:
    options = ["--trace"] * given.trace + ["--stop"] * given.stop
    options += [] if given.fates is None else ["--fates", str(given.fates)]
    options += [] if given.line is None else ["--break", given.line]
    with tempfile.TemporaryDirectory() as directory:
        results = [Path(directory) / str(number) for number in range(given.jobs)]
        began = time.monotonic()
        processes = [
            subprocess.Popen(
                [
                    sys.executable, "-m", "tests.simulation.run", *options,
                    "--results", str(path), *map(str, seeds[number :: given.jobs]),
                ]
            )
            for number, path in enumerate(results)
        ]  # fmt: skip
        for process in processes:
            process.wait()
        parts = [json.loads(path.read_text()) for path in results]  # missing if one was killed
    return Figures(
        commit=parts[0]["commit"],
        processes=given.jobs,
        seconds=round(time.monotonic() - began, 1),
        **{name: round(sum(part[name] for part in parts), 1) for name in _SUMMED},
    )


def _run(seeds: list[int], fates: int | None, *, trace: bool, stops: bool) -> Figures:
    from tests.simulation.world import World

    logging.disable(logging.CRITICAL)
    began, used = time.monotonic(), time.process_time()
    steps, failed = 0, 0
    counted = Counter(dict.fromkeys(_COUNTED, 0))
    for seed in seeds:
        world = World(seed, fates)
        error = _error_of(world)
        if error is not None:
            failed += 1
            _report(seed, world.fates, error)
        if trace:
            print("\n".join(world.scheduler.trace))
        counted.update({name: getattr(world, name) for name in _COUNTED})
        steps += world.scheduler.steps
        if failed and stops:
            break
    seconds, used = time.monotonic() - began, time.process_time() - used
    return Figures(
        commit=measured_commit(),
        processes=1,
        seeds=seeds.index(seed) + 1,
        failed=failed,
        **counted,
        steps=steps,
        seconds=round(seconds, 1),
        processor_seconds=round(used, 1),
    )


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
    commit = measured_commit()
    print(f"seed {seed} fails at commit {commit}; it needs {fewer} of {fates} fates. Replay:")
    print(f"  python -m tests.simulation.run {seed} --fates {fewer} --trace")
    print(error, flush=True)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
