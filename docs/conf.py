"""How Sphinx builds the site: `make docs`. Its sources are pages of the whole project."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from pyspark_ckpt.version import __version__  # noqa: E402

project = "pyspark_ckpt"
author = "the contributors"
version = release = __version__
copyright = "the contributors, Apache-2.0"  # noqa: A001

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/**.md", "tests/faults/README.md", "*.md"]
exclude_patterns = [".*", "build", "dist", "demo-output", "pyspark_ckpt", "state_backends"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Pages that no table of contents lists are linked from others; a test follows the links to all.
suppress_warnings = ["toc.not_included"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name the types
autodoc_inherit_docstrings = False
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"pyspark_ckpt {__version__}"
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None
html_theme_options = {"top_of_page_buttons": []}

_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def _without_links_to_folders(_: Sphinx, docname: str, source: list[str]) -> None:
    """Let links to folders and to programs lead to what the site has of them, or be text."""
    folder = (ROOT / docname).parent

    def target(link: re.Match[str]) -> str:
        linked = Path(os.path.normpath(folder / link[1]))
        if linked == ROOT / "benchmarks" / "results":
            return os.path.relpath(ROOT / "docs" / "benchmarks.md", folder)
        return link[0]

    source[0] = _LINK.sub(target, source[0])


def _without_headings(_: Sphinx, what: str, *others: Any) -> None:
    """Show "Examples" of a module as text, because a page has one heading of a name."""
    lines: list[str] = others[-1]
    if what == "module" and "Examples" in lines:
        at = lines.index("Examples")
        lines[at : at + 2] = ["**Examples**", ""]


def setup(app: Sphinx) -> None:
    """Register what this file adds to Sphinx."""
    app.connect("autodoc-process-docstring", _without_headings, priority=1)
    app.connect("source-read", _without_links_to_folders)
