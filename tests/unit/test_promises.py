"""The page of promises names tests that exist, and the table of the lines of safety."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tools import mutate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text()
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
IN_EACH_RUN = sorted({
    name
    for row in ROWS
    if row[-1].startswith("each run of `make test`")
    for name in re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)", row[1])
})  # fmt: skip
LEFT_OUT = re.compile(r"\bmark\.(slow|soak|external)\b")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)", PAGE)))


def test_every_promise_names_a_test() -> None:
    rows = PAGE.partition("|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert len(rows) >= 10
    assert [row for row in rows if "`tests/" not in row] == []


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    source = (ROOT / path).read_text()
    assert (
        f"def {function}(" in source
        if function
        else re.search(r"\btest_|TestCase|Contract", source)
    )


@pytest.mark.parametrize("name", IN_EACH_RUN)
def test_what_each_run_of_make_test_shows_is_run_by_it(name: str) -> None:
    path, _, function = name.partition("::")
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text())))
    of_all = [
        each.value
        for each in nodes
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
    ]
    marks = [
        [*of_all, *each.decorator_list]
        for each in nodes
        if isinstance(each, ast.FunctionDef) and each.name.startswith(function or "test_")
    ]
    assert not marks or any(not LEFT_OUT.search(" ".join(map(ast.unparse, of))) for of in marks)


def test_the_page_has_the_table_of_the_lines_of_safety() -> None:
    assert PAGE.rstrip().endswith(mutate.table()), "append `python -m tools.mutate --table`"


@pytest.mark.parametrize("mutation", mutate.MUTATIONS, ids=lambda each: each.name)
def test_a_line_of_safety_is_where_the_table_says(mutation: mutate.Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.line) == 1
    for each in mutation.test.split():
        if each.startswith("tests/"):
            assert (ROOT / each.partition("::")[0]).exists()


@pytest.mark.parametrize("row", mutate.results().values(), ids=lambda each: each["line"])
def test_a_changed_line_was_found_by_the_test_that_is_named(row: dict[str, Any]) -> None:
    (mutation,) = (each for each in mutate.MUTATIONS if each.name == row["line"])
    assert (row["file"], row["tests"]) == (mutation.file, mutation.test), (
        "run `make prove WHAT=mutate`"
    )
    assert row["is_found"]
