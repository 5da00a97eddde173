"""Runs one of the long proofs: ``make prove WHAT=torture ARGS="1000 --seed 7"``.

Without ``WHAT`` it lists them, with what they take without ``ARGS`` on two cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PYTEST = (sys.executable, "-m", "pytest")
_SPREAD = ("--dist", "worksteal", "--numprocesses")
_HANDED_OVER = (
    "tests/query/rows", "tests/parity", "tests/query/state/test_memory.py",
    "tests/query/state/test_quarantine.py", "tests/query/state/test_capture.py",
    "tests/recovery/test_driver_kill.py", "tests/cluster/test_executor_loss.py",
    "tests/cluster/test_speculation.py",
)  # fmt: skip


def _run(*command: str, **environment: str) -> int:
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=False).returncode  # noqa: S603


def _module(name: str, *always: str, default: str = "") -> Callable[[list[str]], int]:
    """Return a proof that a program carries out; `default` is what it gets without arguments."""
    return lambda given: _run(sys.executable, "-m", name, *always, *(given or default.split()))


def _breaks(given: list[str]) -> int:
    found = ("tests/simulation", "-m", "soak", "-o", "faulthandler_timeout=5400")
    return _run(*_PYTEST, *_SPREAD, "2", *found, *given)


def _conformance(given: list[str]) -> int:
    """Run each module in a process: what the sessions of one set is still there for the next."""
    found = sorted(map(str, (ROOT / "tests" / "conformance").rglob("test_*.py")))
    return max(_run(*_PYTEST, module) for module in given or found)


def _hand_over(given: list[str]) -> int:
    """Run what a row passes on its way to a subtask and back; behind that nothing differs."""
    packed = str(ROOT / "tests" / "hand_over" / "packed_conf")
    chosen = ("-m", "not external", *_HANDED_OVER)
    return _run(*_PYTEST, *_SPREAD, "3", *chosen, *given, SPARK_CONF_DIR=packed)


def _external(given: list[str]) -> int:
    return _run(*_PYTEST, "-m", "external", "-o", "faulthandler_timeout=5400", *given)


@dataclass(frozen=True)
class Proof:
    """What a proof does, what it takes, and how it runs."""

    what: str
    run: Callable[[list[str]], int]


PROOFS: Mapping[str, Proof] = {
    "simulate": Proof(
        "histories of faults, where a seed decides the order; 1-1000, a few minutes",
        _module("tests.simulation.run", "--jobs", "2", default="1-1000"),
    ),
    "breaks": Proof("the simulation finds each broken line of safety; an hour", _breaks),
    "mutate": Proof(
        "a test finds each broken line of safety; half an hour", _module("tools.mutate")
    ),
    "lives": Proof(
        "random walks over the lives of queries; 1-20, 25 minutes",
        _module("tests.lives.run", "--jobs", "3", default="1-20"),
    ),
    "torture": Proof(
        "kills, pauses and full disks; 1000 faults, three hours",
        _module("tests.torture.run", "--results", "tests/torture/results.json", default="1000"),
    ),
    "fuzz": Proof(
        "changed files for every parser of stored bytes; 20000 each, half an hour",
        _module("tests.fuzzing.run", "--results", "tests/fuzzing/results.json", default="20000"),
    ),
    "conformance": Proof("PySpark's own tests over this library; an hour", _conformance),
    "versions": Proof(
        "the same on each version of PySpark, for docs/conformance.md; an hour, 4 GB",
        _module("tools.conformance"),
    ),
    "matrix": Proof(
        "the fast tests on versions of Python, PySpark and packages; two hours, 10 GB",
        _module("tools.matrix"),
    ),
    "hand-over": Proof("rows handed over as bytes; 14 minutes", _hand_over),
    "external": Proof("storages, brokers and tables; an hour", _external),
}


def main(arguments: list[str]) -> int:
    """Run a proof by its name, or list them."""
    names = "".join(f"  {name:<12}{proof.what}\n" for name, proof in PROOFS.items())
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n")[0],
        epilog=f"proofs:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=PROOFS, metavar="NAME")
    given, rest = parser.parse_known_args(arguments)
    if given.name is None:
        parser.print_help()
        return 0
    return PROOFS[given.name].run(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
