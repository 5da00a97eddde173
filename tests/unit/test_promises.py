"""The page of promises names tests that exist, and the table of the lines of safety."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tools import mutate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text()
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
    assert (row["file"], row["tests"]) == (mutation.file, mutation.test), "run `make mutate`"
    assert row["is_found"]
