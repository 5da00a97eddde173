"""An import without PySpark, or with one that is too old, says what to do in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ckpt.required_pyspark import OLDEST

ROOT = Path(__file__).parents[2]
STARTS = {
    "a program": ["-c", "import pyspark_ckpt"],
    "the command line": ["-m", "pyspark_ckpt", "--version"],
    "a worker's module": ["-c", "import pyspark_ckpt.operator.run"],
}


def error_of(place: Path, start: list[str]) -> str:
    """Return the last line that a Python prints which finds its PySpark at a place first."""
    done = subprocess.run(
        [sys.executable, *start],
        env={"PYTHONPATH": f"{place}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_without_pyspark(tmp_path: Path, start: list[str]) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\")")
    said = error_of(tmp_path, start)
    assert said.startswith("ImportError: pyspark_ckpt needs PySpark 4.0 or newer, and this Python")
    assert "has none (No module named 'pyspark')" in said
    assert said.endswith(
        "use the Python of a cluster with Spark 4, or run pip install "
        "'pyspark_ckpt[spark]' where Spark is not installed"
    )


@pytest.mark.parametrize("version", ["3.5.6", "3.5", "2.4.8.dev0"])
def test_with_an_older_one(tmp_path: Path, version: str) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text(f"__version__ = {version!r}")
    said = error_of(tmp_path, STARTS["a program"])
    assert f"has {version}: use the Python of a cluster with Spark 4" in said


def test_the_extra_installs_what_the_import_needs() -> None:
    setup = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    wanted = f"pyspark>={'.'.join(map(str, OLDEST))},<5"
    required, extras = setup.split("[options.extras_require]")
    assert "pyspark>=" not in required
    for extra in ("spark", "demo", "dev"):
        lines = extras.split(f"\n{extra} =\n")[1].split("\n\n")[0]
        assert wanted in lines.split(" =\n")[0]
