"""What an index of packages shows of the README: no pictures and links that only a checkout has."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
_description = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["description"]


def test_pictures_and_links_into_the_project_are_left_out() -> None:
    readme = "![Speed](results/w1.png)\n\nSee [restore](docs/restore.md#plan), [Spark](https://a.org/b).\n"
    assert _description(readme) == "See restore, [Spark](https://a.org/b).\n"


def test_the_readme_has_neither_on_an_index() -> None:
    shown = _description((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "](docs/" not in shown
    assert "![" not in shown
    assert "savepoint" in shown
