"""What README and the docs ask a newcomer to type, on a machine with only Python, make and Java.

Nothing of the tests' environment is used: a clone of the checkout, an environment that the commands
of the pages make, and a process for each page, all in the order of the docs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.test_documentation import commands_after, python_blocks, shell_blocks

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
ELSEWHERE = ("PYSPARK_", "SPARK_", "PYTHON", "CKPT_", "PYTEST_", "VIRTUAL_ENV", "COVERAGE")
"""Variables of the tests that a newcomer does not have."""

PAGES = [
    page
    for folder in ("start", "tutorials")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    if python_blocks(page)
]
pytestmark = [pytest.mark.soak, pytest.mark.own_jvm, pytest.mark.timeout(1800)]


def typed(command: str, directory: Path, **variables: str) -> str:
    """Return what a command of a page prints."""
    here = str(Path(sys.executable).parent)
    paths = [path for path in os.environ["PATH"].split(os.pathsep) if path != here]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(ELSEWHERE)
    }
    environment |= {"PATH": os.pathsep.join(paths), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=directory,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fresh") / "pyspark_ckpt"
    subprocess.run(["git", "clone", "--quiet", ROOT, path], check=True)
    return path


def test_the_readme(checkout: Path, tmp_path: Path) -> None:
    """Two commands in a checkout, then the first program and what looks at it."""
    setup, activate = (line.split("#")[0].strip() for line in _first_block(README))
    typed(setup, checkout)
    activated = f"cd {checkout} && {activate} && cd {tmp_path}"
    (program,) = python_blocks(README)
    (tmp_path / "first.py").write_text(program)
    typed(f"{activated} && python first.py", tmp_path)
    for command in commands_after("python first.py\n", README):
        assert typed(f"{activated} && {command}", tmp_path)


def _first_block(page: Path) -> list[str]:
    return shell_blocks(page)[0].splitlines()


def test_an_environment_of_ones_own(checkout: Path, tmp_path: Path, zookeeper_address: str) -> None:
    """``pip install`` of the checkout, then each guide in a process, all in one directory."""
    venv.create(tmp_path / "own", with_pip=True)
    activated = f". {tmp_path}/own/bin/activate && export PYSPARK_PYTHON=$(which python)"
    typed(f"{activated} && pip install --quiet {checkout}", tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    for page in PAGES:
        for wanted in re.findall(r"`pip install ('[^`]+)`", page.read_text()):
            named = wanted.replace("pyspark_ckpt", str(checkout))
            typed(f"{activated} && pip install --quiet {named}", work)
        (work / "program.py").write_text("\n\n".join(python_blocks(page)))
        print(page.stem, flush=True)
        typed(f"{activated} && python program.py", work, ZOOKEEPER=zookeeper_address)
