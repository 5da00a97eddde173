"""CONTRIBUTING.md is right about the code: its folders, and the modules on each way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WAYS = {
    match[1]: re.findall(r"`([\w/]+\.py)`", match[2])
    for match in re.finditer(
        r"^\**(A [a-z ]+)[.:]\** ?((?:(?!\n\n)[\s\S])*→(?:(?!\n\n)[\s\S])*)", TEXT, re.MULTILINE
    )
}
PACKAGES = [ROOT / "pyspark_ckpt", ROOT / "state_backends"]
FOLDERS = sorted({path.parent for package in PACKAGES for path in package.rglob("*.py")})


def test_the_ways_are_found() -> None:
    assert {"A row", "A checkpoint", "A restore", "A savepoint", "A request"} <= set(WAYS)


@pytest.mark.parametrize("name", WAYS)
def test_a_way_enters_each_module_once(name: str) -> None:
    way = WAYS[name]
    assert len(way) >= 2
    assert len(set(way)) == len(way)


def test_every_module_and_folder_that_is_named_is_there() -> None:
    modules = re.findall(r"`([\w/]+\.py)`", TEXT)
    folders = re.findall(r"^\| `([\w/]+/)`", TEXT, re.MULTILINE)
    assert len(folders) > len(PACKAGES)
    for name in (*modules, *folders):
        assert any((place / name).exists() for place in (ROOT, ROOT / "pyspark_ckpt")), name


def test_every_folder_of_the_library_is_named() -> None:
    for folder in (ROOT / "pyspark_ckpt").iterdir():
        if (folder / "__init__.py").exists():
            assert f"`{folder.name}/" in TEXT, folder


@pytest.mark.parametrize("folder", FOLDERS, ids=[str(path.relative_to(ROOT)) for path in FOLDERS])
def test_a_folder_says_what_it_is_for(folder: Path) -> None:
    assert (folder / "__init__.py").read_text(encoding="utf-8").startswith('"""')
