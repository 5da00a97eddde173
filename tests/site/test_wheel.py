"""The wheel is ready to be uploaded, and runs the first program of its own README by itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHERS = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "tests", "benchmarks")


def run(*command: object, cwd: Path, **more: str) -> str:
    """Run a command that knows nothing of this checkout; return what it prints."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=known | more, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.soak
@pytest.mark.own_jvm
def test_the_wheel_alone_runs_the_first_program_of_its_readme(tmp_path: Path) -> None:
    source, built, place = tmp_path / "source", tmp_path / "built", tmp_path / "program"
    shutil.copytree(ROOT, source, ignore=OTHERS)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", built, ".", cwd=source)
    (wheel,) = built.iterdir()
    run(sys.executable, "-m", "venv", tmp_path / "new", cwd=tmp_path)
    python = tmp_path / "new" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", f"{wheel}[spark]", "twine", cwd=tmp_path)
    assert "PASSED" in run(python, "-m", "twine", "check", "--strict", wheel, cwd=tmp_path)
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        text = files.read(metadata).decode()
    (program, *_) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    place.mkdir()
    (place / "first.py").write_text(program)
    printed = run(python, "first.py", cwd=place, PYSPARK_PYTHON=str(python))
    counts = dict(re.findall(r"(user \d)  (\d)", printed))
    assert counts == {"user 0": "4", "user 1": "3", "user 2": "3"}
    command = tmp_path / "new" / "bin" / "pyspark-ckpt"
    shown = run(command, "state", "location", "--state", "count", "--key", "user 0", cwd=place)
    assert re.search(r"user 0 +4", shown)
