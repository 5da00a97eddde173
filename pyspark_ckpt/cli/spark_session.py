"""The local Spark session of ``plan``, ``prove`` and ``rollback``, and the programs they read."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.api.writer import CheckpointedStreamWriter
from pyspark_ckpt.errors import ConfigurationError

_MAIN_CONF: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}


_RUN_NAME = "pyspark_ckpt_plan"
"""The ``__name__`` of the user's program, so that ``if __name__ == "__main__"`` does not run."""


@contextmanager
def local_session(conf: Sequence[str]) -> Iterator[SparkSession]:
    """Provide a local Spark session to a command, and stop it afterwards."""
    builder = SparkSession.builder.master("local[2]").appName("pyspark-ckpt").config(map=_MAIN_CONF)
    for pair in conf:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(
                f"--conf {pair} has no value: write KEY=VALUE, as for spark-submit"
            )
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def query_of(program: str, spark: SparkSession) -> DataFrame | CheckpointedStreamWriter:
    """Return the query that a function of the user's program builds.

    `program` is ``FILE.py:FUNCTION``. The file is run with another ``__name__`` than ``__main__``.
    Then the function is called, with the session if it takes a parameter.
    """
    function = function_of(program)
    try:
        query = function(spark) if signature(function).parameters else function()
    except PySparkException as exc:
        raise ConfigurationError(f"{program} cannot build its query: {exc}") from exc
    if not isinstance(query, (DataFrame, CheckpointedStreamWriter)):
        raise ConfigurationError(
            f"{program} returns {type(query).__name__}: return the streaming DataFrame or "
            "pyspark_ckpt.write_stream(...) before start()"
        )
    return query


def function_of(program: str) -> Callable[..., Any]:
    """Return a function of a user's program, ``FILE.py:FUNCTION``."""
    path, _, name = program.rpartition(":")
    if not path or not name:
        raise ConfigurationError(f"{program!r} is not FILE.py:FUNCTION: name a function in a file")
    if not Path(path).is_file():
        raise ConfigurationError(f"there is no file {path}: name the program that builds the query")
    function: Callable[..., Any] | None = runpy.run_path(path, run_name=_RUN_NAME).get(name)
    if not callable(function):
        raise ConfigurationError(
            f"{path} has no function {name!r}: name the function that builds the query"
        )
    return function
