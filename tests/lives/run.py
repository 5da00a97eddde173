"""Runs walks by their seeds: ``python -m tests.lives.run 1-20 --steps 40``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.lives.walk import FaultError, Walk


def main(arguments: list[str]) -> int:
    """Run walks; return how many found a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", default=["1-10"], help="numbers, and ranges a-b")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--keep", type=Path, help="where the files of walks with a fault are left")
    given = parser.parse_args(arguments)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    done: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    faults = 0
    for text in given.seeds:
        first, _, last = text.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            base = Path(tempfile.mkdtemp(prefix=f"lives-{seed}-", dir=_fast_directory()))
            walk, began = Walk(base, seed), time.monotonic()
            try:
                walk.run(given.steps)
                said = "well"
            except FaultError as exc:
                faults += 1
                said = f"FAULT {exc}"
                if given.keep is not None:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    shutil.copytree(base, given.keep / str(seed), symlinks=True, dirs_exist_ok=True)
            finally:
                shutil.rmtree(base, ignore_errors=True)
            done.update(walk.done)
            checked.update(walk.checked)
            print(f"seed {seed}: {time.monotonic() - began:.0f} s: {said}", flush=True)
    print(f"steps: {sum(n for name, n in done.items() if not name.startswith('refused'))}")
    print("\n".join(f"{n:5} {name}" for name, n in sorted(done.items())))
    print(f"checked: {dict(checked)}")
    print(f"faults: {faults}", flush=True)
    return faults


def _fast_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
