"""Commands that start a local Spark session: plan, shadow, rollback."""

from __future__ import annotations

import runpy
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.api.location import location
from pyspark_ckpt.api.shadowing import shadow_of_location
from pyspark_ckpt.api.writer import CheckpointedStreamWriter
from pyspark_ckpt.cli.output import Result, check_can_write, facts
from pyspark_ckpt.errors import CheckpointNotFoundError, ConfigurationError
from pyspark_ckpt.operator.plan.parallelism import building_with
from pyspark_ckpt.query.restarts import parallelism_at
from pyspark_ckpt.shadowing.report import Rules, ShadowReport
from pyspark_ckpt.storage.open import open_storage

_MAIN_CONF: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}

_RUN_NAME = "pyspark_ckpt_plan"
"""The ``__name__`` of the user's program, so that ``if __name__ == "__main__"`` does not run."""


def plan(arguments: Namespace) -> Result:
    """Show what a restore would do with every operator and state. Start no query."""
    with local_session(arguments.conf) as spark:
        found = location(arguments.path).plan(
            query_of(arguments.program, spark),
            allowNonRestoredState=arguments.allow_non_restored_state or None,
            allowMissingInput=arguments.allow_missing_input or None,
        )
    fields = {
        "path": found.path,
        "epoch": found.epoch,
        "can_start": not found.errors,
        "missing_input": list(found.missing_input),
        "states": [asdict(state) for state in found.states],
        "errors": [{"kind": type(error).__name__, "message": str(error)} for error in found.errors],
    }
    return Result(fields, f"{found!r}\n", is_done=not found.errors)


def shadow(arguments: Namespace) -> Result:
    """Compare a candidate with the program of a query that another process runs."""
    if arguments.html is not None:
        check_can_write("--html", Path(arguments.html))  # a run of hours ends with it
    expected = None if arguments.expected is None else function_of(arguments.expected)
    rules = Rules(
        epochs=arguments.epochs,
        max_differences=arguments.max_differences,
        ignore=frozenset(arguments.ignore),
        tolerance=arguments.tolerance,
        expected=expected,
        keys=tuple(arguments.key) or None,
        states_every=arguments.states_every,
    )
    storage = open_storage(arguments.location)
    parallelism = parallelism_at(storage)
    if parallelism is None:
        raise CheckpointNotFoundError(
            f"{storage.url} is not the checkpointLocation of a query with a committed epoch: give "
            "the location of a query that runs"
        )
    with (
        local_session(arguments.conf) as spark,
        tempfile.TemporaryDirectory(prefix="pyspark_ckpt-shadow-") as own,
    ):
        with building_with(parallelism):
            original = query_of(arguments.original, spark)
        with building_with(arguments.parallelism or parallelism):
            candidate = query_of(arguments.candidate, spark)
        parent = open_storage(arguments.directory or own)
        with shadow_of_location(storage, original, candidate, rules, parent) as found:
            try:
                has_ended = found.awaitTermination(arguments.timeout)
                if not has_ended:
                    found.stop()
            except Exception:
                if not found.report.epochs:
                    raise  # else the report says what failed, and what was found before
        report = found.report
    return reported(report, None if arguments.html is None else Path(arguments.html))


def reported(report: ShadowReport, html: Path | None) -> Result:
    """Return the result of a proof, and write it as HTML; it is shown also if that fails."""
    fields, text = _fields(report), f"{report!r}\n"
    is_answer = report.is_equal or report.differences > 0
    if html is not None:
        try:
            html.write_text(report._repr_html_(), encoding="utf-8")
        except OSError as exc:
            fields["html_error"] = str(exc)
            text += f"the report could not be written to {html}: {exc}\n"
            is_answer = False
    return Result(fields, text, is_done=report.is_equal, is_answer=is_answer)


def _fields(report: ShadowReport) -> dict[str, object]:
    counts = [
        {"place": place, "change": change, "count": count}
        for (place, change), count in report.counts.items()
    ]
    samples = [{**asdict(each), "columns": list(each.columns)} for each in report.samples]
    fields = {name: getattr(report, name) for name in ShadowReport.__dataclass_fields__}
    added = {"is_equal": report.is_equal, "unproven": report.unproven}
    return {**fields, **added, "counts": counts, "samples": samples}


def rollback(arguments: Namespace) -> Result:
    """Roll the location of a stopped query back to a retained checkpoint."""
    with local_session(arguments.conf) as spark:
        done = location(arguments.location).rollback(
            arguments.to,
            arguments.checkpoints_directory,
            force=arguments.force,
            allow_missing_input=arguments.allow_missing_input,
            spark=spark,
        )
    fields = asdict(done)
    undo = f"pyspark-ckpt rollback {done.location} {Path(done.kept).name}"
    return Result(fields, facts({**fields, "to undo it": undo}))


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
        raise ConfigurationError(
            f"there is no file {path}: name the program that builds the query, as FILE.py:FUNCTION"
        )
    function: Callable[..., Any] | None = runpy.run_path(path, run_name=_RUN_NAME).get(name)
    if not callable(function):
        raise ConfigurationError(
            f"{path} has no function {name!r}: name the function that builds the query"
        )
    return function
