"""Python workers that do not find the library are refused before anything begins."""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from tests.query.harness import Job, refused
from tests.query.model import events_of, expected


@pytest.fixture
def workers_python(job: Job) -> Iterator[Path]:
    """Return the path of the program that Spark's workers run; the test writes it."""
    context = job.spark.sparkContext
    before, program = context.pythonExec, job.base / "bin" / "python"
    program.parent.mkdir()
    context.pythonExec = str(program)
    yield program
    context.pythonExec = before


def test_an_environment_without_the_library(job: Job, workers_python: Path) -> None:
    job.feed.add(events_of(0))
    venv.create(job.base / "bare", symlinks=True)
    job.spark.sparkContext.pythonExec = str(job.base / "bare" / "bin" / "python")
    with refused(
        ckpt.ConfigurationError, "PYSPARK_PYTHON", "No module named", sys.executable,
        unchanged=job.base / "in",
    ):  # fmt: skip
        job.run()
    assert not job.location_path.exists()


def test_no_such_program(job: Job, workers_python: Path) -> None:
    with refused(ckpt.ConfigurationError, workers_python, "PYSPARK_PYTHON", unchanged=job.base):
        job.run()


def test_the_same_environment_by_another_name(job: Job, workers_python: Path) -> None:
    job.feed.add(events_of(0))
    workers_python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    workers_python.chmod(0o755)
    job.run()
    assert job.result() == expected(job.feed.rows)
