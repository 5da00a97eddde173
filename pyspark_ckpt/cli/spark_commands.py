"""Commands that start a local Spark session: plan, prove, rollback."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from pyspark_ckpt.api.restarts import parallelism_at
from pyspark_ckpt.api.restoring import plan_restore
from pyspark_ckpt.api.shadow_forks import shadow_of_location
from pyspark_ckpt.cli.output import Result, check_can_write, facts
from pyspark_ckpt.cli.spark_session import function_of, local_session, query_of
from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.operator.plan.parallelism import building_with
from pyspark_ckpt.restarting.rollback import rollback as roll_back
from pyspark_ckpt.shadowing.report import ShadowReport
from pyspark_ckpt.shadowing.rules import Rules
from pyspark_ckpt.storage.open import open_storage


def plan(arguments: Namespace) -> Result:
    """Show what a restore would do with every operator and state. Start no query."""
    with local_session(arguments.conf) as spark:
        found = plan_restore(
            arguments.path,
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


def prove(arguments: Namespace) -> Result:
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
    location = open_storage(arguments.location)
    parallelism = parallelism_at(location)
    if parallelism is None:
        raise CheckpointNotFoundError(
            f"{location.url} is no checkpointLocation of a query with a committed epoch: give the "
            "location of a query that runs"
        )
    with (
        local_session(arguments.conf) as spark,
        tempfile.TemporaryDirectory(prefix="pyspark_ckpt-prove-") as own,
    ):
        with building_with(parallelism):
            original = query_of(arguments.original, spark)
        with building_with(arguments.parallelism or parallelism):
            candidate = query_of(arguments.candidate, spark)
        parent = open_storage(arguments.directory or own)
        with shadow_of_location(location, original, candidate, rules, parent) as found:
            try:
                has_ended = found.awaitTermination(arguments.timeout)
                if not has_ended:
                    found.stop()
            except Exception:
                if not found.report.epochs:
                    raise  # else the report says what failed, beside what was found before
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
        done = roll_back(
            arguments.location,
            arguments.to,
            arguments.checkpoints_directory,
            force=arguments.force,
            allowMissingInput=arguments.allow_missing_input,
            spark=spark,
        )
    fields = asdict(done)
    return Result(fields, facts(fields))
