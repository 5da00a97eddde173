"""The arguments of ``pyspark-ckpt``, with examples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark_ckpt.cli import (
    console_commands,
    file_commands,
    given,
    query_commands,
    spark_commands,
    state_commands,
)
from pyspark_ckpt.console.opening import DEFAULT_PORT, LOOPBACK
from pyspark_ckpt.version import __version__

LOCATION = "a query's checkpointLocation or checkpoints directory"
SNAPSHOT = "a savepoint-... or chk-... directory"
DEFAULT_TIMEOUT_S = 600.0
DEFAULT_PICK_UP_S = 20.0


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of a command, which has its function in `run`.

    Raises
    ------
    SystemExit
        With 2 if they are wrong, also together; with 0 after ``--help``.
    """
    chosen = parser().parse_args(arguments)
    problem = chosen.check(chosen)
    if problem is not None:
        chosen.refuse(problem)
    return chosen


def parser() -> argparse.ArgumentParser:
    """Return the parser. A parsed command has its function in `run`."""
    top = argparse.ArgumentParser(
        prog="pyspark-ckpt",
        description="Checkpoints and savepoints of PySpark Structured Streaming queries.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments; of diff and shadow 0 equal, "
        "1 different, 2 unknown. "
        "Only plan, shadow and rollback start Spark, on this machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_query_commands(commands)
    _add_release(commands)
    _add_file_commands(commands)
    _add_state(commands)
    _add_diff(commands)
    _add_rename_uid(commands)
    _add_spark_commands(commands)
    _add_console_commands(commands)
    return top


def _add_query_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    savepoint = _command(
        commands,
        "savepoint",
        "take a savepoint of a running query, which continues",
        "pyspark-ckpt savepoint /data/flights/checkpoint\n"
        "pyspark-ckpt savepoint /data/flights/checkpoint --directory before-upgrade --type native",
    )
    savepoint.set_defaults(run=query_commands.savepoint)
    stop = _command(
        commands,
        "stop",
        "stop a running query after its epoch, with a savepoint of that epoch",
        "pyspark-ckpt stop /data/flights/checkpoint\n"
        "pyspark-ckpt stop /data/flights/checkpoint --drain --json",
    )
    stop.add_argument("--drain", action="store_true", help="fire every event-time timer first")
    stop.set_defaults(run=query_commands.stop)
    promote = _command(
        commands,
        "promote",
        "let the candidate of the query's shadow take over, with a savepoint to go back to",
        "pyspark-ckpt promote /data/flights/checkpoint\n"
        "pyspark-ckpt promote /data/flights/checkpoint --accept-differences",
    )
    promote.add_argument(
        "--accept-differences",
        action="store_true",
        help="also if the two programs differ, or no epoch was compared",
    )
    promote.set_defaults(run=query_commands.promote, type="native")
    discard = _command(
        commands,
        "discard",
        "stop the shadows of a running query, and delete everything that they made",
        "pyspark-ckpt discard /data/flights/checkpoint",
    )
    discard.set_defaults(run=query_commands.discard, type="native", directory=None)
    _add_arguments_of_requests((savepoint, stop), (savepoint, stop, promote), discard)


def _add_arguments_of_requests(
    typed: Sequence[argparse.ArgumentParser],
    placed: Sequence[argparse.ArgumentParser],
    other: argparse.ArgumentParser,
) -> None:
    for command in typed:
        command.add_argument(
            "--type",
            choices=("canonical", "native"),
            default="canonical",
            help="canonical: for every backend and reader; native: the files as they are, faster",
        )
    for command in placed:
        command.add_argument(
            "--directory",
            type=given.path,
            help="below the query's spark.ckpt.execution.checkpointing.savepoint-dir, "
            "which is the default",
        )
    for command in (*placed, other):
        command.add_argument("location", type=given.path, metavar="LOCATION", help=LOCATION)
        command.add_argument(
            "--timeout",
            type=given.seconds,
            default=DEFAULT_TIMEOUT_S,
            metavar="SECONDS",
            help=f"how long to wait for the result (default {DEFAULT_TIMEOUT_S:.0f})",
        )
        command.add_argument(
            "--pick-up-timeout",
            type=given.seconds,
            default=DEFAULT_PICK_UP_S,
            metavar="SECONDS",
            help="how long to wait until the query takes the request; a query looks for requests "
            "every second, at a server every five, but not during a checkpoint "
            f"(default {DEFAULT_PICK_UP_S:.0f})",
        )


def _add_release(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "release",
        "have the next epoch give the rows of quarantined keys to the processor",
        "pyspark-ckpt release /data/flights/checkpoint\n"
        "pyspark-ckpt release /data/flights/checkpoint --operator turnarounds --key N10156",
    )
    command.add_argument("location", type=given.path, metavar="LOCATION", help=LOCATION)
    command.add_argument("--operator", metavar="UID", help="the operator, if there are several")
    _add_key(command, "one key in place of all")
    command.set_defaults(run=query_commands.release)


def _add_key(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--key",
        metavar="VALUE",
        action="append",
        default=[],
        help=f"{what}; give the option once for each key column, bytes in hex",
    )
    command.add_argument(
        "--null-key",
        dest="key",
        action="append_const",
        const=None,
        help="in place of --key for a column that is null",
    )


def _add_file_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, run, what, argument, examples in (
        ("list", file_commands.list_stored, "list the checkpoints or savepoints",
         f"{LOCATION}, or a directory of savepoints",
         "pyspark-ckpt list /data/flights/checkpoint\npyspark-ckpt list /data/savepoints"),
        ("history", file_commands.show_history, "show checkpoints, savepoints and failures",
         LOCATION, "pyspark-ckpt history /data/flights/checkpoint --json"),
        ("lineage", file_commands.show_lineage,
         "show what a snapshot was restored from, or the tree of all forks below a directory",
         "a savepoint-... or chk-... directory, or a directory of several queries",
         "pyspark-ckpt lineage /data"),
        ("show", file_commands.show, "show the content and ancestors of a checkpoint or savepoint",
         SNAPSHOT, "pyspark-ckpt show /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f"),
        ("verify", file_commands.verify_files, "check all files by size and SHA-256",
         SNAPSHOT, "pyspark-ckpt verify /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f"),
        ("dispose", file_commands.dispose, "delete exactly the files of a savepoint",
         "a savepoint-... directory",
         "pyspark-ckpt dispose /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f"),
    ):  # fmt: skip
        command = _command(commands, name, what, examples)
        command.add_argument("path", type=given.path, metavar="PATH", help=argument)
        command.set_defaults(run=run)


def _add_state(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "state",
        "show the states of a checkpoint or savepoint, the rows of a state, or one key",
        "pyspark-ckpt state /data/flights/checkpoint\n"
        "pyspark-ckpt state /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f --state total\n"
        "pyspark-ckpt state /data/flights/checkpoint --state total --key ada\n"
        "pyspark-ckpt state /data/flights/checkpoint --state total --format parquet \\\n"
        "    --output total.parquet",
    )
    command.add_argument("path", type=given.path, metavar="PATH", help=f"{SNAPSHOT}, or {LOCATION}")
    command.add_argument("--operator", metavar="UID", help="the operator, if there are several")
    command.add_argument("--state", metavar="NAME", help="the state whose rows are shown")
    command.add_argument("--timers", action="store_true", help="show the operator's timers")
    _add_key(command, "show one key")
    command.add_argument(
        "--limit",
        type=given.count,
        metavar="ROWS",
        help=f"how many rows to show (default {state_commands.TABLE_LIMIT} as a table, else all)",
    )
    command.add_argument(
        "--format",
        choices=state_commands.FORMATS,
        help="of rows (default table); in csv a null is nothing, an empty text is two quotes",
    )
    command.add_argument(
        "--output",
        type=given.path,
        metavar="FILE",
        help="where the rows go, instead of the screen",
    )
    command.set_defaults(run=state_commands.state, check=state_commands.wrong_arguments_of_state)


def _add_diff(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "diff",
        "compare the states of two snapshots; exit with 1 if they differ, with 2 on errors",
        "pyspark-ckpt diff /data/flights/checkpoint/pyspark_ckpt/chk-{41,42}\n"
        "pyspark-ckpt diff /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f /data/fork --json",
    )
    for name in ("old", "new"):
        command.add_argument(
            name, type=given.path, metavar=name.upper(), help=f"{SNAPSHOT}, or {LOCATION}"
        )
    command.add_argument(
        "--limit", type=given.count, metavar="ROWS", default=5, help="changes of each state to show"
    )
    command.set_defaults(run=state_commands.diff, has_negative_result=True)


def _add_rename_uid(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "rename-uid",
        "write a copy of a savepoint in which operators have other uids",
        "pyspark-ckpt rename-uid /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f count=totals \\\n"
        "    --directory /data/savepoints",
    )
    command.add_argument("path", type=given.path, metavar="PATH", help=SNAPSHOT)
    command.add_argument(
        "uids", metavar="OLD=NEW", nargs="+", type=given.renaming, help="a new uid for an old one"
    )
    command.add_argument(
        "--directory",
        type=given.path,
        required=True,
        help="the parent of the new savepoint-... directory",
    )
    command.set_defaults(run=file_commands.rename_uids)


def _add_spark_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = _command(
        commands,
        "plan",
        "show what a restore would do with every operator and state; start nothing",
        "pyspark-ckpt plan /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f job.py:build\n"
        "pyspark-ckpt plan /data/flights/checkpoint/pyspark_ckpt/chk-12 job.py:build \\\n"
        "    --conf spark.sql.shuffle.partitions=16",
    )
    plan.add_argument("path", type=given.path, metavar="PATH", help=SNAPSHOT)
    plan.add_argument(
        "program",
        metavar="FILE.py:FUNCTION",
        help="a function that returns the query, a DataFrame or a writer; it gets the Spark "
        "session if it takes a parameter",
    )
    plan.add_argument(
        "--allow-non-restored-state",
        action="store_true",
        help="plan to drop the state of operators that the query no longer has",
    )
    _allow_missing_input(plan, "plan to leave")
    plan.set_defaults(run=spark_commands.plan)
    rollback = _command(
        commands,
        "rollback",
        "roll the location of a stopped query back to a retained checkpoint",
        "pyspark-ckpt rollback /data/flights/checkpoint chk-12",
    )
    rollback.add_argument(
        "location", type=given.path, metavar="LOCATION", help="a query's checkpointLocation"
    )
    rollback.add_argument(
        "to", metavar="CHECKPOINT", help="chk-N, or a _before_rollback-... directory of LOCATION"
    )
    rollback.add_argument(
        "--checkpoints-directory",
        type=given.path,
        metavar="DIR",
        help="the query's spark.ckpt.execution.checkpointing.dir; by default the directory that "
        "LOCATION records",
    )
    rollback.add_argument(
        "--force",
        action="store_true",
        help="without waiting two minutes for a sign of life of a run that has no end in its "
        "records, and although a Spark Connect server may continue it: only if you know that its "
        "driver was killed, and that no server runs it",
    )
    _allow_missing_input(rollback, "leave")
    rollback.set_defaults(run=spark_commands.rollback)
    for command in (plan, rollback, _shadow(commands)):
        command.add_argument(
            "--conf",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="a setting of the Spark session, as for spark-submit; may be repeated",
        )


def _allow_missing_input(command: argparse.ArgumentParser, does: str) -> None:
    command.add_argument(
        "--allow-missing-input",
        action="store_true",
        help=f"{does} out the rows of input files that later epochs have read and that are gone",
    )


def _shadow(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    shadow = _command(
        commands,
        "shadow",
        "run a candidate next to a running query, and compare output and states epoch by epoch; "
        "exit with 1 if they differ, with 2 if not all was compared, or on errors",
        "pyspark-ckpt shadow /data/flights/checkpoint job.py:build new.py:build --epochs 20\n"
        "pyspark-ckpt shadow /data/flights/checkpoint job.py:build new.py:build \\\n"
        "    --ignore output.loaded_at --tolerance 1e-9 --html report.html",
    )
    shadow.add_argument(
        "location", type=given.path, metavar="LOCATION", help="a query's checkpointLocation"
    )
    for name, what in (("original", "the query's own program"), ("candidate", "the new program")):
        shadow.add_argument(
            name,
            metavar=f"{name.upper()}.py:FUNCTION",
            help=f"{what}: a function that returns the query, a DataFrame or a writer; it gets the "
            "Spark session if it takes a parameter",
        )
    for option, kind, default, metavar, what in (
        ("--epochs", given.positive, 10, "N", "stop after N epochs (default 10)"),
        ("--max-differences", given.positive, 1000, "N", "stop after N differences (default 1000)"),
        ("--states-every", given.positive, 1, "N", "compare states after N epochs (default 1)"),
        (
            "--parallelism",
            given.positive,
            None,
            "N",
            "subtasks of the candidate (default: as now)",
        ),
        ("--tolerance", float, 0.0, "X", "relative difference of fractions that counts as equal"),
        ("--timeout", given.seconds, None, "SECONDS", "stop after this time; by default never"),
        ("--expected", str, None, "FILE.py:FUNCTION", "returns whether a difference is wanted"),
        ("--directory", given.path, None, "DIR", "for the forks; by default a temporary one"),
        ("--html", given.path, None, "FILE", "write the report as HTML, too"),
    ):
        shadow.add_argument(option, type=kind, default=default, metavar=metavar, help=what)
    for option, metavar, what in (
        ("--ignore", "NAME", "output.<column>, <uid>.<state> or <uid>.<state>.<column>"),
        ("--key", "COLUMN", "a column that names a row of the output"),
    ):
        shadow.add_argument(
            option, metavar=metavar, action="append", default=[], help=f"{what}; may be repeated"
        )
    shadow.set_defaults(run=spark_commands.shadow, has_negative_result=True)
    return shadow


def _add_console_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ui = _command(
        commands,
        "ui",
        "serve pages about queries, running or not, until you press Ctrl+C",
        "pyspark-ckpt ui /data/flights/checkpoint\n"
        "pyspark-ckpt ui s3://bucket/checkpoints --port 9000\n"
        "pyspark-ckpt ui flights.bundle",
    )
    ui.add_argument(
        "path",
        type=given.path,
        metavar="PATH",
        help=f"{LOCATION}, a directory of several, or a bundle",
    )
    ui.add_argument(
        "--port",
        type=given.port,
        default=DEFAULT_PORT,
        help=f"0 for any free port (default {DEFAULT_PORT})",
    )
    ui.add_argument(
        "--host",
        default=LOOPBACK,
        help=f"where to listen (default {LOOPBACK}); elsewhere the address has a token, and the "
        "connection is not encrypted",
    )
    ui.set_defaults(run=console_commands.ui)
    bundle = _command(
        commands,
        "bundle",
        "write one file with what `ui` shows, without keys and values of states, "
        "to look at it elsewhere",
        "pyspark-ckpt bundle /data/flights/checkpoint --output flights.bundle",
    )
    bundle.add_argument(
        "path", type=given.path, metavar="PATH", help=f"{LOCATION}, or a directory of several"
    )
    bundle.add_argument(
        "--output", type=given.path, metavar="FILE", required=True, help="the new file"
    )
    bundle.set_defaults(run=console_commands.bundle)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    what: str,
    examples: str,
) -> argparse.ArgumentParser:
    indented = "\n".join(f"  {line}" for line in examples.splitlines())
    command = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=f"examples:\n{indented}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(has_negative_result=False, check=lambda _: None, refuse=command.error)
    return command
