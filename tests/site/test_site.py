"""The site has every public name, command and reason; its links and pictures are whole."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from pyspark_ckpt.abort_reason import AbortReason
from tools import draw_speed, write_reference
from tools.check_site import problems

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
API = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")


MODULES = {"agg", "errors", "results", "testing", "typing"}
"""Parts of the package with public names of their own."""


@pytest.mark.parametrize(
    "name", ["pyspark_ckpt", *(f"pyspark_ckpt.{name}" for name in sorted(MODULES))]
)
def test_the_reference_has_each_public_name_once(name: str) -> None:
    exported = set(importlib.import_module(name).__all__) - {"__version__"}
    listed = re.findall(rf"^\.\. auto\w+:: {re.escape(name)}\.(\w+)$", API, re.M)
    assert len(listed) == len(set(listed))
    assert set(listed) - MODULES == exported - MODULES


def test_the_pages_that_come_from_code_are_current() -> None:
    """Run ``make pages`` after a change of commands, reasons or errors."""
    assert write_reference.CLI.read_text() == write_reference.cli_page()
    assert write_reference.FAILURES.read_text() == write_reference.failures_page()


@pytest.mark.parametrize("reason", AbortReason)
def test_each_reason_says_what_happened_and_what_to_do(reason: AbortReason) -> None:
    assert reason.meaning.endswith(".")
    assert reason.advice.endswith(".")
    assert reason.meaning in write_reference.failures_page()


def test_the_table_of_contents_names_each_page_once() -> None:
    """Add a new page to a list in ``docs/index.md``."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    names = [
        line
        for block in re.findall(r"^:::\{toctree\}\n(.*?)^:::", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    listed = [path.resolve() for name in names for path in DOCS.glob(f"{name}.md")]
    assert len(listed) == len(set(listed)) >= len(names)
    folders = (".", "start", "tutorials", "operate", "reference")
    pages = {page for folder in folders for page in (DOCS / folder).glob("*.md")}
    assert {page.resolve() for page in pages} - set(listed) == {(DOCS / "index.md").resolve()}


@pytest.mark.parametrize("path", sorted(DOCS.glob("pictures/*.svg")), ids=lambda path: path.stem)
def test_a_picture_is_whole_and_loads_nothing(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    allowed = "http://www.w3.org/2000/svg"
    assert set(re.findall(r"https?://[^\"]+", path.read_text())) == {allowed}


def test_the_plot_of_the_speed_is_drawn_from_the_results(tmp_path: Path) -> None:
    """Run ``make pages`` after new results."""
    draw_speed.draw(tmp_path / "speed.png")
    assert imread(tmp_path / "speed.png").shape == imread(draw_speed.PICTURE).shape
    assert min(draw_speed.factors().values()) > 1


def test_the_check_of_a_site_finds_what_is_wrong(tmp_path: Path) -> None:
    pages = {
        "docs/index.html": '<a href="other.html#here"></a><a href="other.html#there"></a>'
        '<img src="none.png"><script src="https://somewhere/x.js"></script>',
        "docs/other.html": '<p id="here"></p><a href="https://somewhere/"></a>',
        "docs/alone.html": "",
    }
    for name, text in pages.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert problems(tmp_path) == [
        "docs/index.html loads https://somewhere/x.js from elsewhere",
        "docs/index.html: none.png leads nowhere",
        "docs/index.html: other.html#there has no such place",
        "no link leads to docs/alone.html",
    ]


@pytest.mark.external
def test_the_site_is_built_without_warnings_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    """``make docs``; a whole build takes half a minute."""
    build = [
        sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html",
        "-c", str(DOCS), str(ROOT), str(tmp_path / "site"),
    ]  # fmt: skip
    done = subprocess.run(build, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert problems(tmp_path / "site") == []
