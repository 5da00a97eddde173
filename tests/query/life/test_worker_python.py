"""Python workers that do not find the library are refused before anything begins."""

from __future__ import annotations

import logging
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.spark.worker_python import LEAST_WORKER_MIB
from tests.query.harness import CHECKPOINT_DIR, Job, refused
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


@pytest.mark.slow
def test_an_environment_without_the_library(job: Job, workers_python: Path) -> None:
    job.feed.add(events_of(0))
    venv.create(job.base / "bare", symlinks=True)
    job.spark.sparkContext.pythonExec = str(job.base / "bare" / "bin" / "python")
    with refused(
        ckpt.errors.ConfigurationError, "PYSPARK_PYTHON", "No module named", sys.executable,
        unchanged=job.base / "in",
    ):  # fmt: skip
        job.run()
    assert not job.location_path.exists()


def test_no_such_program(job: Job, workers_python: Path) -> None:
    with refused(
        ckpt.errors.ConfigurationError, workers_python, "PYSPARK_PYTHON", unchanged=job.base
    ):
        job.run()


@pytest.mark.soak
def test_the_same_environment_by_another_name(job: Job, workers_python: Path) -> None:
    job.feed.add(events_of(0))
    workers_python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    workers_python.chmod(0o755)
    job.run()
    assert job.result() == expected(job.feed.rows)


@pytest.mark.soak
def test_an_executor_without_the_library_of_the_storage(
    job: Job, workers_python: Path, s3_url: str
) -> None:
    """The driver has it. The error of the task says what executors do there, and both ways out."""
    job.feed.add(events_of(0))
    (job.base / "lacks" / "s3fs").mkdir(parents=True)
    (job.base / "lacks" / "s3fs" / "__init__.py").write_text("raise ImportError('no s3fs here')")
    workers_python.write_text(
        f'#!/bin/sh\nPYTHONPATH={job.base}/lacks:$PYTHONPATH exec {sys.executable} "$@"\n'
    )
    workers_python.chmod(0o755)
    query = job.using({CHECKPOINT_DIR: f"{s3_url}/checkpoints"}).start()
    with pytest.raises(ckpt.errors.ConfigurationError) as caught:
        query.processAllAvailable()
    for text in ("pyspark_ckpt[s3]", "'op', subtask", f"{s3_url}/checkpoints", CHECKPOINT_DIR):
        assert text in str(caught.value)


@contextmanager
def application_conf(job: Job, key: str, value: str) -> Iterator[None]:
    """Give the application a conf as spark-submit does; what runs has read its own already."""
    conf = job.spark.sparkContext._conf
    conf.set(key, value)
    try:
        yield
    finally:
        conf._jconf.remove(key)


@pytest.mark.slow
def test_wheels_that_spark_ignores_are_named(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.feed.add(events_of(0))
    files = "hdfs:///jobs/helpers.py,/tmp/pyspark_ckpt-0.1.0-py3-none-any.whl,/x/lib.zip"
    with (
        application_conf(job, "spark.submit.pyFiles", files),
        caplog.at_level(logging.WARNING, "pyspark_ckpt"),
    ):
        job.run()
    (warning,) = [text for text in caplog.messages if "--py-files" in text]
    for named in ("pyspark_ckpt-0.1.0-py3-none-any.whl", "venv-pack", "--archives"):
        assert named in warning
    assert "helpers.py" not in warning
    assert "lib.zip" not in warning


@pytest.mark.parametrize(("limit", "cores", "wanted"), [("1023m", "1", 1024), ("3g", "4", 4096)])
def test_too_little_memory_of_workers_is_refused(
    job: Job, limit: str, cores: str, wanted: int
) -> None:
    key = "spark.executor.pyspark.memory"
    with (
        application_conf(job, key, limit),
        application_conf(job, "spark.executor.cores", cores),
        refused(ckpt.errors.ConfigurationError, key, limit, f"{wanted}m", unchanged=job.base),
    ):
        job.run()


def test_enough_memory_of_workers(job: Job) -> None:
    job.feed.add(events_of(0))
    with application_conf(job, "spark.executor.pyspark.memory", f"{LEAST_WORKER_MIB}m"):
        job.run()
    assert job.result() == expected(job.feed.rows)
