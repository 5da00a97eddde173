"""The pages about versions show what was run; the lowest packages are those that are allowed."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.machine.properties import describe_host
from tools import conformance, matrix
from tools.environments import NoEnvironmentError, interpreter_of, requirements
from tools.measured_commit import measured_commit

REPORT = """
<testsuites><testsuite>
  <testcase classname="a.B" name="passes"/>
  <testcase classname="a.B" name="listed"><skipped type="pytest.xfail" message="why"/></testcase>
  <testcase classname="a.B" name="flaky"><skipped type="pytest.skip" message="CI"/></testcase>
  <testcase classname="a.B" name="wrong"><failure message="m"/></testcase>
  <testcase classname="a.B" name="broken"><error message="m"/></testcase>
</testsuite></testsuites>
"""


@pytest.mark.parametrize("tool", [matrix, conformance], ids=["matrix", "conformance"])
def test_a_page_has_the_table_of_its_results(tool: Any) -> None:
    results = json.loads(tool.RESULTS.read_text())
    assert tool.table(results) in tool.PAGE.read_text(), f"python -m {tool.__name__} --table"


_COMMIT = re.compile(r"[0-9a-f]{7,12}( with changes)?")


def results_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what was measured at once, as each tool writes it."""
    results = json.loads(path.read_text())
    if path.parent.name == "conformance":
        yield from (part for parts in results.values() for part in parts.values())
    elif path.parent.name == "matrix":
        yield from results.values()
    elif isinstance(results, list):
        yield from results
    else:
        yield results.get("machine", results)


def test_whatever_is_published_as_measured_says_at_which_commit() -> None:
    root = conformance.ROOT
    files = [*root.glob("tests/*/results.json"), *root.glob("benchmarks/results/*.json")]
    assert len(files) > 30
    for path in files:
        for measured in results_of(path):
            assert _COMMIT.fullmatch(measured["commit"]), path
    pages = [*root.glob("benchmarks/results/*.md")]
    assert len(pages) > 30
    for page in pages:
        assert re.search(rf"commit:? `?{_COMMIT.pattern}", page.read_text()), page


def test_the_commit_of_a_benchmark_is_that_of_the_code() -> None:
    assert describe_host()["commit"] == measured_commit()
    assert _COMMIT.fullmatch(measured_commit())


def test_the_readme_has_the_count_of_conformance() -> None:
    line = conformance.count_line(json.loads(conformance.RESULTS.read_text()))
    assert line in (conformance.ROOT / "README.md").read_text()


def test_the_lowest_packages_are_the_lowest_that_are_allowed() -> None:
    for requirement in requirements():
        found = re.match(r"(\w+)>=([\d.]+)", requirement)
        assert found is not None
        name, bound = found.groups()
        assert f"{matrix.LOWEST[name]}.".startswith(f"{bound}."), requirement
    assert len(matrix.LOWEST) == len(requirements())


def test_each_row_has_a_name_of_its_own() -> None:
    assert len({row.name for row in matrix.ROWS}) == len(matrix.ROWS)


def test_what_a_report_says_is_counted() -> None:
    counts = conformance.counted(ET.fromstring(REPORT).iter("testcase"))
    failed = ["B::wrong", "B::broken"]
    assert counts == {"passed": 1, "not_applying": 1, "skipped": 1, "failed": failed}
    again = matrix._counted(ET.fromstring(REPORT))
    assert again == {"passed": 1, "skipped": 2, "failed": ["a.B::wrong", "a.B::broken"]}


def test_a_table_shows_failures_and_what_cannot_be_had() -> None:
    part = {"passed": 3, "skipped": 0, "failed": []}
    packages = dict.fromkeys(matrix.SHOWN, "1")
    at = {"commit": "abc1234"}
    failing = {"packages": packages, "unit": part, "queries": {**part, "failed": ["a"]}, **at}
    failing["demo"] = "fails"
    refused = {"refused": "pip said:\n| much |", **at}
    shown = matrix.table({matrix.ROWS[0].name: failing, matrix.ROWS[1].name: refused})
    assert "3 pass | 3 pass, 1 fail | fails | `abc1234` |" in shown
    assert "not run: could not be installed |" in shown
    assert "pip said" not in shown
    counts = {**part, "not_applying": 2, "failed": ["B::x"], **at}
    page = conformance.table({"4.9": {"operator": counts, "harness": {**counts, **at}}})
    assert "| 4.9 | 3, 1 fail | not run | not run | 3, 1 fail | not run | 6 pass | 4 | 0 | " in page
    assert "| 0 | `abc1234` |" in page
    assert "* 4.9: `B::x`" in page


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(NoEnvironmentError, match=r"no Python 3\.99"):
        interpreter_of("3.99")
