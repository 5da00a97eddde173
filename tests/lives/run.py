"""Runs walks by their seeds: ``python -m tests.lives.run 1-20 --steps 40``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.lives.walk import STEPS, FaultError, Walk


def main(arguments: list[str]) -> int:
    """Run walks; return how many found a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", default=["1-10"], help="numbers, and ranges a-b")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1, help="how many walks run at once")
    parser.add_argument("--minutes", type=float, help="begin no walk after so many minutes")
    parser.add_argument("--keep", type=Path, help="where the files of walks with a fault are left")
    given = parser.parse_args(arguments)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    done: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    faults: list[str] = []
    seeds = [seed for text in given.seeds for seed in _seeds(text)]
    until = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    began = 0

    def walk_in_time(seed: int) -> tuple[Walk, FaultError | None, float] | None:
        is_late = until is not None and time.monotonic() > until
        return None if is_late else _walk(seed, given.steps, given.keep)

    with ThreadPoolExecutor(given.jobs) as pool:  # a walk waits for processes of its own
        for each in as_completed([pool.submit(walk_in_time, seed) for seed in seeds]):
            if (result := each.result()) is None:
                continue
            began += 1
            walk, fault, seconds = result
            done.update(walk.done)
            checked.update(walk.checked)
            said = "well" if fault is None else f"FAULT {fault}"
            print(f"seed {walk.seed}: {seconds:.0f} s: {said}", flush=True)
            if fault is not None:
                faults.append(str(fault).partition(STEPS)[0])
    print(f"walks: {began} of {len(seeds)}")
    print(f"steps: {sum(n for name, n in done.items() if not name.startswith('refused'))}")
    print("\n".join(f"{n:5} {name}" for name, n in sorted(done.items())))
    print(f"checked: {dict(checked)}")
    print("\n".join([f"faults: {len(faults)}", *faults]), flush=True)
    return len(faults)


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _walk(seed: int, steps: int, keep: Path | None) -> tuple[Walk, FaultError | None, float]:
    base = Path(tempfile.mkdtemp(prefix=f"lives-{seed}-", dir=_fast_directory()))
    walk, began, fault = Walk(base, seed), time.monotonic(), None
    try:
        walk.run(steps)
    except FaultError as exc:
        fault = exc
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(base, keep / str(seed), symlinks=True, dirs_exist_ok=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return walk, fault, time.monotonic() - began


def _fast_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
