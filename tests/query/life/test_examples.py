"""The examples in the docstrings of what ``pyspark_ckpt`` exports, in one session."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from tests.public_examples import Names, run_examples
from tools.check_docstrings import public_objects

WITHOUT_SPARK = (
    "pyspark_ckpt.testing.", "pyspark_ckpt.operator.state.", "pyspark_ckpt.operator.table.",
)  # fmt: skip
"""Their examples are in tests/unit/test_examples.py."""


@pytest.mark.soak
def test_each_example_continues_the_one_of_the_package(spark: SparkSession, tmp_path: Path) -> None:
    """An example may stop the query: the next one finds it started again."""
    names = run_examples(ckpt.__doc__, "pyspark_ckpt", {"spark": spark, "directory": tmp_path})
    try:
        for public in public_objects():
            docstring = inspect.getdoc(public.value) or ""
            if ">>>" in docstring and not public.name.startswith(WITHOUT_SPARK):
                run_examples(docstring, public.name, names)
                _start_again(names)
    finally:
        names["query"].stop()
        spark.sql("DROP TABLE IF EXISTS counts_by_user")


def _start_again(names: Names) -> None:
    if not names["query"].isActive:
        names["query"] = names["writer"].start()
        names["query"].processAllAvailable()
