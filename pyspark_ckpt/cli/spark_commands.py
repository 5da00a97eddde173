"""Commands that start a local Spark session: plan, rollback."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from pyspark_ckpt.api.restoring import plan_restore
from pyspark_ckpt.cli.output import Result, facts
from pyspark_ckpt.cli.spark_session import local_session, query_of
from pyspark_ckpt.restore.rollback import rollback as roll_back


def plan(arguments: Namespace) -> Result:
    """Show what a restore would do with every operator and state. Start no query."""
    with local_session(arguments.conf) as spark:
        found = plan_restore(
            arguments.path,
            query_of(arguments.program, spark),
            allowNonRestoredState=arguments.allow_non_restored_state or None,
        )
    fields = {
        "path": found.path,
        "epoch": found.epoch,
        "can_start": not found.errors,
        "states": [asdict(state) for state in found.states],
        "errors": [{"kind": type(error).__name__, "message": str(error)} for error in found.errors],
    }
    return Result(fields, f"{found!r}\n", is_done=not found.errors)


def rollback(arguments: Namespace) -> Result:
    """Roll the location of a stopped query back to a retained checkpoint."""
    with local_session(arguments.conf):
        done = roll_back(arguments.location, arguments.to, arguments.checkpoints_directory)
    fields = asdict(done)
    return Result(fields, facts(fields))
