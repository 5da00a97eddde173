"""Breaks each line of safety, and shows that a test fails: ``make prove WHAT=mutate``.

Each line is changed in a copy of the project, and the tests named with it run there: first with
the line as it is, where they must pass, then with the changed line. A change is found if a test
fails, and passes again once the line is back; so a server that does not start finds nothing. A line
whose change no test notices is a survivor, and the program ends with an error.

``tests/mutation/results.json`` gets the results, and ``--table`` prints them as the table of
docs/promises.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tools.measured_commit import measured_commit
from tools.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "mutation" / "results.json"
COPIED = ("pyspark_ckpt", "state_backends", "tests", "tools", "docs", "conf")
FILES = ("pyproject.toml", "setup.cfg", "setup.py", "README.md", "CHANGELOG.md", "Makefile")


_OPTIONS = ("-x", "-q", "-rf", "-p", "no:cacheprovider", "-m", "not external")
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


class Ran(NamedTuple):
    """A run of pytest: the tests that failed, and whether it ended in another way."""

    failed: tuple[str, ...]
    is_broken: bool
    output: str
    seconds: float


def run_tests(names: list[str], place: Path) -> Ran:
    """Run tests in a copy of the project, up to the first that fails.

    Parameters
    ----------
    names
        Arguments of pytest.
    place
        The copy.
    """
    began = time.monotonic()
    done = subprocess.run(  # noqa: S603  # pytest, with tests of this file
        [sys.executable, "-m", "pytest", *_OPTIONS, *names],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    failed = tuple(_FAILED.findall(done.stdout)) if done.returncode == 1 else ()
    # A fixture that fails is an error and no failure: the test was not asked.
    is_broken = done.returncode != 0 and not failed
    return Ran(failed, is_broken, output, time.monotonic() - began)


def check_unchanged(names: list[str], place: Path) -> None:
    """Raise if tests do not pass with every line as it is."""
    ran = run_tests(names, place)
    if ran.failed or ran.is_broken:
        raise SystemExit(f"without any change {names} do not pass: {ran.output[-2000:]}")


def result_of(mutation: Mutation, place: Path) -> dict[str, Any]:
    """Change a line, and return which test notices it.

    Parameters
    ----------
    mutation
        The line; its tests pass without the change.
    place
        The copy of the project.

    Returns
    -------
    dict of str to Any
        A row of the results.
    """
    path = place / mutation.file
    whole = path.read_text()
    if whole.count(mutation.line) != 1:
        raise SystemExit(f"{mutation.file} does not have once: {mutation.line!r}")
    path.write_text(whole.replace(mutation.line, mutation.changed))
    try:
        ran = run_tests(mutation.test.split(), place)
    finally:
        path.write_text(whole)
    if ran.is_broken:
        raise SystemExit(f"{mutation.name}: pytest itself failed: {ran.output[-2000:]}")
    if ran.failed:
        check_unchanged([ran.failed[0]], place)
    return {
        "line": mutation.name,
        "file": mutation.file,
        "tests": mutation.test,
        "is_found": bool(ran.failed),
        "by": ran.failed[0] if ran.failed else None,
        "seconds": round(ran.seconds, 1),
    }


def results(path: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the rows of the last run of each line, by the name of the line."""
    if not path.exists():
        return {}
    return {row["line"]: row for row in json.loads(path.read_text())}


def write_results(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Write the rows of lines that there still are, in their order."""
    ordered = [rows[each.name] for each in MUTATIONS if each.name in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(ordered, indent=1) + "\n")


def table() -> str:
    """Return the table of lines, tests and results."""
    rows = results()
    lines = ["| line of safety | where | test | last run |", "|---|---|---|---|"]
    for each in MUTATIONS:
        row = rows.get(each.name)
        said = "not run" if row is None else "**survived**"
        if row is not None and row["is_found"]:
            said = f"found in {row['seconds']:.0f} s"
        lines.append(f"| {each.name} | `{each.file}` | `{each.test}` | {said} |")
    return "\n".join(lines)


def main() -> int:
    """Break all lines, or those whose name contains a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of lines")
    parser.add_argument("--table", action="store_true", help="print the table of the docs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a file for the results")
    given = parser.parse_args()
    if given.table:
        sys.stdout.write(f"{table()}\n")
        return 0
    survivors = 0
    passed: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="mutated-") as directory:
        place = Path(directory)
        commit = measured_commit()  # of what is copied, whatever is committed later
        for name in COPIED:
            shutil.copytree(ROOT / name, place / name)
        for name in FILES:
            shutil.copy(ROOT / name, place / name)
        for mutation in MUTATIONS:
            if given.names and not any(each in mutation.name for each in given.names):
                continue
            if mutation.test not in passed:
                check_unchanged(mutation.test.split(), place)
                passed.add(mutation.test)
            row = {**result_of(mutation, place), "commit": commit}
            write_results({**results(given.results), mutation.name: row}, given.results)
            verdict = f"is found by {row['by']}" if row["is_found"] else "SURVIVES"
            sys.stdout.write(f"{mutation.name}: {verdict}, {row['seconds']} s\n")
            sys.stdout.flush()
            survivors += not row["is_found"]
    return survivors


if __name__ == "__main__":
    sys.exit(min(main(), 1))
