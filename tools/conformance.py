"""Runs PySpark's own state tests on each version of PySpark: ``make prove WHAT=versions``.

Each version has its own environment (``tools/environments.py``). The counts go to
``tests/conformance/results.json``, and docs/conformance.md shows them as a table. ``--table`` only
writes the page, ``--pyspark 4.0.5`` runs one version, which takes 10 to 20 minutes.
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
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from tests.conformance.not_applying import NOT_APPLYING
from tools.environments import ROOT, environment
from tools.measured_commit import measured_commit

VERSIONS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
RESULTS = ROOT / "tests" / "conformance" / "results.json"
PAGE = ROOT / "docs" / "conformance.md"
BEGIN, END = "<!-- results of make prove WHAT=versions -->\n", "<!-- end of the results -->\n"
PARTS = {
    "operator": ("test_operator.py",),
    "state variables": ("test_state_variables.py",),
    "checkpoint v2": ("test_checkpoint_v2.py",),
    "harness": ("test_harness.py",),
    "Spark Connect": (
        "connect/test_pandas.py",
        "connect/test_pandas_state_variables.py",
        "connect/test_rows.py",
        "connect/test_rows_state_variables.py",
    ),
}


def run(version: str, part: str) -> dict[str, Any]:
    """Run a part of the tests that a version of PySpark holds, each module in a process."""
    began = time.monotonic()
    counts = counted([])
    for name in PARTS[part]:
        found = _run_tests(environment(version), f"tests/conformance/{name}")
        counts = {kind: counts[kind] + found[kind] for kind in counts}
    counts["seconds"] = round(time.monotonic() - began)
    counts["commit"] = measured_commit()
    print(version, part, counts, flush=True)  # noqa: T201
    return counts


def _run_tests(python: Path, path: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [
            python, "-m", "pytest", path, "-q", "-p", "no:cacheprovider", "-o", "addopts=",
            "--import-mode=importlib", f"--junitxml={report}",
        ]  # fmt: skip
        variables = {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)}
        subprocess.run(  # noqa: S603
            [*map(str, command)], cwd=ROOT, env={**os.environ, **variables}, check=False
        )
        if not report.exists():  # a test that hung has ended the run
            return {**counted([]), "failed": [f"{path}, which ended without a report"]}
        return counted(ET.parse(report).getroot().iter("testcase"))  # noqa: S314


def counted(cases: Iterable[ET.Element]) -> dict[str, Any]:
    """Return how many tests of a report passed, do not apply, or were skipped by PySpark."""
    counts: dict[str, Any] = {"passed": 0, "not_applying": 0, "skipped": 0, "failed": []}
    for case in cases:
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"].append(
                f"{str(case.get('classname')).split('.')[-1]}::{case.get('name')}"
            )
        elif skipped is None:
            counts["passed"] += 1
        else:
            is_listed = skipped.get("type") == "pytest.xfail"
            counts["not_applying" if is_listed else "skipped"] += 1
    return counts


def table(results: dict[str, Any]) -> str:
    """Return the counts and the list of tests that do not apply, as Markdown."""
    lines = [
        f"| PySpark | {' | '.join(PARTS)} | all | do not apply | skipped by PySpark | commits |",
        "|---" * (len(PARTS) + 5) + "|",
    ]
    for version in sorted(results):
        parts = results[version]
        cells = [_shown(parts.get(part)) for part in PARTS]
        sums = [
            sum(each[kind] for each in parts.values())
            for kind in ("passed", "not_applying", "skipped")
        ]
        commits = dict.fromkeys(f"`{parts[part]['commit']}`" for part in PARTS if part in parts)
        cells += [f"{sums[0]} pass", str(sums[1]), str(sums[2]), ", ".join(commits)]
        lines.append(f"| {version} | {' | '.join(cells)} |")
    failed = sorted(
        {
            (version, test)
            for version in results
            for each in results[version].values()
            for test in each["failed"]
        }
    )
    if failed:
        lines += ["", "These fail:", "", *(f"* {version}: `{test}`" for version, test in failed)]
    lines += ["", "| tests that do not apply, without `test_` | reason |", "|---|---|"]
    for entry in NOT_APPLYING:
        tests = ", ".join(name.replace("test_", "").replace("*", r"\*") for name in entry.tests)
        lines.append(f"| {tests} | {entry.reason} |")
    return "\n".join(lines) + "\n"


def count_line(results: dict[str, Any]) -> str:
    """Return the count of the newest version of PySpark, as README.md says it."""
    newest = max(results, key=lambda version: [int(part) for part in version.split(".")])
    parts = results[newest]
    passed, not_applying = (
        sum(each[kind] for each in parts.values()) for kind in ("passed", "not_applying")
    )
    not_run = [part for part in PARTS if part not in parts]
    rest = f"\nThe parts not counted yet: {', '.join(not_run)}." if not_run else ""
    return (
        f"Of PySpark {newest}'s own state tests {passed} pass and {not_applying} do not apply "
        f"([list and reasons](docs/conformance.md)).{rest}\n"
    )


def _shown(part: dict[str, Any] | None) -> str:
    if part is None:
        return "not run"
    if not part["passed"] and not part["failed"]:
        return "it has none"
    return f"{part['passed']}" + (f", {len(part['failed'])} fail" if part["failed"] else "")


def main() -> int:
    """Run versions; write their counts and the page."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--pyspark", nargs="+", default=VERSIONS)
    parser.add_argument("--parts", nargs="+", default=[*PARTS], choices=[*PARTS])
    parser.add_argument("--table", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    failed = False
    versions = () if arguments.table else arguments.pyspark
    for version, part in product(versions, arguments.parts):
        found = run(version, part)
        failed |= bool(found["failed"])
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results.setdefault(version, {})[part] = found
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    shown = table(json.loads(RESULTS.read_text()))
    PAGE.write_text(before + BEGIN + "\n" + shown + "\n" + END + rest.partition(END)[2])
    return failed


if __name__ == "__main__":
    sys.exit(main())
