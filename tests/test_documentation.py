"""What the documentation asks a newcomer to do works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import nbformat
import pytest
from jupyter_client.manager import KernelManager

import pyspark_ckpt as ckpt
from tests.program_log import FORMAT, complaints
from tools import draw_speed

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def shell_blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands_after(first: str, page: Path) -> list[str]:
    """Return the commands of a page that follow one of its commands, up to the last block."""
    _, _, others = "".join(shell_blocks(page)).partition(first)
    return others.strip().splitlines()


def in_shell(command: str, directory: Path) -> str:
    """Run a command of a page, with the environment of the tests activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=directory, env=_environment() | {"PATH": path, "COLUMNS": "200"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def pages_with_programs() -> list[Any]:
    """Return the pages of the docs; two have an operation of every kind, which takes long."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    pages += [ROOT / "docs" / "start" / f"{name}.md" for name in ("from-pyspark", "recipes")]
    long = {"import", "editing"}
    return [pytest.param(p, marks=pytest.mark.soak) if p.stem in long else p for p in pages]


ABOUT = {"quarantine": "a key is quarantined, because"}
"""The warnings that a page shows how to get."""


def run_as_it_stands(program: str, directory: Path, about: str | None = None) -> str:
    """Run a program in a directory, with no conf key of the tests'; what works logs no error.

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
    assert " INFO " not in finished.stderr, "Spark's log is at level WARN, as PySpark sets it"
    wrong = [line for line in complaints(finished.stderr) if about is None or about not in line]
    assert not wrong, finished.stderr[-8000:]
    return finished.stdout


@pytest.mark.soak
@pytest.mark.own_jvm
def test_the_first_job_counts_in_every_run(tmp_path: Path) -> None:
    page = ROOT / "docs" / "start" / "first-job.md"
    (program,) = python_blocks(page)
    for ada, bob in ((4, 2), (8, 4)):
        output = run_as_it_stands(program, tmp_path)
        shown = [
            tuple(cell.strip() for cell in line.strip("|").split("|"))
            for line in output.splitlines()
            if re.match(r"\| *(ada|bob)", line)
        ]
        assert sorted(shown) == [("ada", str(ada)), ("bob", str(bob))]
    for command in commands_after("python first.py\n", page):
        assert in_shell(command, tmp_path)


@pytest.mark.slow
@pytest.mark.own_jvm
def test_the_program_and_the_commands_of_the_readme_run_as_they_stand(tmp_path: Path) -> None:
    """The commands look at what the program leaves."""
    readme = ROOT / "README.md"
    (program,) = python_blocks(readme)
    run_as_it_stands(program, tmp_path)
    commands = commands_after("python first.py\n", readme)
    assert len(commands) == 3
    shown = [in_shell(command, tmp_path) for command in commands]
    assert re.search(r"user 0\D+4\b", shown[0])
    assert re.search(r"user 1\D+3\b", shown[0])
    assert "user 1" not in shown[1]
    assert "savepoint-" in shown[2]


@pytest.mark.external
@pytest.mark.own_jvm
def test_the_program_of_the_readme_runs_over_connect_as_it_does_classic(tmp_path: Path) -> None:
    """Both logs are checked; its own server ends with it, and nobody warns of that."""
    (program,) = python_blocks(ROOT / "README.md")
    remote = program.replace('.master("local[2]")', '.remote("local[2]")')
    assert remote != program
    run_as_it_stands(remote, tmp_path)


def test_the_readme_names_factors_that_the_results_have() -> None:
    least, most = re.search(
        r"\*\*Fast\.\*\* (\d+) to (\d+) times", (ROOT / "README.md").read_text()
    ).groups()
    factors = draw_speed.factors().values()
    assert (int(least), int(most)) == (round(min(factors)), round(max(factors)))


@pytest.mark.soak_variants
@pytest.mark.own_jvm
@pytest.mark.parametrize("page", pages_with_programs(), ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    run_as_it_stands("\n\n".join(python_blocks(page)), tmp_path, ABOUT.get(page.stem))


@pytest.mark.parametrize("name", ["rocksdb", "heap"])
def test_conf_files_are_valid_and_set_the_backend_they_are_named_after(name: str) -> None:
    """They are checked as ``read_conf_file`` reads them."""
    values = ckpt.read_conf_file(ROOT / "conf" / f"{name}.conf")
    assert values["spark.ckpt.state.backend.type"] == name


@pytest.mark.soak
@pytest.mark.own_jvm
def test_the_main_job_runs_on_two_weeks_of_flights_and_ends_with_the_console(
    tmp_path: Path,
) -> None:
    """``make demo``, shortened; exits with 0 only if both results equal plain pandas."""
    command = [sys.executable, "-m", "examples.flights", "--weeks", "2", "--console"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=_environment() | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if address := re.search(r"http://127\.0\.0\.1:\d+/\S*", line):
                with urlopen(address[0], timeout=60) as page:
                    assert "demo-output" in page.read().decode()
                os.killpg(process.pid, signal.SIGINT)
        exit_code = process.wait(60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    shown = "".join(lines)
    assert exit_code == 0, shown[-4000:]
    opening, _, _ = shown.partition("checkpoint")
    assert "A year of flights" in opening
    assert "Rows per second" in shown


@pytest.mark.own_jvm
@pytest.mark.external
def test_the_main_job_beside_the_operator_of_pyspark(tmp_path: Path) -> None:
    """It exits with 0 only if all three results equal plain pandas."""
    finished = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--weeks", "20", "--compare"],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
    assert "OK: all results equal plain pandas" in finished.stdout


@pytest.mark.own_jvm
@pytest.mark.external
def test_the_kafka_job_runs(tmp_path: Path) -> None:
    """It exits with 0 only if each event was counted exactly once."""
    finished = subprocess.run(
        [sys.executable, "-m", "examples.kafka"],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_small_outputs(notebook: Path) -> None:
    """Stored by ``pytest --overwrite notebooks``; nbmake runs the cells, in their own kernels."""
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
    return {**os.environ, "PYTHONPATH": f"{FORMAT}{os.pathsep}{ROOT}"}
