"""What else a program of the documentation needs is said where a reader begins."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMES_ALONG = {
    *sys.stdlib_module_names,
    "benchmarks",
    "examples",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "pyspark_ckpt",
    "py4j",
    "rich",
}
"""What every environment of this library has."""

PACKAGES = {"boto3": "moto", "confluent_kafka": "confluent-kafka", "IPython": "ipython"}
"""The packages that bring modules of another name."""


def imported(code: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module).partition(".")[0])
    return names - COMES_ALONG


def of_notebook(path: Path) -> tuple[str, str]:
    """Return the text of a notebook's first cell, and its code with that of the job it imports."""
    first, *cells = json.loads(path.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    if any("examples.flights" in each for each in code):
        code += [(ROOT / "examples/flights/data.py").read_text()]
    return "".join(first["source"]), "\n".join(code)


def of_example(path: Path) -> tuple[str, str]:
    """Return the docstring of an example or of its package, and its code."""
    if path.is_dir():
        code = "\n".join(each.read_text() for each in sorted(path.glob("*.py")))
        return (path / "__init__.py").read_text(), code.replace("from __future__", "#")
    code = path.read_text()
    return str(ast.get_docstring(ast.parse(code))), code


def of_page(path: Path) -> tuple[str, str]:
    """Return a page without its programs, and its programs."""
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    text = re.sub(r"^```python\n.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return text, "\n".join(blocks)


PROGRAMS = [
    *(of_notebook(each) for each in sorted(ROOT.glob("notebooks/*.ipynb"))),
    *(of_example(each) for each in sorted(ROOT.glob("examples/[a-z]*.py"))),
    *(of_example(ROOT / "examples" / name) for name in ("flights", "kafka")),
    *(of_page(each) for each in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))),
]


@pytest.mark.parametrize(
    ("text", "code"), [each for each in PROGRAMS if imported(each[1])], ids=lambda each: each[:30]
)
def test_a_program_names_the_packages_that_it_needs(text: str, code: str) -> None:
    needed = {PACKAGES.get(name, name) for name in imported(code)}
    assert "install" in text, f"nobody says how to install {sorted(needed)}"
    assert not {name for name in needed if name not in text}


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda each: each.stem)
def test_a_notebook_says_what_it_needs(path: Path) -> None:
    text, _ = of_notebook(path)
    assert "pip install" in text
    assert "Java 17" in text
