"""What the documentation asks a newcomer to do works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager

import pyspark_ckpt as ckpt

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def run_as_it_stands(program: str, directory: Path) -> str:
    """Run a program in a directory, with no conf key of the tests'.

    Its JVM has the options of all JVMs of the tests, with which it starts in half the time.
    """
    (directory / "program.py").write_text(program)
    environment = _environment()
    submitted = environment.pop("PYSPARK_SUBMIT_ARGS", "")
    if class_path := re.search(r"--driver-class-path \S+", submitted):
        environment["PYSPARK_SUBMIT_ARGS"] = f"{class_path[0]} pyspark-shell"
    finished = subprocess.run(
        [sys.executable, "program.py"],
        cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
    return finished.stdout


@pytest.mark.own_jvm
def test_the_first_example_of_the_readme_counts_in_every_run(tmp_path: Path) -> None:
    for ada, bob in ((4, 2), (8, 4)):
        output = run_as_it_stands(python_blocks(ROOT / "README.md")[0], tmp_path)
        shown = [
            tuple(cell.strip() for cell in line.strip("|").split("|"))
            for line in output.splitlines()
            if re.match(r"\| *(ada|bob)", line)
        ]
        assert sorted(shown) == [("ada", str(ada)), ("bob", str(bob))]


def test_the_other_examples_of_the_readme_run_as_they_stand() -> None:
    """They continue the processor of the first; their assertions are the test."""
    first, *others = python_blocks(ROOT / "README.md")
    processor, _, _ = first.partition("\n\nspark = ")
    assert any("assert" in other for other in others)
    names: dict[str, object] = {}
    for block in (processor, *others):
        exec(compile(block, "README.md", "exec"), names)


@pytest.mark.own_jvm
@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    run_as_it_stands("\n\n".join(python_blocks(page)), tmp_path)


@pytest.mark.parametrize("name", ["rocksdb", "heap"])
def test_conf_files_are_valid_and_set_the_backend_they_are_named_after(name: str) -> None:
    """They are checked as ``read_conf_file`` reads them."""
    values = ckpt.read_conf_file(ROOT / "conf" / f"{name}.conf")
    assert values["spark.ckpt.state.backend.type"] == name


@pytest.mark.own_jvm
def test_the_main_job_runs_on_two_weeks_of_flights(tmp_path: Path) -> None:
    """``make demo``, shortened; exits with 0 only if both results equal plain pandas."""
    finished = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--weeks", "2"],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]


@pytest.mark.own_jvm
@pytest.mark.reach
def test_the_kafka_job_runs(tmp_path: Path) -> None:
    """It exits with 0 only if each event was counted exactly once."""
    finished = subprocess.run(
        [sys.executable, "-m", "examples.kafka"],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_small_outputs(notebook: Path) -> None:
    """Stored by ``make notebooks``; nbmake runs the cells, in kernels of their own."""
    assert notebook.stat().st_size < 150_000
    cells = nbformat.read(notebook, as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    for output in outputs:
        assert output.get("name") != "stderr"
        texts = [output.get("text", ""), *output.get("data", {}).values()]
        assert not any(re.search(r"(file:|/tmp/|/home/|/Users/)", str(text)) for text in texts)


def test_notebooks_run_in_this_environment() -> None:
    """Notebooks use this Python, whatever kernels the user has installed elsewhere."""
    manager = KernelManager(kernel_name="python3")
    assert manager.format_kernel_cmd()[0] == sys.executable


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
