"""The small examples run, and each finds in its result what plain Python computes."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from tests.by_value import pickled_by_value
from tests.program_log import FORMAT, complaints
from tests.servers.postgres import postgres_server

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")
POSTGRES = "to_postgres"
MOST_LINES = 120


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def module(path: Path) -> ModuleType:
    return importlib.import_module(f"examples.{path.stem}")


def test_there_are_nine_short_examples() -> None:
    assert len(EXAMPLES) == 9
    assert max(path.read_text().count("\n") for path in EXAMPLES) < MOST_LINES


@pytest.mark.soak
@each([path for path in EXAMPLES[::-1] if path.stem != POSTGRES])  # the first is short
def test_an_example_equals_plain_python(
    path: Path, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each one compares each row; the last line says so."""
    example = module(path)
    with pickled_by_value(example):
        example.run(spark, tmp_path)
    assert capsys.readouterr().out.splitlines()[-1].startswith("OK: ")


@pytest.mark.soak
def test_the_example_of_postgresql_skips_the_repeated_epoch(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = importlib.import_module(f"examples.{POSTGRES}")
    with postgres_server() as address, pickled_by_value(example):
        example.run(spark, tmp_path, address)
    output = capsys.readouterr().out
    assert re.search(r"^epoch 1 is already there: [1-9][\d,]* rows skipped$", output, re.MULTILINE)
    assert output.splitlines()[-1].startswith("OK: ")


@pytest.mark.soak
@pytest.mark.own_jvm
@each([ROOT / "examples" / "top_n.py"])
def test_an_example_runs_as_a_program(path: Path, tmp_path: Path) -> None:
    run_as_a_program(path, tmp_path)


@pytest.mark.own_jvm
@pytest.mark.external
@each([path for path in EXAMPLES if path.stem not in (POSTGRES, "top_n")])
def test_each_other_example_runs_as_a_program(path: Path, tmp_path: Path) -> None:
    run_as_a_program(path, tmp_path)


@pytest.mark.own_jvm
@pytest.mark.external
def test_the_example_of_postgresql_runs_as_a_program(tmp_path: Path) -> None:
    with postgres_server() as address:
        run_as_a_program(ROOT / "examples" / f"{POSTGRES}.py", tmp_path, address)


def run_as_a_program(path: Path, directory: Path, *arguments: str) -> None:
    """Run it from another directory, as a user does who only has the file; it logs no error."""
    finished = subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=directory, env={**os.environ, "PYTHONPATH": str(FORMAT)}, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
    fails = path.stem == POSTGRES  # once, at the worst moment
    assert fails or not complaints(finished.stderr), finished.stderr[-8000:]
    assert finished.stdout.splitlines()[-1].startswith("OK: ")
