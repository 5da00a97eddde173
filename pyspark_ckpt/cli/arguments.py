"""The arguments of ``pyspark-ckpt``, with examples."""

from __future__ import annotations

import argparse

from pyspark_ckpt.cli import file_commands, query_commands
from pyspark_ckpt.version import __version__

LOCATION = "a query's checkpointLocation or checkpoints directory"
SNAPSHOT = "a savepoint-... or chk-... directory"
DEFAULT_TIMEOUT_S = 600.0


def parser() -> argparse.ArgumentParser:
    """Return the parser; a parsed command has its function in `run`."""
    top = argparse.ArgumentParser(
        prog="pyspark-ckpt",
        description="Checkpoints and savepoints of PySpark Structured Streaming queries.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments. No command starts Spark.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_query_commands(commands)
    _add_file_commands(commands)
    return top


def _add_query_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    savepoint = _command(
        commands,
        "savepoint",
        "take a savepoint of a running query, which runs on",
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
    stop.add_argument(
        "--drain", action="store_true", help="have every event-time timer fire before"
    )
    stop.set_defaults(run=query_commands.stop)
    for command in (savepoint, stop):
        command.add_argument("location", metavar="LOCATION", help=LOCATION)
        command.add_argument(
            "--directory",
            help="below the query's spark.ckpt.execution.checkpointing.savepoint-dir, "
            "which is the default",
        )
        command.add_argument(
            "--type",
            choices=("canonical", "native"),
            default="canonical",
            help="canonical: for every backend and reader; native: the files as they are, faster",
        )
        command.add_argument(
            "--timeout",
            type=_seconds,
            default=DEFAULT_TIMEOUT_S,
            metavar="SECONDS",
            help=f"how long to wait for the answer (default {DEFAULT_TIMEOUT_S:.0f})",
        )


def _add_file_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, run, what, argument, examples in (
        ("list", file_commands.list_checkpoints, "list the checkpoints or savepoints there are",
         f"{LOCATION}, or a directory of savepoints",
         "pyspark-ckpt list /data/flights/checkpoint\npyspark-ckpt list /data/savepoints"),
        ("history", file_commands.show_history, "tell of checkpoints, savepoints and failures",
         f"{LOCATION}, or a directory of several, whose tree of forks is told",
         "pyspark-ckpt history /data/flights/checkpoint --json\npyspark-ckpt history /data"),
        ("show", file_commands.show, "tell what a checkpoint or savepoint has, and its ancestors",
         SNAPSHOT, "pyspark-ckpt show /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f"),
        ("verify", file_commands.verify_files, "check all files by size and SHA-256",
         SNAPSHOT, "pyspark-ckpt verify /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f"),
        ("dispose", file_commands.dispose, "delete a savepoint: its own files and no others",
         "a savepoint-... directory",
         "pyspark-ckpt dispose /data/savepoints/savepoint-3f2a10-0a1b2c3d4e5f"),
    ):  # fmt: skip
        command = _command(commands, name, what, examples)
        command.add_argument("path", metavar="PATH", help=argument)
        command.set_defaults(run=run)


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
    return command


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds
