"""Runs fast tests and the demo on versions of Python, PySpark, packages: `make prove WHAT=matrix`.

Each row has its own environment (``tools/environments.py``), which is made once and takes
about 1 GB. A row takes 3 to 8 minutes on two cores. The results go to
``tests/matrix/results.json``, and docs/compatibility.md shows them as a table. ``--rows 4.0`` runs
the rows with this text in their names, ``--table`` only writes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.environments import ROOT, NoEnvironmentError, environment
from tools.measured_commit import measured_commit

RESULTS = ROOT / "tests" / "matrix" / "results.json"
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- results of make prove WHAT=matrix -->\n", "<!-- end of the results -->\n"
SHOWN = ("pandas", "pyarrow", "numpy", "rocksdict")
LOWEST = {
    "numpy": "1.23.5", "pandas": "2.2.0", "pyarrow": "18.0.0", "rocksdict": "0.3.29",
    "fsspec": "2024.6.0", "msgspec": "0.21.0", "lmdb": "2.1.1", "rich": "13.0.0", "xxhash": "3.1.0",
}  # fmt: skip
"""The lowest release of each package that setup.cfg allows and that pip offers."""

UNIT = tuple(
    f"tests/unit/{name}"
    for name in (
        "formats", "operator/handover", "operator/modes", "operator/schema", "values",
        "snapshot", "spark", "state_backends", "stored",
    )
)  # fmt: skip
"""Tests without Spark: what depends on types, columns and files."""

QUERIES = (
    "tests/query/life/test_own_session.py",
    "tests/query/restoring/test_restart.py",
    "tests/query/rows/test_all_types.py",
    "tests/query/rows/test_hand_over.py",
    "tests/query/state/test_state_contract.py",
    "tests/query/state/test_timers.py",
)
"""Tests with queries."""


DEMO = ("-m", "examples.flights", "--weeks", "4", "--no-console")
"""The job of `make demo` on some weeks; it compares its result with plain pandas."""


@dataclass(frozen=True)
class Row:
    """One environment."""

    python: str
    pyspark: str
    pins: dict[str, str] = field(default_factory=dict)
    platform: str = ""
    """A managed platform that has this version."""

    @property
    def name(self) -> str:
        """What the row is called."""
        pins = ", ".join(f"{name} {version}" for name, version in self.pins.items())
        packages = "lowest packages" if self.pins == LOWEST else pins or "newest packages"
        return f"PySpark {self.pyspark}, Python {self.python}, {packages}"


ROWS = (
    Row("3.11", "4.3.0"),
    Row("3.11", "4.0.5"),
    Row("3.11", "4.1.4"),
    Row("3.11", "4.2.1"),
    Row("3.10", "4.0.5", LOWEST),
    Row("3.13", "4.3.0"),
    Row("3.12", "4.3.0"),
    Row("3.10", "4.2.1"),  # 4.3 needs Python 3.11
    Row("3.11", "4.3.0", LOWEST),
    Row("3.13", "4.0.5"),
    Row("3.11", "4.3.0", {"pandas": "2.3.3"}),
    Row("3.11", "4.0.1", {"pyarrow": "24.0.0"}, "Dataproc"),  # 4.0.1 fails with PyArrow 26
    Row("3.11", "4.0.2", {}, "EMR"),
    Row("3.11", "4.1.1", {}, "Fabric"),
    Row("3.14", "4.3.0"),
)


def run(row: Row) -> dict[str, Any]:
    """Run the tests of a row; return what came of it."""
    try:
        python = environment(row.pyspark, row.python, row.pins)
    except NoEnvironmentError as exc:
        return {"refused": str(exc), "commit": measured_commit()}
    began = time.monotonic()
    parts = {"unit": _run_tests(python, UNIT), "queries": _run_tests(python, QUERIES)}
    demo = subprocess.run([python, *DEMO], cwd=ROOT, env=_variables(python), check=False)  # noqa: S603
    return {
        "packages": _packages_of(python),
        "seconds": round(time.monotonic() - began),
        "commit": measured_commit(),
        "demo": "passes" if demo.returncode == 0 else "fails",
        **parts,
    }


def _run_tests(python: Path, tests: tuple[str, ...]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [
            python, "-m", "pytest", *tests, "-q", "-p", "no:cacheprovider", "-o", "addopts=",
            "--import-mode=importlib", "-m", "not soak and not external",
            "--numprocesses", "2", "--dist", "loadfile", f"--junitxml={report}",
        ]  # fmt: skip
        subprocess.run([*map(str, command)], cwd=ROOT, env=_variables(python), check=False)  # noqa: S603
        return _counted(ET.parse(report).getroot()) if report.exists() else {"crashed": True}  # noqa: S314


def _variables(python: Path) -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)}


def _counted(root: ET.Element) -> dict[str, Any]:
    counts: dict[str, Any] = {"passed": 0, "skipped": 0, "failed": []}
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"].append(f"{case.get('classname')}::{case.get('name')}")
        else:
            counts["skipped" if case.find("skipped") is not None else "passed"] += 1
    return counts


def _packages_of(python: Path) -> dict[str, str]:
    code = (
        "import json, importlib.metadata as m; "
        f"print(json.dumps({{n: m.version(n) for n in {SHOWN}}}))"
    )
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    packages: dict[str, str] = json.loads(found.stdout)
    return packages


def table(results: dict[str, Any]) -> str:
    """Return the results as a table of Markdown, in the order of :data:`ROWS`."""
    lines = [
        f"| PySpark | Python | {' | '.join(SHOWN)} | without Spark | queries | demo | commit |",
        "|---" * (len(SHOWN) + 6) + "|",
    ]
    for row in ROWS:
        result = results.get(row.name)
        if result is None:
            continue
        if "refused" in result:
            cells = [*("" for _ in SHOWN), "not run: could not be installed", "", ""]
        else:
            packages = [result["packages"][name] for name in SHOWN]
            cells = [*packages, *(_shown(result[part]) for part in ("unit", "queries"))]
            cells.append(result.get("demo", "not run"))
        cells.append(f"`{result['commit']}`")
        version = f"{row.pyspark} ({row.platform})" if row.platform else row.pyspark
        lines.append(f"| {version} | {row.python} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _shown(part: dict[str, Any]) -> str:
    if not part:
        return "not run"
    if "crashed" in part:
        return "did not end"
    shown = f"{part['passed']} pass"
    return f"{shown}, {len(part['failed'])} fail" if part["failed"] else shown


def write_page(results: dict[str, Any]) -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + table(results) + "\n" + END + rest.partition(END)[2])


def main() -> int:
    """Run rows, and write their results and the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rows", nargs="*", default=[""], help="texts in the names of rows")
    parser.add_argument("--table", action="store_true", help="only write the table")
    arguments = parser.parse_args()
    failed = False
    for row in () if arguments.table else ROWS:
        if not any(text in row.name for text in arguments.rows):
            continue
        print(row.name, flush=True)  # noqa: T201
        found = run(row)
        failed |= found.get("demo") == "fails"
        failed |= any(part.get("failed") or "crashed" in part for part in (
            found.get("unit", {}), found.get("queries", {})
        ))  # fmt: skip
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[row.name] = found
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_page(json.loads(RESULTS.read_text()))
    return failed


if __name__ == "__main__":
    sys.exit(main())
