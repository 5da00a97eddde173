"""What the pages name exists: files, tests, links, settings, commands, targets of make, classes."""

from __future__ import annotations

import argparse
import ast
import builtins
import re
from functools import cache
from pathlib import Path

import pyspark.errors
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.arguments import parser
from pyspark_ckpt.settings import KEYS, SETTINGS

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "docs", "docs/*", "benchmarks", "benchmarks/results", "tests/*")
PAGES = sorted({page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md")})
DESIGN = ROOT / "docs" / "design"
FILES_OF_USERS = {"first.py"}
ENDINGS = "py|sh|md|toml|cfg|conf|png|ipynb|properties"


def each_page() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)


def quoted(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


@cache
def paths() -> frozenset[str]:
    """Return the files and folders of the project, without what tools leave."""
    tops = [top for top in ROOT.iterdir() if not top.name.startswith((".", "build", "dist"))]
    below = [path for top in tops if top.is_dir() for path in top.rglob("*")]
    found = [*tops, *below, *(ROOT / ".ci").rglob("*")]
    return frozenset(str(path.relative_to(ROOT)) for path in found)


def is_there(name: str) -> bool:
    return any(path == name or path.endswith(f"/{name}") for path in paths())


@each_page()
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = [name for name in quoted(page) if re.fullmatch(rf"[\w./-]*\w\.({ENDINGS})", name)]
    missing = [name for name in named if not is_there(name)]
    assert set(missing) <= FILES_OF_USERS


@each_page()
def test_folders_and_modules_that_a_page_names_exist(page: Path) -> None:
    """Names such as `operator/table/` and `checkpoint/runner`; others have no slash."""
    named = [name.rstrip("/") for name in quoted(page) if re.fullmatch(r"[a-z_]+(/\w+)+/?", name)]
    known = {
        "shared",
        "taskowned",
        "requests",
        "releases",
        "sources",
        "state",
        "drivers",
        "offsets",
        "stores",
    }
    missing = [
        name
        for name in named
        if not is_there(name) and not is_there(f"{name}.py") and name.split("/")[0] not in known
    ]
    assert not missing


@each_page()
def test_tests_that_a_page_names_exist(page: Path) -> None:
    functions = set(re.findall(r"\btest_\w+\b(?!\.py)", prose(page)))
    assert functions <= defined_in_tests() | {path.stem for path in (ROOT / "tests").rglob("*.py")}


@cache
def defined_in_tests() -> frozenset[str]:
    return frozenset(
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )


@each_page()
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page()
def test_settings_that_a_page_names_exist(page: Path) -> None:
    # The internal ones are for pages on the design alone.
    keys = [*KEYS] if DESIGN in page.parents else [each.key for each in SETTINGS]
    for name in re.findall(r"\bspark\.ckpt\.[\w.-]*", page.read_text(encoding="utf-8")):
        is_start = name.endswith(".") and any(key.startswith(name) for key in keys)
        assert is_start or name in keys, name


@each_page()
def test_commands_and_targets_that_a_page_names_exist(page: Path) -> None:
    commands = next(
        action.choices
        for action in parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    options = {option for each in commands.values() for option in each._option_string_actions}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in quoted(page):
        for command in re.findall(r"^pyspark-ckpt ([a-z-]+)", name):
            assert command in commands, name
        for target in re.findall(r"^make ([a-z-]+)", name):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), name
    for line in page.read_text(encoding="utf-8").splitlines():
        if "pyspark-ckpt " in line and "spark-submit" not in line:
            assert set(re.findall(r"(?<![\w-])--[a-z-]+", line)) <= options, line


@each_page()
def test_public_names_and_errors_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\bckpt\.([a-z_]+\w*)(?:\.([A-Z]\w+))?", re.sub(r"spark\.ckpt", "", text))
    for name, member in named:
        assert name in ckpt.__all__, name
        assert not member or member in getattr(ckpt, name).__all__, f"{name}.{member}"
    assert {*re.findall(r"\bckpt\.([A-Z]\w+)", text)} <= {*ckpt.__all__}
    for name in quoted(page):
        if re.fullmatch(r"[A-Z]\w+(Error|Exception)s?", name):
            places = (ckpt.errors, builtins, pyspark.errors, *backend_errors())
            assert any(hasattr(place, name) for place in places), name


def backend_errors() -> tuple[object, ...]:
    import state_backends

    return (state_backends, state_backends.errors)


def test_the_index_lists_each_design_page_once() -> None:
    index = (DESIGN / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\* \[([^]]+)\]\((\w+\.md)\)", index, re.MULTILINE)
    pages = sorted(page for page in DESIGN.glob("*.md") if page.name != "README.md")
    assert sorted(name for _, name in listed) == [page.name for page in pages]
    for title, name in listed:
        assert (DESIGN / name).read_text(encoding="utf-8").startswith(f"# {title}\n"), name
