"""The list of faults: every test that it names exists and says which fault it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS / "faults" / "README.md"
ROWS = re.findall(r"^\| (\d+) \|.*\| (`.*`) \|$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("number", "where"), ROWS, ids=[number for number, _ in ROWS])
def test_a_fault_of_the_list_is_tested_where_it_says(number: str, where: str) -> None:
    for place, name in re.findall(r"`([\w/]+)::(\w+)`", where):
        directory, _, file = place.rpartition("/")
        (path,) = (TESTS / (directory or "unit")).rglob(f"test_{file}.py")
        tree = ast.parse(path.read_text())
        docstrings = [
            ast.get_docstring(node) or ""
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        assert len(docstrings) == 1, f"{path}: {name}"
        said = docstrings[0]
        if not said.startswith("Scenario"):
            said = ast.get_docstring(tree) or ""
        numbers = re.match(r".*?[Ss]cenarios? ([\d, toand]+)", said, re.DOTALL)
        assert numbers, f"{path}: {name} does not say which fault it is"
        assert int(number) in _numbers(numbers[1]), f"{path}: {name}"


def test_all_faults_are_in_the_list() -> None:
    assert [int(number) for number, _ in ROWS] == [*range(1, 18), 20, *range(22, 47), 50]


def _numbers(text: str) -> set[int]:
    """Read a text such as ``1 to 6 and 9``."""
    found = {int(number) for number in re.findall(r"\d+", text)}
    for first, last in re.findall(r"(\d+) to (\d+)", text):
        found.update(range(int(first), int(last) + 1))
    return found
