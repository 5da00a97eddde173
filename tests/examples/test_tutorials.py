"""The programs of the guides run as they stand, one page after the other in one directory."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.test_documentation import python_blocks, run_as_it_stands

ROOT = Path(__file__).parents[2]
FOLDERS = ("start", "tutorials", "operate")
OF_THEIR_OWN = {"first-job", "8-s3-and-two-drivers"}
PAGES = [
    page
    for folder in FOLDERS
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    if python_blocks(page) and page.stem not in OF_THEIR_OWN
]
# Each page has its own names, and shares the session and the directory with those before it.
ALL_PAGES = """
import json, traceback
for page, blocks in json.load(open("pages.json")).items():
    names = {"__name__": "__main__"}
    for number, block in enumerate(blocks, 1):
        try:
            exec(compile(block, f"{page}, block {number}", "exec"), names)
        except BaseException:
            traceback.print_exc()
            raise SystemExit(f"{page}, block {number}:\\n{block}")
    print("ran", page)
"""


@pytest.mark.own_jvm
@pytest.mark.soak
def test_the_guides_run_as_they_stand(tmp_path: Path) -> None:
    blocks = {page.stem: python_blocks(page) for page in PAGES}
    assert len(blocks) >= 7
    (tmp_path / "pages.json").write_text(json.dumps(blocks))
    output = run_as_it_stands(ALL_PAGES, tmp_path)
    assert [line for line in output.splitlines() if line.startswith("ran ")] == [
        f"ran {name}" for name in blocks
    ]


@pytest.mark.own_jvm
@pytest.mark.soak
def test_the_tutorial_of_s3_runs_beside_a_zookeeper(
    zookeeper_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "tutorials" / "8-s3-and-two-drivers.md"
    monkeypatch.setenv("ZOOKEEPER", zookeeper_address)
    run_as_it_stands("\n\n".join(python_blocks(page)), tmp_path)


def test_each_tutorial_leads_to_the_next() -> None:
    pages = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    assert len(pages) == 9
    for page, following in pairwise(pages):
        last = page.read_text().splitlines()[-1]
        assert last.startswith("Next: ")
        assert f"]({following.name})" in last
